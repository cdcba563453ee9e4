"""`headway capacity` says what fits where, and why something does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from executor import demo_folder
from gateway.cli import app
from metrics import gpu
from tests.executor.test_footprint import LLAMA, TENSORS, folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (path := tmp_path / "Llama").mkdir()
    tensors = TENSORS | {"model.layers.0.mlp.down_proj.weight": ("BF16", [1_000_000, 8000])}
    return folder(path, LLAMA, tensors.items())


def run(*words: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["capacity", *map(str, words)])
    return result.exit_code, result.output


def plan(*words: Any) -> Any:
    code, said = run(*words, "--json")
    assert code == 0, said
    return json.loads(said)


def test_the_table_says_what_takes_what_and_what_fits(model: Path) -> None:
    code, said = run(model, "--device", "A100-80GB")
    assert code == 0
    assert said == (
        "model    Llama (llama), 8,000.1 M weights\n"
        "weights  14.9 GiB in bfloat16\n"
        "KV       128.0 KiB a token in bfloat16: keys and values, 32 layers, 8 heads of 128\n"
        "memory   80.0 GiB free of 80.0 GiB on A100-80GB\n"
        "for KV   57.1 GiB: 90% of what is free, without the weights\n"
        "         467,751 tokens of all sequences together: num_blocks 14617 of 32 tokens\n"
        "\n"
        " tokens each  sequences at once\n"
        "         256              1,827\n"
        "         512                913\n"
        "       1,024                456\n"
        "       2,048                228\n"
        "       4,096                114\n"
        "       8,192                 57\n"
    )


def test_fewer_bits_a_smaller_kv_and_more_devices_leave_more(model: Path) -> None:
    place = ("--memory", "24GiB")
    full = plan(model, *place)
    assert (full["device"], full["memory_bytes"]) == ("a device of 24GiB", 24 * 2**30)
    assert plan(model, *place, "--weights", "8bit")["weight_bytes"] < 0.51 * full["weight_bytes"]
    assert plan(model, *place, "--weights", "4bit")["weight_bytes"] < 0.29 * full["weight_bytes"]
    small = plan(model, *place, "--kv-dtype", "float8")
    assert small["kv_bytes_per_token"] == full["kv_bytes_per_token"] // 2 == 65536
    shared = plan(model, *place, "--tensor-parallel", 4)
    assert shared["kv_bytes_per_token"] == full["kv_bytes_per_token"] // 4
    assert shared["weight_bytes"] == -(-full["weight_bytes"] // 4)
    assert shared["fits"][0]["sequences"] > 4 * full["fits"][0]["sequences"]


def test_of_a_gpu_that_others_use_too_only_what_is_free_counts(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = gpu.GpuSample(0.5, memory_used=20 * 2**30, memory_size=80 * 2**30)
    monkeypatch.setattr(gpu.GpuMeter, "sample", lambda self: sample)
    shared = plan(model)
    assert (shared["device"], shared["dtype"]) == ("cuda", "bfloat16")
    assert (shared["free_bytes"], shared["memory_bytes"]) == (60 * 2**30, 80 * 2**30)
    assert shared["kv_bytes"] == 54 * 2**30 - shared["weight_bytes"]


def test_without_a_gpu_it_is_what_is_available_of_the_machines_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu.GpuMeter, "sample", lambda self: None)
    memory = type("Memory", (), {"available": 40 * 2**30, "total": 64 * 2**30})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    here = plan(model)
    assert (here["device"], here["free_bytes"]) == ("this machine's CPU", 40 * 2**30)
    code, said = run(model, "--device", "cuda:1")
    assert (code, said) == (1, "headway: --device cuda:1: there is none that NVML can read\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--memory", "8GiB"), "the weights take 14.9 GiB, and 90% of what is free on a device of"),
        (("--memory", "24"), "--memory 24: should be a number with its unit"),
        (("--memory", "24GiB", "--device", "T4"), "--device T4 says how much there is"),
        (("--device", "A100"), "--device A100: is not known; there are auto, cpu, cuda, T4"),
        (("--memory", "24GiB", "--tensor-parallel", "3"), "the 8 KV heads of"),
    ],
)
def test_what_cannot_be_is_told(model: Path, words: tuple[str, ...], message: str) -> None:
    code, said = run(model, *words)
    assert code == 1
    assert message in said


def test_a_demo_that_is_not_there_is_told_with_the_command_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, said = run("demo", "--memory", "80GiB")
    assert (code, "make it with `python -m executor.demo_model`" in said) == (1, True)
    monkeypatch.setattr(demo_folder, "made", lambda: model)
    assert run("demo", "--memory", "80GiB")[0] == 0


def test_no_torch_is_imported(model: Path) -> None:
    program = (
        "import sys; from gateway.cli import app; "
        f"app(['capacity', {str(model)!r}, '--memory', '80GiB'], standalone_mode=False); "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
