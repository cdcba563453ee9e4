"""What a folder says of the memory that its model takes is what the model then takes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from executor import paged
from executor.footprint import BYTES, Kv, Unreadable, read

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
TENSORS = {
    "model.embed_tokens.weight": ("BF16", [1000, 64]),
    "model.layers.0.mlp.up_proj.weight": ("BF16", [128, 64]),
    "model.norm.weight": ("BF16", [64]),
    "steps": ("I64", [1]),
    "lm_head.weight": ("BF16", [1000, 64]),
}


def folder(path: Path, config: dict[str, Any], tensors: Any = TENSORS) -> Path:
    """A model's folder without its weights: only the header says that there are some."""
    (path / "config.json").write_text(json.dumps(config))
    header = {name: {"dtype": d, "shape": s, "data_offsets": [0, 0]} for name, (d, s) in tensors}
    data = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(data)) + data)
    return path


def made(path: Path, **config: Any) -> Path:
    return folder(path, LLAMA | config, TENSORS.items())


def test_the_tiny_model_takes_what_is_reckoned(tiny_folder: Path, reference: Any) -> None:
    known = read(tiny_folder)
    parameters = list(reference.parameters())
    assert known.weights == sum(one.numel() for one in parameters)
    assert known.weight_bytes("float32") == sum(one.numel() * 4 for one in parameters)
    assert known.kv.bytes_of(1, BYTES["float32"]) == paged.token_bytes(reference)
    assert (known.type, known.dtype, known.max_tokens) == ("llama", "float32", 1024)


def test_keys_and_values_of_every_layer_and_head_are_kept(tmp_path: Path) -> None:
    known = read(made(tmp_path))
    assert known.kv == Kv(32, 0, 0, 8, 128)
    # 2 * 32 layers * 8 heads * 128 * 2 bytes, as Llama 3 8B is known to take.
    assert known.kv.bytes_of(1, 2) == 131072
    assert known.kv.bytes_of(1000, 2, parts=8) == 16_384_000


@pytest.mark.parametrize(
    ("config", "kv"),
    [
        ({"head_dim": 64}, Kv(32, 0, 0, 8, 64)),
        ({"num_key_value_heads": None}, Kv(32, 0, 0, 32, 128)),
        ({"sliding_window": 4096}, Kv(0, 32, 4096, 8, 128)),
        ({"sliding_window": 4096, "use_sliding_window": False}, Kv(32, 0, 0, 8, 128)),
        (
            {"sliding_window": 512, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
            Kv(1, 3, 512, 8, 128),
        ),
        ({"text_config": LLAMA | {"head_dim": 32}}, Kv(32, 0, 0, 8, 32)),
    ],
)
def test_what_a_configuration_says_of_layers_and_heads(
    tmp_path: Path, config: dict[str, Any], kv: Kv
) -> None:
    assert read(made(tmp_path, **config)).kv == kv


def test_older_names_are_read_too(tmp_path: Path) -> None:
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}
    known = read(folder(tmp_path, gpt2, TENSORS.items()))
    assert (known.kv, known.max_tokens) == (Kv(12, 0, 0, 12, 64), 1024)


def test_layers_of_a_window_keep_no_more_than_it() -> None:
    kv = Kv(full_layers=1, sliding_layers=3, window=512, kv_heads=1, head_dim=1)
    assert [kv.bytes_of(tokens, 1) for tokens in (1, 512, 1000)] == [8, 4096, 2 * (1000 + 3 * 512)]


def test_only_linear_layers_are_packed_and_their_scales_are_counted(tmp_path: Path) -> None:
    known = read(made(tmp_path))
    rest, linear = 2 * 64_000 + 64, 128 * 64
    assert known.weight_bytes("bfloat16") == 2 * (rest + linear) + 8
    assert known.weight_bytes("float32") == 4 * (rest + linear) + 8
    assert known.weight_bytes("bfloat16", "8bit") == 2 * rest + 8 + linear + 128 * 4
    assert known.weight_bytes("bfloat16", "4bit") == 2 * rest + 8 + linear // 2 + linear // 16


def test_weights_that_are_packed_in_their_files_are_counted_as_they_are(tmp_path: Path) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": "fp8"}}
    tensors = {"a.weight": ("F8_E4M3", [10, 10]), "a.scale": ("F32", [10])}
    known = read(folder(tmp_path, config, tensors.items()))
    assert (known.is_packed, known.weight_bytes("bfloat16")) == (True, 140)


def test_of_weights_in_parts_those_count_that_the_index_names(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "consolidated.safetensors").write_bytes(b"the same once more")
    index = {"weight_map": dict.fromkeys(TENSORS, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(read(tmp_path).tensors) == 5
    index["weight_map"]["more"] = "model-00002-of-00002.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Unreadable, match=r"model-00002-of-00002.safetensors is missing"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"kv_lora_rank": 512}, "its KV is compressed"),
        (
            {"layer_types": ["linear_attention", "full_attention"]},
            "layers of type linear_attention",
        ),
        ({"is_encoder_decoder": True}, "an encoder and a decoder"),
        ({"num_hidden_layers": None}, "says not how many layers"),
    ],
)
def test_what_would_be_a_guess_is_refused(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(made(tmp_path, **config))


@pytest.mark.parametrize("data", [b"", b"\xff" * 16, b"\x05\0\0\0\0\0\0\0[1,2]"])
def test_what_is_no_safetensors_file_is_told(tmp_path: Path, data: bytes) -> None:
    made(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(Unreadable, match=r"model.safetensors: is no safetensors file"):
        read(tmp_path)


def test_a_folder_without_a_configuration_or_weights_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match=r"config.json: cannot be read"):
        read(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(Unreadable, match=r"there are no \*.safetensors weights"):
        read(tmp_path)
