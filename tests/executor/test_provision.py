"""What the settings ask of memory, kernels and precision is had, or refused with a reason."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import dynamic_module_utils

from executor import quantization
from executor.contract import ContinuousSettings
from executor.model import load as load_model
from executor.paged import Advance, PagedBatch
from tests.executor.engine_driver import Driver, assert_same, load, prompt

# Of the tiny model in float32: 2 * 2 layers * 2 heads * 16 * 4 bytes.
TOKEN_BYTES = 512
HAS_BITSANDBYTES = find_spec("bitsandbytes") is not None


class TestKvSize:
    def test_a_size_in_bytes_is_filled_with_whole_blocks(self, tiny_folder: Path) -> None:
        _, ready = load(tiny_folder, kv_memory=1_000_000, block_size=16)
        assert ready.capacity.kv_tokens == 1_000_000 // (16 * TOKEN_BYTES) * 16 == 1952

    def test_a_fraction_is_of_what_is_free(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, here = load(tiny_folder, kv_fraction=0.002)
        free = psutil.virtual_memory().available
        assert here.capacity.kv_tokens * TOKEN_BYTES == pytest.approx(0.002 * free, rel=0.3)
        memory = type("Memory", (), {"available": 2**22, "total": 2**34})
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        _, ready = load(tiny_folder, kv_fraction=0.25, block_size=16, max_step_tokens=64)
        assert ready.capacity.kv_tokens == 2**20 // TOKEN_BYTES == 2048

    def test_less_than_a_block_is_refused(self, tiny_folder: Path) -> None:
        with pytest.raises(ValueError, match="kv_memory 8191 bytes hold no block of 8192"):
            load(tiny_folder, kv_memory=8191, block_size=16)

    def test_more_than_there_is_is_refused(self, tiny_folder: Path) -> None:
        with pytest.raises(ValueError, match=r"do not fit in memory .* lower num_blocks, kv_"):
            load(tiny_folder, kv_memory=2**50)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_with_another_attention_texts_are_the_same(
    tiny_folder: Path, reference: Any, attention: str
) -> None:
    theirs = Driver(load(tiny_folder, attention=attention, num_blocks=40)[0], max_tokens=48)
    ours = Driver(load(tiny_folder)[0])
    for side in (theirs, ours):
        for number, length in enumerate((5, 40, 17, 90)):
            side.submit(str(number), prompt(number, length), 10)
        side.run()
    name = theirs.engine._batch._model.config._attn_implementation
    assert name == {"sdpa": "sdpa", "eager": "paged|eager"}[attention]
    for key, text in theirs.text.items():
        assert_same(reference, ours.requests[key].tokens, text, ours.text[key])


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_without_a_gpu_is_refused(tiny_folder: Path, attention: str) -> None:
    message = f"attention {attention} needs a GPU; auto, sdpa and eager do not"
    with pytest.raises(ValueError, match=message):
        load(tiny_folder, attention=attention)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU for flash attention")
def test_flash_attention_writes_the_same_texts(tiny_folder: Path, reference: Any) -> None:
    pytest.importorskip("flash_attn", reason="needs the package flash-attn")
    side = Driver(
        load(tiny_folder, attention="flash_attention_2", device="cuda", dtype="bfloat16")[0]
    )
    ours = Driver(load(tiny_folder, device="cuda", dtype="bfloat16")[0])
    for one in (side, ours):
        one.submit("a", prompt(1, 40), 4)
        one.run()
    assert side.text == ours.text


class TestOffload:
    def test_without_a_gpu_it_is_refused(self, tiny_folder: Path) -> None:
        with pytest.raises(ValueError, match=r"cpu_offload is for KV on a GPU: on cpu it is in"):
            load(tiny_folder, cpu_offload=2**20)

    def test_what_was_put_aside_goes_on_where_it_was(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a CPU, where nothing can be pinned; all else is as on a GPU."""
        batch = offloading(tiny_folder, monkeypatch, num_blocks=12)
        whole = offloading(tiny_folder, monkeypatch, num_blocks=100)
        assert texts(batch) == texts(whole)
        manager = batch._processor.offloading_manager
        assert put_aside(batch) > 0
        assert manager._request_id_to_cpu_blocks == {}

    def test_who_leaves_while_put_aside_leaves_nothing_there(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        batch = offloading(tiny_folder, monkeypatch, num_blocks=12)
        manager = batch._processor.offloading_manager
        for number in range(4):
            batch.add(str(number), prompt(number, 20), max_new_tokens=30, stop_ids=())
        while not manager._request_id_to_cpu_blocks:
            assert batch.step(256, likeliest)
        batch.drop([str(number) for number in range(4)])
        assert manager._request_id_to_cpu_blocks == {}
        manager._cpu_pool.try_to_free_sectors()
        assert manager._cpu_pool.num_free_sectors == manager._num_cpu_sectors
        assert batch.held_tokens() == 0


def likeliest(logits: torch.Tensor, names: Any) -> torch.Tensor:
    return logits.argmax(dim=-1)


def offloading(folder: Path, patch: pytest.MonkeyPatch, *, num_blocks: int) -> PagedBatch:
    model = load_model(
        ContinuousSettings(
            model=str(folder), served_name="tiny", device="cpu", dtype="float32", threads=1
        )
    ).model
    empty = torch.empty

    def unpinned(*shape: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        return empty(*shape, **more)

    with patch.context() as context:
        context.setattr(torch, "empty", unpinned)
        batch = PagedBatch(
            model,
            max_seqs=8,
            max_step_tokens=256,
            block_size=8,
            num_blocks=num_blocks,
            prefix_sharing=True,
            cpu_offload=2**20,
        )
    batch.aside = 0  # type: ignore[attr-defined]  # counted here only
    offload = batch._processor.offloading_manager._offload_to_cpu

    def counted(*arguments: Any) -> set[str]:
        moved: set[str] = offload(*arguments)
        batch.aside += len(moved)  # type: ignore[attr-defined]  # as above
        return moved

    batch._processor.offloading_manager._offload_to_cpu = counted
    return batch


def put_aside(batch: Any) -> int:
    return int(batch.aside)


def texts(batch: PagedBatch) -> dict[str, list[int]]:
    said: dict[str, list[int]] = {}
    for number in range(4):
        batch.add(str(number), prompt(number, 20), max_new_tokens=30, stop_ids=())
    for moved in steps(batch):
        for advance in moved:
            if advance.token is not None:
                said.setdefault(advance.name, []).append(advance.token)
    return said


def steps(batch: PagedBatch) -> Iterator[list[Advance]]:
    while moved := batch.step(256, likeliest):
        yield moved


class TestWeights:
    def test_without_the_package_fewer_bits_are_refused_with_what_installs_it(
        self, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(quantization, "find_spec", lambda name: None)
        message = "weights 8bit need the package bitsandbytes, .*: pip install .* bitsandbytes$"
        with pytest.raises(ValueError, match=message):
            load(tiny_folder, weights="8bit")

    @pytest.mark.skipif(not HAS_BITSANDBYTES, reason="needs the extra `quant`: bitsandbytes")
    @pytest.mark.parametrize(
        ("weights", "layer", "part"), [("8bit", "Linear8bitLt", 0.3), ("4bit", "Linear4bit", 0.2)]
    )
    def test_linear_layers_take_fewer_bits_all_others_stay_and_texts_are_written(
        self, tiny_folder: Path, weights: str, layer: str, part: float
    ) -> None:
        engine, ready = load(tiny_folder, weights=weights)
        model = engine._batch._model
        projection = model.model.layers[0].mlp.up_proj
        assert type(projection).__name__ == layer
        assert projection.weight.nbytes < part * 64 * 128 * 4
        assert type(model.lm_head).__name__ == "Linear"
        driver = Driver(engine)
        for number, length in enumerate((5, 40, 17)):
            driver.submit(str(number), prompt(number, length), 12)
        driver.run()
        assert {len(text) for text in driver.text.values()} == {12}
        # The KV cache is of the computation's precision.
        assert ready.capacity.kv_tokens * TOKEN_BYTES == engine._batch._pool_bytes

    def test_weights_that_are_packed_already_are_refused(
        self, tiny_folder: Path, tmp_path: Path
    ) -> None:
        folder = Path(shutil.copytree(tiny_folder, tmp_path / "model"))
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="stored in fewer bits already; leave it out"):
            load(folder, weights="4bit")


class TestTrustedCode:
    CODE = (
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class MyConfig(LlamaConfig):\n    model_type = 'mine'\n"
        "class MyModel(LlamaForCausalLM):\n    config_class = MyConfig\n"
    )

    @pytest.fixture
    def folder(
        self, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Path]:
        folder = Path(shutil.copytree(tiny_folder, tmp_path / "mine"))
        config = json.loads((folder / "config.json").read_text())
        config["model_type"] = "mine"
        config["auto_map"] = {"AutoConfig": "own.MyConfig", "AutoModelForCausalLM": "own.MyModel"}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "own.py").write_text(self.CODE)
        modules = tmp_path / "modules"
        monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(modules))
        before = list(sys.path)
        yield folder
        sys.path[:] = before

    def test_code_in_the_folder_is_run_only_where_it_is_trusted(self, folder: Path) -> None:
        with pytest.raises(ValueError, match="trust_remote_code"):
            load(folder)
        engine, _ = load(folder, trust_remote_code=True, num_blocks=40)
        assert type(engine._batch._model).__name__ == "MyModel"
        driver = Driver(engine)
        driver.submit("a", prompt(1, 10), 5)
        assert len(driver.run()["a"]) == 5
