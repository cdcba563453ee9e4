"""How engines behind HTTP differ: what they are called, what they take, and what they count."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec

from executor.contract import Ask

Engine = Literal["vllm", "sglang", "tgi", "llamacpp", "transformers", "openai"]
Signal = Literal["running", "waiting", "kv", "preemptions", "progress"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of engine. `first` is which end of its `priority` goes first, None: it has none.

    `counts`: it tells how many tokens there are with each event, when it is asked to. `metrics` is
    what the names of its metrics begin with, `owner` what it says of its models.
    """

    name: Engine
    first: Literal["lower", "higher"] | None = None
    counts: bool = False
    metrics: str = ""
    owner: str = ""


DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {
        one.name: one
        for one in (
            Dialect("vllm", "lower", counts=True, metrics="vllm:", owner="vllm"),
            Dialect("sglang", "higher", counts=True, metrics="sglang:", owner="sglang"),
            Dialect("tgi", metrics="tgi_"),
            Dialect("llamacpp", metrics="llamacpp:", owner="llamacpp"),
            Dialect("transformers"),
            Dialect("openai"),
        )
    }
)

# By signal, the names under which engines export it, the first that is there counts; of a quotient
# both have to be there.
ALIASES: Mapping[Signal, Sequence[str]] = MappingProxyType(
    {
        "running": (
            "vllm:num_requests_running",
            "sglang:num_running_reqs",
            "tgi_batch_current_size",
            "llamacpp:requests_processing",
        ),
        "waiting": (
            "vllm:num_requests_waiting",
            "sglang:num_queue_reqs",
            "tgi_queue_size",
            "llamacpp:requests_deferred",
        ),
        "kv": (
            "vllm:kv_cache_usage_perc",
            "vllm:gpu_cache_usage_perc",
            "sglang:token_usage",
            "tgi_batch_current_max_tokens / tgi_batch_max_total_tokens",
        ),
        "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
        "progress": (
            "vllm:generation_tokens_total",
            "sglang:generation_tokens_total",
            "tgi_batch_inference_count",
            "llamacpp:n_decode_total",
        ),
    }
)


def recognise(metrics: str, owner: str) -> Dialect:
    """Which kind of engine exports these metrics (empty: none), and says that it owns its model."""
    for dialect in DIALECTS.values():
        if dialect.metrics and f"\n{dialect.metrics}" in f"\n{metrics}":
            return dialect
    for dialect in DIALECTS.values():
        if dialect.owner and dialect.owner == owner:
            return dialect
    return DIALECTS["openai"]


def rank(dialect: Dialect, priority: int, priorities: Sequence[int]) -> int | None:
    """The engine's own number for a tier of this priority, of tiers of all these: as many ranks
    around 0, two apart, in the engine's direction. None: it has no priorities."""
    if dialect.first is None or priority not in priorities:
        return None
    ordered = sorted(priorities)
    rank = 2 * ordered.index(priority) - (len(ordered) - 1)
    return rank if dialect.first == "higher" else -rank


def body(
    ask: Ask, dialect: Dialect, *, model: str, priority: int | None, without: Collection[str]
) -> bytes:
    """The body for an engine: what the client asked for, streamed, with counts, and without the
    fields that this engine is known to refuse."""
    fields = dict(ask.body)
    options = {"include_usage": True}
    if dialect.counts:
        options["continuous_usage_stats"] = True
    fields["stream"] = _raw(True)
    fields["stream_options"] = _raw(options)
    if model:
        fields["model"] = _raw(model)
    if priority is not None:
        fields["priority"] = _raw(priority)
    for name in without:
        fields.pop(name, None)
    return msgspec.json.encode(fields)


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
