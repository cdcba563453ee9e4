"""How engines are told apart, and what each is asked."""

from __future__ import annotations

import json

import msgspec
import pytest

from executor.contract import Ask
from executor.upstream_dialects import DIALECTS, body, rank, recognise

TIERS = (20, 10, 0)


def asked(**fields: object) -> Ask:
    return Ask("/v1/x", {k: msgspec.Raw(json.dumps(v).encode()) for k, v in fields.items()})


@pytest.mark.parametrize(
    ("engine", "ranks"),
    [
        # BEHAVIOURS 29: vLLM takes the lower number first, SGLang the higher one.
        ("vllm", [-2, 0, 2]),
        ("sglang", [2, 0, -2]),
        ("tgi", [None, None, None]),
        ("llamacpp", [None, None, None]),
        ("transformers", [None, None, None]),
        ("openai", [None, None, None]),
    ],
)
def test_a_priority_goes_in_the_direction_of_the_engine(
    engine: str, ranks: list[int | None]
) -> None:
    assert [rank(DIALECTS[engine], priority, TIERS) for priority in TIERS] == ranks


def test_priorities_keep_their_order_whatever_their_numbers() -> None:
    assert [rank(DIALECTS["vllm"], p, (7, -100)) for p in (7, -100)] == [-1, 1]
    assert rank(DIALECTS["vllm"], 7, (7,)) == 0
    assert rank(DIALECTS["vllm"], 8, (7,)) is None


@pytest.mark.parametrize(
    ("metrics", "owner", "engine"),
    [
        ('# HELP x\nvllm:num_requests_running{a="b"} 1\n', "", "vllm"),
        ("sglang:num_running_reqs 1\n", "vllm", "sglang"),
        ("tgi_queue_size 0\n", "", "tgi"),
        ("llamacpp:requests_processing 0\n", "", "llamacpp"),
        ("", "vllm", "vllm"),
        ("", "llamacpp", "llamacpp"),
        ("process_cpu_seconds_total 1\n", "somebody", "openai"),
    ],
)
def test_an_engine_is_known_by_its_metrics_and_else_by_its_models(
    metrics: str, owner: str, engine: str
) -> None:
    assert recognise(metrics, owner).name == engine


def test_the_body_is_the_clients_but_for_what_is_ours() -> None:
    ask = asked(messages=[{"x": 1}], temperature=0.123456789012345, weird={"deep": [None]})
    made = body(ask, DIALECTS["vllm"], model="m", priority=-2, without=())
    assert json.loads(made) == {
        "messages": [{"x": 1}],
        "temperature": 0.123456789012345,
        "weird": {"deep": [None]},
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "model": "m",
        "priority": -2,
    }
    assert json.loads(
        body(ask, DIALECTS["openai"], model="", priority=None, without=("weird",))
    ) == {
        "messages": [{"x": 1}],
        "temperature": 0.123456789012345,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
