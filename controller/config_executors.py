"""What may be written about an executor in YAML, and what its child process gets of it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator, Strict, WithJsonSchema

from controller.config_types import Count, CountOrZero, Name, Section, Switch
from controller.units import Duration


class Restart(Section):
    """How a worker that died or stalled is started again."""

    first_delay: Duration = 0.5
    """Pause before the first restart; each further one doubles it."""
    max_delay: Duration = 30.0
    """The longest pause between two restarts."""
    reset_after: Duration = 60.0
    """A worker that stayed up this long starts again at `first_delay`."""


class _Executor(Section):
    """What every kind of executor has."""

    name: Name = "main"
    """Unique name, used in metrics and logs."""
    group: Name = "default"
    """Executors of one group share one set of limits; put like with like."""
    stall_after: Annotated[Duration, Field(gt=0)] = 60.0
    """Work in flight and no step for this long is a stall: the worker is restarted."""
    load_timeout: Annotated[Duration, Field(gt=0)] = 900.0
    """A worker that is not ready after this long is restarted."""
    restart: Restart = Restart()
    """Pauses between restarts of the worker."""
    max_seqs: Count = 64
    """Seats: sequences at once. The envelope of `max_batch_size` must fit in."""
    max_step_tokens: Count = 2048
    """Tokens in one step at most. The envelope of `max_batch_tokens` must fit in."""


_OWN_KEYS = frozenset({"name", "group", "kind", "stall_after", "load_timeout", "restart"})


class ContinuousExecutor(_Executor):
    """A causal language model in a folder, run by transformers' continuous batching."""

    kind: Literal["continuous"]
    """Which executor: a torch model in a process of its own."""
    model: Annotated[str, Field(min_length=1)] = "demo"
    """Folder of the model, or `demo` for the small model that `make serve` installs."""
    served_name: str = ""
    """The model's name in the API; empty: the last part of `model`."""
    device: str = "auto"
    """`auto` (a GPU where there is one), `cpu`, `cuda`, `cuda:1`, ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the weights; `auto` is what the model's files say."""
    threads: CountOrZero = 0
    """CPU threads of torch; 0 is every core but one, which the daemon needs."""
    max_context_tokens: CountOrZero = 0
    """Prompt plus completion of one request at most; 0 is the model's own maximum."""
    num_blocks: CountOrZero = 0
    """Blocks of KV cache; 0 sizes the cache from free memory."""
    block_size: Count = 32
    """Tokens in one block of KV cache."""
    prefix_sharing: Switch = True
    """Whether equal beginnings of prompts share their KV blocks."""
    warmup_sizes: tuple[Count, ...] = (1, 2, 4, 8, 16)
    """Batch sizes stepped through before the worker is ready; their times seed the step model."""

    def settings(self) -> dict[str, Any]:
        """The fields of `executor.contract.ContinuousSettings`, as plain data."""
        settings = self.model_dump(exclude=set(_OWN_KEYS))
        return settings | {"served_name": self.served_name or PurePath(self.model).name}


def _claimed_utilization(value: Any) -> float | str | None:
    if value is None or value == "model":
        return value  # type: ignore[no-any-return]  # narrowed by comparison, mypy cannot see it
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError("should be a fraction from 0 to 1, or model, or null")


