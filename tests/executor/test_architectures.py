"""Models other than the demo's: the same text as by themselves, or a clear refusal."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from tests.executor.engine_driver import Driver, assert_same, held, load, prompt

COMMON: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
GROUPED = COMMON | {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "initializer_range": 0.2,
}


def write(config: PreTrainedConfig, tiny_folder: Path, folder: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        make: Any = AutoModelForCausalLM  # not typed
        model = make.from_config(config)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_folder / name, folder / name)
    return folder


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**GROUPED),
        MistralConfig(**GROUPED, sliding_window=16),
        Gemma3TextConfig(**GROUPED, sliding_window=16),
        GPT2Config(**COMMON),
    ],
    ids=lambda config: config.model_type,
)
def test_the_text_is_that_of_the_model_by_itself(
    config: PreTrainedConfig, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = write(config, tiny_folder, tmp_path / "model")
    engine, _ = load(folder, num_blocks=64, warmup_sizes=(1, 2))
    driver = Driver(engine, max_tokens=40)
    prompts = [prompt(i, length) for i, length in enumerate((50, 5, 30))]
    for i, tokens in enumerate(prompts):
        driver.submit(str(i), tokens, 10)
    driver.run()
    assert held(engine) == (0, True)
    alone: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for i, tokens in enumerate(prompts):
        whole = alone.eval().generate(
            torch.tensor([tokens]),
            attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
            max_new_tokens=10,
            do_sample=False,
            suppress_tokens=[2],
        )
        assert_same(alone, tokens, driver.text[str(i)], whole[0, len(tokens) :].tolist())


def test_a_model_whose_code_is_not_made_for_this_is_refused(
    tiny_folder: Path, tmp_path: Path
) -> None:
    config = OPTConfig(**COMMON, ffn_dim=128, word_embed_proj_dim=64)
    folder = write(config, tiny_folder, tmp_path / "model")
    with pytest.raises(ValueError, match=r"^opt models cannot be batched continuously: "):
        load(folder, num_blocks=64)
