"""Whether the linear layers of a model are loaded in fewer bits, and by what."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Any, Literal

import torch
from transformers import BitsAndBytesConfig

PACKAGE = "bitsandbytes"


def quantization(
    weights: Literal["full", "8bit", "4bit"], config: Any, *, dtype: torch.dtype
) -> Any | None:
    """What `from_pretrained` takes as `quantization_config`; None: weights stay as they are.

    8 bit is LLM.int8 (Dettmers et al. 2022), 4 bit is NF4 (Dettmers et al. 2023), computed in
    `dtype`. Raises ValueError where that cannot be had.
    """
    if weights == "full":
        return None
    if getattr(config, "quantization_config", None) is not None:
        raise ValueError(
            f"weights {weights}: those of this model are stored in fewer bits already; leave it out"
        )
    if find_spec(PACKAGE) is None:
        raise ValueError(
            f"weights {weights} need the package {PACKAGE}, which is not installed:"
            f" pip install -c constraints.txt {PACKAGE}"
        )
    made: Any = BitsAndBytesConfig  # its constructor is not typed
    if weights == "8bit":
        # It tells at every step that it computes in float16.
        logging.getLogger(f"{PACKAGE}.autograd._functions").setLevel(logging.ERROR)
        return made(load_in_8bit=True)
    return made(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