class SimulatedExecutor(_Executor):
    """An executor that computes nothing and takes the time that a step model says.

    Time of a step: a + b*context tokens + c*sequences (c_above for those beyond the knee)
    + d*prefill tokens + e*sum of squared prefill lengths.
    """

    kind: Literal["simulated"]
    """Which executor: a simulation, for trying policies and for tests."""
    model: Annotated[str, Field(min_length=1)] = "simulated"
    """The model's name in the API."""
    max_step_tokens: Count = 8192
    """Tokens in one step at most. The envelope of `max_batch_tokens` must fit in."""
    kv_tokens: Count = 65536
    """Tokens of KV memory for all sequences together."""
    max_context_tokens: Count = 8192
    """Prompt plus completion of one request at most."""
    runs_to_completion: Switch = False
    """Whether a batch runs until its last member is done, with no one joining."""
    splits_prefill: Switch = True
    """Whether a long prompt may be spread over several steps."""
    a: Duration = 0.0
    """Time of an empty step."""
    b: Duration = 0.0
    """Time per token of context that a step reads."""
    c: Duration = 0.0
    """Time per sequence in a step, up to the knee."""
    c_above: Duration = 0.0
    """Time per sequence in a step, for those beyond the knee."""
    knee: Count = 1_000_000
    """Number of sequences from which `c_above` applies."""
    d: Duration = 0.0
    """Time per prompt token prefilled."""
    e: Duration = 0.0
    """Time per squared prompt token prefilled."""
    jitter: Annotated[float, Strict(), Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0
    """Relative standard deviation of a step's time."""
    load: Duration = 0.0
    """How long the worker pretends to load before it is ready."""
    utilization: Annotated[
        float | Literal["model"] | None,
        PlainValidator(_claimed_utilization),
        WithJsonSchema(
            {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"enum": ["model", None]}]}
        ),
    ] = None
    """What the device claims: a fraction, `model` (rows over seats), null (no such counter)."""
    output_tokens: Count | None = None
    """Length of a completion in tokens; null: until `max_tokens`."""
    seed: CountOrZero = 0
    """Seed of the bytes that it writes and of the jitter."""

    def settings(self) -> dict[str, Any]:
        """The fields of `executor.contract.SimulatedSettings`, as plain data, times in seconds."""
        timed = {"a", "b", "c", "c_above", "d", "e", "load"}
        plain = self.model_dump(exclude=set(_OWN_KEYS))
        return {f"{key}_s" if key in timed else key: value for key, value in plain.items()}


class UpstreamExecutor(Section):
    """An engine behind HTTP that speaks OpenAI's API; it reads and writes text by itself."""

    name: Name = "main"
    """Unique name, used in metrics and logs."""
    group: Name = "default"
    """Executors of one group share one set of limits; put like with like."""
    kind: Literal["upstream"]
    """Which executor: an engine behind HTTP."""
    url: Annotated[str, Field(pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")]
    """Where it is: everything before `/v1`."""
    engine: Literal["auto", "vllm", "sglang", "tgi", "llamacpp", "transformers", "openai"] = "auto"
    """Which engine it is; `auto` looks at its metrics and at its models, `openai` is any other."""
    model: str = ""
    """The model as the engine calls it; empty: the first that it lists."""
    served_name: str = ""
    """The model's name in the API; empty: as the engine calls it."""
    api_key_env: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    """Environment variable that holds the engine's key; empty: it needs none."""
    max_seqs: Count = 64
    """Requests in flight at once. The envelope of `max_batch_size` must fit in."""
    max_step_tokens: Count = 8192
    """Tokens of prompts in one step, as the engine is set up. The envelope of `max_batch_tokens`
    must fit in."""
    kv_tokens: CountOrZero = 0
    """Tokens of KV memory; 0: as the engine says, and unbounded where it says nothing."""
    max_context_tokens: CountOrZero = 0
    """Prompt plus completion of one request at most; 0: as the engine says, else unbounded."""
    scrape_interval: Annotated[Duration, Field(gt=0)] = 1.0
    """Time between two looks at the engine's `/metrics`."""
    connect_timeout: Annotated[Duration, Field(gt=0)] = 5.0
    """An engine that takes no connection, or does not answer who it is, for so long is away."""
    stall_after: Annotated[Duration, Field(gt=0)] = 60.0
    """Work in flight and no token for this long is a stall: the engine is taken out."""
    restart: Restart = Restart()
    """Pauses before an engine that was taken out is asked again."""

    def settings(self) -> dict[str, Any]:
        """The fields of `executor.upstream_settings.UpstreamSettings` that are written here."""
        return {
            "url": self.url.rstrip("/").removesuffix("/v1"),
            "engine": self.engine,
            "model": self.model,
            "served_name": self.served_name,
            "max_seqs": self.max_seqs,
            "max_step_tokens": self.max_step_tokens,
            "kv_tokens": self.kv_tokens,
            "max_context_tokens": self.max_context_tokens,
            "scrape_interval_s": self.scrape_interval,
            "connect_timeout_s": self.connect_timeout,
        }


ExecutorConfig = Annotated[
    ContinuousExecutor | SimulatedExecutor | UpstreamExecutor, Field(discriminator="kind")
]
