"""What a model takes of memory, told by its config.json and the headers of its weights alone.

No weight is read and no torch imported: a plan for a model of any size takes a moment.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

WeightBits = Literal["full", "8bit", "4bit"]

BYTES: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
)
# As safetensors writes them: what is a number with a fraction, and is loaded in the dtype asked.
_FLOATS = frozenset({"F64", "F32", "BF16", "F16"})
_STORED: Mapping[str, float] = MappingProxyType(
    {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2}
)
_DTYPES: Mapping[str, str] = MappingProxyType(
    {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
)
# Not linear layers, or one whose logits would suffer: bitsandbytes leaves these as they are.
_NOT_PACKED = ("embed", "wte", "wpe", "lm_head")
# bitsandbytes: 8 bit have a scale a row, 4 bit (NF4) one for 64 weights; float32 both.
_SCALE_BYTES, _NF4_GROUP = 4, 64
_MOST_HEADER = 100 * 2**20

_FULL, _SLIDING = "full_attention", "sliding_attention"


class Unreadable(ValueError):
    """A folder of which nothing can be told, or nothing that would be true; says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the weights: its name, dtype as safetensors writes it, and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Kv:
    """What a sequence keeps: keys and values of `kv_heads` heads of `head_dim` numbers in each
    layer. `sliding_layers` keep those of the last `window` tokens, `full_layers` of all."""

    full_layers: int
    sliding_layers: int
    window: int
    kv_heads: int
    head_dim: int

    def bytes_of(self, tokens: int, number_bytes: int, *, parts: int = 1) -> int:
        """Bytes of a sequence, on each of `parts` devices that share its heads."""
        layer = 2 * self.kv_heads // parts * self.head_dim * number_bytes
        return layer * (self.full_layers * tokens + self.sliding_layers * min(tokens, self.window))


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a model by its folder. `max_tokens` is None where the files do not say."""

    name: str
    type: str
    tensors: tuple[Tensor, ...]
    kv: Kv
    max_tokens: int | None
    is_packed: bool

    @property
    def weights(self) -> int:
        """How many weights it has."""
        return sum(tensor.numbers for tensor in self.tensors)

    @property
    def dtype(self) -> str:
        """In which most weights are stored."""
        counts: dict[str, int] = {}
        for tensor in self.tensors:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + tensor.numbers
        return _DTYPES.get(max(counts, key=lambda one: counts[one]), "float32")

    def weight_bytes(self, dtype: str, bits: WeightBits = "full") -> int:
        """Bytes of the weights in this dtype, with the linear layers in so many bits."""
        return math.ceil(sum(self._bytes(tensor, BYTES[dtype], bits) for tensor in self.tensors))

    def _bytes(self, tensor: Tensor, number_bytes: int, bits: WeightBits) -> float:
        if self.is_packed or tensor.dtype not in _FLOATS:
            return tensor.numbers * _STORED.get(tensor.dtype, 1)
        is_linear = len(tensor.shape) == 2 and not any(w in tensor.name for w in _NOT_PACKED)
        if bits == "full" or not is_linear:
            return tensor.numbers * number_bytes
        if bits == "8bit":
            return tensor.numbers + tensor.shape[0] * _SCALE_BYTES
        return tensor.numbers / 2 + tensor.numbers / _NF4_GROUP * _SCALE_BYTES


def read(folder: Path) -> Model:
    """What a model's folder says. Raises Unreadable."""
    config = _json(folder / "config.json")
    text = config.get("text_config") or config
    if config.get("is_encoder_decoder"):
        raise Unreadable(f"{folder}: models with an encoder and a decoder are not served")
    tensors = tuple(tensor for path in _files(folder) for tensor in _header(path))
    return Model(
        name=folder.name,
        type=str(config.get("model_type", "unknown")),
        tensors=tensors,
        kv=_kv(folder, text),
        max_tokens=_first(text, "max_position_embeddings", "n_positions", "seq_length"),
        is_packed=bool(config.get("quantization_config")),
    )


def _files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise Unreadable(f"{folder}: there are no *.safetensors weights")
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return paths
    # A folder may hold the weights twice, in parts and as a whole.
    names = set(_json(index).get("weight_map", {}).values())
    if missing := sorted(name for name in names if not (folder / str(name)).is_file()):
        raise Unreadable(f"{folder}: {missing[0]} is missing, which the index names")
    return [path for path in paths if path.name in names]


def _header(path: Path) -> Iterator[Tensor]:
    """The tensors of a file. The first 8 bytes are the length of the JSON that follows."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _MOST_HEADER:
                raise Unreadable(f"{path}: is no safetensors file")
            header = json.loads(file.read(length))
        for name, about in header.items():
            if name != "__metadata__":
                yield Tensor(name, str(about["dtype"]), tuple(int(n) for n in about["shape"]))
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Unreadable(f"{path}: is no safetensors file ({error})") from error


def _kv(folder: Path, config: Mapping[str, Any]) -> Kv:
    if config.get("kv_lora_rank"):
        raise Unreadable(
            f"{folder}: its KV is compressed (multi-head latent attention); what an engine keeps "
            "of it differs from engine to engine, and is not reckoned here"
        )
    layers = _first(config, "num_hidden_layers", "n_layer", "num_layers")
    heads = _first(config, "num_attention_heads", "n_head", "num_heads")
    width = _first(config, "hidden_size", "n_embd", "d_model")
    head_dim = _first(config, "head_dim") or (width // heads if width and heads else None)
    if layers is None or heads is None or head_dim is None:
        raise Unreadable(f"{folder}/config.json: says not how many layers and heads there are")
    window = _first(config, "sliding_window")
    if config.get("use_sliding_window") is False:
        window = None
    kinds = config.get("layer_types")
    if kinds is None:
        kinds = [_FULL if window is None else _SLIDING] * layers
    if others := sorted(set(map(str, kinds)) - {_FULL, _SLIDING}):
        raise Unreadable(
            f"{folder}: layers of type {others[0]} do not keep keys and values of their tokens; "
            "what such a model takes is not reckoned here"
        )
    sliding = sum(kind == _SLIDING for kind in kinds) if window is not None else 0
    return Kv(
        full_layers=len(kinds) - sliding,
        sliding_layers=sliding,
        window=window or 0,
        kv_heads=_first(config, "num_key_value_heads") or heads,
        head_dim=head_dim,
    )


def _first(config: Mapping[str, Any], *names: str) -> int | None:
    found = (config.get(name) for name in names)
    return next((n for n in found if isinstance(n, int) and not isinstance(n, bool)), None)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Unreadable(f"{path}: cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise Unreadable(f"{path}: should hold a JSON object")
    return content
