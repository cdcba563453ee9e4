"""How large the KV cache is, and whether what the settings ask for is there at all."""

from __future__ import annotations

from importlib.util import find_spec
from types import MappingProxyType

import psutil
import torch

from executor import model as models
from executor import paged
from executor.contract import ContinuousSettings

_CPU_KV_BYTES = 2**30
_FLASH = MappingProxyType(
    {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
)


def check_attention(settings: ContinuousSettings) -> None:
    """Raises ValueError where a kernel is asked for that is not there."""
    if (package := _FLASH.get(settings.attention)) is None:
        return
    if settings.device == "cpu" or not torch.cuda.is_available():
        raise ValueError(f"attention {settings.attention} needs a GPU; auto, sdpa and eager do not")
    if find_spec(package) is None:
        raise ValueError(
            f"attention {settings.attention} needs the package {package}, which is not installed"
        )


def check_offload(settings: ContinuousSettings, device: torch.device) -> None:
    """Raises ValueError where KV cannot be put aside into so much of the machine's memory."""
    size = settings.cpu_offload
    if size and device.type != "cuda":
        raise ValueError(
            f"cpu_offload is for KV on a GPU: on {device} it is in the machine's memory already"
        )
    if size > (available := psutil.virtual_memory().available):
        raise ValueError(f"cpu_offload {size} bytes are more than the {available} that are free")


def memory_fraction(settings: ContinuousSettings, device: torch.device) -> float | None:
    """The part of free memory that KV and steps may have together; None: transformers' choice."""
    if device.type == "cpu" and (settings.kv_memory or settings.kv_fraction):
        # How much KV has is reckoned here, and all the rest is there for the steps.
        return 1.0
    return settings.kv_fraction


def num_blocks(loaded: models.Loaded, settings: ContinuousSettings) -> int | None:
    """KV blocks where the settings name no number; None lets transformers fill an accelerator.

    On a CPU, if nothing else is said, 1 GiB, or one longest sequence if that is more, within a
    quarter of what is free.
    """
    token_bytes = paged.token_bytes(loaded.model)
    block_bytes = token_bytes * settings.block_size
    if (budget := settings.kv_memory) is not None:
        if budget < block_bytes:
            raise ValueError(f"kv_memory {budget} bytes hold no block of {block_bytes}")
        return budget // block_bytes
    if loaded.device.type != "cpu":
        return None
    available = psutil.virtual_memory().available
    if settings.kv_fraction is not None:
        return max(1, int(settings.kv_fraction * available) // block_bytes)
    longest = loaded.max_context_tokens * token_bytes
    budget = min(max(_CPU_KV_BYTES, longest), settings.max_seqs * longest, available // 4)
    return max(1, -(-budget // block_bytes))
