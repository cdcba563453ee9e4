"""Loading a folder: what the gateway is told, and a clear word for every folder that cannot be."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from executor.contract import ContinuousSettings
from executor.model import load
from executor.paged import PagedBatch
from tests.tiny_model import CHAT_TEMPLATE

CORPUS = (
    "What is the capital of France?",
    "größer 你好。 привет 🙂🚌 0123",
    "   two  spaces\n\nand\tlines ",
    "<|im_start|>user\nhello<|im_end|>\n",
    "",
)


def settings(folder: Path, **chosen: Any) -> ContinuousSettings:
    return ContinuousSettings(model=str(folder), served_name="tiny", device="cpu", **chosen)


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text())
    content.update(changes)
    path.write_text(json.dumps(content))


def test_the_gateway_tokenises_just_as_transformers_does(tiny_folder: Path) -> None:
    text = load(settings(tiny_folder)).text
    ours = Tokenizer.from_str(text.tokenizer_json)
    theirs: Any = AutoTokenizer.from_pretrained(tiny_folder)
    assert [ours.encode(line).ids for line in CORPUS] == [theirs(line).input_ids for line in CORPUS]
    assert text.kind == "tokenizers"
    assert text.chat_template == CHAT_TEMPLATE
    assert text.special_tokens == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }


def test_without_a_chat_template_there_is_none(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    assert load(settings(folder)).text.chat_template is None


def test_of_several_chat_templates_the_default_is_taken(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert load(settings(folder)).text.chat_template == CHAT_TEMPLATE


@pytest.mark.parametrize(("ids", "expected"), [(2, (2,)), ([2, 0], (2, 0))])
def test_the_end_of_text_may_be_one_token_or_several(
    folder: Path, ids: int | list[int], expected: tuple[int, ...]
) -> None:
    edit(folder / "generation_config.json", eos_token_id=ids)
    assert load(settings(folder)).eos_token_ids == expected


def test_the_precision_is_the_stored_one_unless_another_is_asked_for(folder: Path) -> None:
    assert load(settings(folder)).model.dtype == torch.float32
    assert load(settings(folder, dtype="bfloat16")).model.dtype == torch.bfloat16
    edit(folder / "config.json", dtype="bfloat16")
    assert load(settings(folder)).model.dtype == torch.bfloat16
    # Half precision has no fast form on a CPU.
    edit(folder / "config.json", dtype="float16")
    assert load(settings(folder)).model.dtype == torch.float32


def test_the_context_is_the_models_own_or_a_shorter_one(tiny_folder: Path) -> None:
    assert load(settings(tiny_folder)).max_context_tokens == 1024
    assert load(settings(tiny_folder, max_context_tokens=100)).max_context_tokens == 100


def remove_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def only_pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def foreign_code(folder: Path) -> None:
    edit(
        folder / "config.json",
        model_type="strange",
        auto_map={"AutoConfig": "strange.Config", "AutoModelForCausalLM": "strange.Model"},
    )


def other_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")


def cut_short(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, r"does not exist; models are read from folders, never downloaded"),
        (remove_config, r"has no config\.json; it is no transformers model"),
        (only_pickled, r"no \*\.safetensors weights, only pickled ones \(pytorch_model\.bin\)"),
        (no_weights, r"no \*\.safetensors weights, none"),
        (no_tokenizer, r"model folder .*tokenizer"),
        (foreign_code, r"model folder .*(custom code|trust_remote_code)"),
        (other_weights, r"model folder .*: 21 weights are missing, lm_head\.weight among them"),
        (cut_short, r"model folder .*: .*(incomplete|deserializ)"),
    ],
)
def test_a_folder_that_cannot_be_served_says_why(
    folder: Path, spoil: Callable[[Path], None], message: str
) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=message):
        load(settings(folder))


def test_a_context_beyond_the_models_own_is_refused_with_both_numbers(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"max_context_tokens 2048 is beyond the model's own 1024"):
        load(settings(tiny_folder, max_context_tokens=2048))


def test_a_device_that_is_not_there_is_refused(tiny_folder: Path) -> None:
    wanted = ContinuousSettings(model=str(tiny_folder), served_name="tiny", device="teapot")
    with pytest.raises(ValueError, match="device 'teapot' cannot be used here"):
        load(wanted)


@pytest.mark.skipif("HEADWAY_DEMO_MODEL" not in os.environ, reason="HEADWAY_DEMO_MODEL is not set")
def test_the_demo_model_knows_the_capital_of_france() -> None:
    """HEADWAY_DEMO_MODEL is the folder that `python -m executor.demo_model` prints."""
    torch.set_num_threads(1)
    folder = Path(os.environ["HEADWAY_DEMO_MODEL"])
    loaded = load(settings(folder))
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    tokens = list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"])
    batch = PagedBatch(
        loaded.model,
        max_seqs=1,
        max_step_tokens=64,
        block_size=32,
        num_blocks=8,
        prefix_sharing=True,
    )
    batch.add("a", tokens, max_new_tokens=16, stop_ids=loaded.eos_token_ids)
    text = []
    while moved := batch.step(64, lambda logits, names: logits.argmax(dim=-1)):
        text += [advance.token for advance in moved]
    assert tokenizer.decode(text) == "The capital of France is Paris.<|im_end|>"
