"""What an executor that runs padded batches to completion can do, and how much fits into it."""

from __future__ import annotations

import psutil
import torch

from executor.continuous import FEATURES
from executor.contract import Capacity, Feature, PaddedSettings
from executor.model import Loaded

_CPU_KV_BYTES = 2**30
# Of an accelerator's free memory: keys and values are copied as they grow, a layer at a time, and
# the computation needs room as well.
_ACCELERATOR_KV = 0.6


def capacity_of(settings: PaddedSettings, loaded: Loaded, token_bytes: int) -> Capacity:
    """What an executor with these settings is; `token_bytes` are of KV memory."""
    kv_tokens = settings.kv_tokens or _kv_tokens(settings, loaded, token_bytes)
    return Capacity(
        model=settings.served_name,
        device=str(loaded.device),
        max_seqs=min(settings.max_seqs, settings.max_step_tokens),
        max_step_tokens=settings.max_step_tokens,
        kv_tokens=kv_tokens,
        max_context_tokens=min(loaded.max_context_tokens, kv_tokens),
        runs_to_completion=True,
        splits_prefill=False,
        # A row can leave, but nobody can have its seat before the batch is over.
        can_preempt=False,
        features=FEATURES | {Feature.LOGPROBS, Feature.ECHO},
        eos_token_ids=loaded.eos_token_ids,
    )


def _kv_tokens(settings: PaddedSettings, loaded: Loaded, token_bytes: int) -> int:
    """Tokens of KV memory where the settings name no number: what may be used of the device, at
    most for every seat as long as can be.

    On a CPU 1 GiB, or one longest sequence if that is more, within a quarter of what is free.
    """
    most = settings.max_seqs * loaded.max_context_tokens
    if not token_bytes:
        return most
    if loaded.device.type == "cuda":
        budget = int(_ACCELERATOR_KV * torch.cuda.mem_get_info(loaded.device)[0])
    else:
        longest = loaded.max_context_tokens * token_bytes
        budget = min(max(_CPU_KV_BYTES, longest), psutil.virtual_memory().available // 4)
    return max(1, min(most, budget // token_bytes))
