"""Models other than the demo's: the same text as by themselves, or a clear refusal."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoConfig,
    JambaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen3Config,
    RwkvConfig,
)

from tests.executor.alone import write_alone
from tests.executor.engine_driver import (
    GREEDY,
    Driver,
    assert_same,
    held,
    load,
    load_padded,
    prompt,
)

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
    with pytest.raises(ValueError, match=r"^opt models cannot be batched continuously: .*padded"):
        load(folder, num_blocks=64)


ALIBI: dict[str, Any] = {"vocab_size": 384, "hidden_size": 64, "initializer_range": 0.2}
OLD = [
    GPT2Config(**COMMON, initializer_range=0.2),
    OPTConfig(**COMMON, ffn_dim=128, word_embed_proj_dim=64, init_std=0.2),
    BloomConfig(**ALIBI, n_layer=2, n_head=4),
    FalconConfig(**ALIBI, num_hidden_layers=2, num_attention_heads=4, alibi=True),
    GPTNeoConfig(
        vocab_size=384,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
        eos_token_id=2,
        max_position_embeddings=256,
        initializer_range=0.2,
    ),
    Gemma3TextConfig(**GROUPED, sliding_window=16),
    # Layers with a state beside layers with keys.
    JambaConfig(
        **{key: value for key, value in GROUPED.items() if key != "head_dim"},
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=2,
        mamba_d_state=8,
    ),
]


@pytest.mark.parametrize("config", OLD, ids=lambda config: config.model_type)
def test_padded_the_text_is_that_of_the_model_by_itself(
    config: PreTrainedConfig, tiny_folder: Path, tmp_path: Path
) -> None:
    """Learned, rotated and no positions, windows and states; begun together and in parts, some
    longer than others."""
    folder = write(config, tiny_folder, tmp_path / "model")
    engine, ready = load_padded(
        folder, max_step_tokens=64, max_context_tokens=256, warmup_sizes=(1, 2)
    )
    driver = Driver(engine)
    asked = [(50, 3), (5, 10), (30, 7)]
    for length, new in asked:
        driver.submit(f"{length}", prompt(length, length), new)
    driver.run()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for length, new in asked:
        alone = write_alone(
            model,
            prompt(length, length),
            new,
            sampling=GREEDY,
            eos=ready.capacity.eos_token_ids,
        )
        alone.assert_same(driver.text[f"{length}"], driver.ended[f"{length}"].reason)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            MambaConfig(**ALIBI, num_hidden_layers=2, state_size=8),
            r"^mamba models cannot be batched with padding: it changes the logits by \d\d% of",
        ),
        (
            RwkvConfig(vocab_size=384, hidden_size=64, num_hidden_layers=2, context_length=64),
            r"^rwkv models cannot be batched with padding: transformers knows no cache",
        ),
    ],
    ids=["mamba", "rwkv"],
)
def test_a_model_that_padding_disturbs_is_refused(
    config: PreTrainedConfig, message: str, tiny_folder: Path, tmp_path: Path
) -> None:
    folder = write(config, tiny_folder, tmp_path / "model")
    with pytest.raises(ValueError, match=message):
        load_padded(folder, max_context_tokens=64)


def test_a_model_whose_attention_cannot_be_replaced_is_refused_continuously(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = write(BloomConfig(**ALIBI, n_layer=2, n_head=4), tiny_folder, tmp_path / "model")
    with pytest.raises(ValueError, match=r"^bloom models .* not replaceable .* `kind: padded`"):
        load(folder, max_context_tokens=64)
