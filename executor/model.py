"""What is loaded from a model's folder, in which precision, and what the gateway is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from executor import packing
from executor.contract import ModelSettings, TextModel
from executor.quantization import quantization

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run. `max_context_tokens` is prompt plus output of one sequence."""

    model: Any
    text: TextModel
    device: torch.device
    vocabulary: int
    eos_token_ids: tuple[int, ...]
    max_context_tokens: int


def load(settings: ModelSettings, *, attention: str | None = None) -> Loaded:
    """Load a causal language model from a folder: safetensors only, and code from the folder only
    where it is trusted. `attention` is how transformers calls an implementation, None its own
    choice.

    Raises ValueError, saying what is wrong with the folder or the settings and what would do.
    """
    quieten: Any = transformers_logging  # not typed
    quieten.disable_progress_bar()
    folder = _checked(Path(settings.model))
    device = _device(settings.device)
    try:
        trusted = settings.trust_remote_code
        config = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trusted
        )
        text = text_model(tokenizer)
        length = _max_context(config.get_text_config(), settings)
        dtype = _dtype(settings.dtype, getattr(config, "dtype", None), device)
        result: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            quantization_config=quantization(settings.weights, config, dtype=dtype),
            attn_implementation=attention,
            device_map={"": device},
            local_files_only=True,
            trust_remote_code=trusted,
            use_safetensors=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ValueError(f"model folder {folder}: {error}") from error
    model, found = result
    if found["missing_keys"]:
        # transformers only warns, and then runs on random numbers.
        missing = sorted(found["missing_keys"])
        raise ValueError(
            f"model folder {folder}: {len(missing)} weights are missing, {missing[0]} among them"
        )
    model.requires_grad_(False)
    model.eval()
    if packing.can_pack(model):
        packing.pack(model)
    return Loaded(
        model=model,
        text=text,
        device=device,
        vocabulary=config.get_text_config().vocab_size,
        eos_token_ids=_eos_token_ids(model.generation_config, config, tokenizer),
        max_context_tokens=length,
    )


def text_model(tokenizer: Any) -> TextModel:
    """What the gateway needs to tokenise just as `tokenizer` does.

    Raises ValueError for a tokenizer that the `tokenizers` library cannot express.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"{type(tokenizer).__name__} has no fast form; a tokenizer.json in the folder is needed"
        )
    # Not the file: transformers adjusts what it reads, and its ids are the ones that count.
    backend.no_truncation()
    backend.no_padding()
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    special = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    return TextModel(
        kind="tokenizers",
        tokenizer_json=backend.to_str(),
        chat_template=template,
        special_tokens=special,
    )


def _checked(folder: Path) -> Path:
    if not folder.is_dir():
        raise ValueError(
            f"model folder {folder} does not exist; models are read from folders, never downloaded"
        )
    if not (folder / "config.json").is_file():
        raise ValueError(f"model folder {folder} has no config.json; it is no transformers model")
    if not any(folder.glob("*.safetensors")):
        pickled = [path.name for pattern in _PICKLED for path in folder.glob(pattern)]
        found = f"only pickled ones ({pickled[0]})" if pickled else "none"
        raise ValueError(f"model folder {folder} has no *.safetensors weights, {found}")
    return folder


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
        if device.type == "cuda" and device.index is not None:
            # What is free, and where kernels run, is asked of the current device.
            torch.cuda.set_device(device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(f"device {name!r} cannot be used here: {error}") from error
    return device


def _dtype(wanted: str, stored: Any, device: torch.device) -> torch.dtype:
    if wanted != "auto":
        dtype: torch.dtype = getattr(torch, wanted)
        return dtype
    is_bfloat16 = stored in (torch.bfloat16, "bfloat16")
    return torch.bfloat16 if device.type == "cuda" or is_bfloat16 else torch.float32


def _max_context(config: Any, settings: ModelSettings) -> int:
    lengths = [getattr(config, key, None) for key in _LENGTH_KEYS]
    own = next((length for length in lengths if isinstance(length, int)), None)
    wanted = settings.max_context_tokens
    if own is None and wanted == 0:
        raise ValueError("config.json tells no maximum length; set max_context_tokens")
    if own is not None and wanted > own:
        raise ValueError(f"max_context_tokens {wanted} is beyond the model's own {own}")
    return wanted or int(own or 0)


def _eos_token_ids(
    generation: GenerationConfig | None, config: Any, tokenizer: Any
) -> tuple[int, ...]:
    for source in (generation, config.get_text_config(), tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)
    return ()
