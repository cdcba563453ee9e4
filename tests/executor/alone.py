"""What a model writes for one request by itself: the text that every batching has to give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache

from executor.contract import FinishReason, Sampling

# Two tokens are as good as one another where their logits are closer than this.
TIE = 1e-4


@dataclass(frozen=True, slots=True)
class Alone:
    """A greedy text, why it ended, and at each token the likeliest two and their distance."""

    ids: list[int]
    reason: FinishReason
    choices: list[tuple[int, int, float]]

    def assert_same(self, ids: Sequence[int], reason: FinishReason) -> None:
        """Equal, or they part where the model can hardly tell the two tokens apart."""
        for index, (ours, theirs) in enumerate(zip(ids, self.ids, strict=False)):
            if ours != theirs:
                first, second, gap = self.choices[index]
                assert gap < TIE, f"token {index}: {ours} instead of {theirs}, {gap:.2g} apart"
                assert {ours, theirs} == {first, second}
                return
        assert (list(ids), reason) == (self.ids, self.reason)


def write_alone(
    model: Any, tokens: Sequence[int], new: int, *, sampling: Sampling, eos: Sequence[int] = (2,)
) -> Alone:
    """One request, one row, no padding, one token after the other."""
    ending = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos))
    cache, ids, choices = DynamicCache(config=model.config), list[int](), []
    step = torch.tensor([list(tokens)])
    with torch.inference_mode():
        while True:
            logits = model(input_ids=step, cache=cache, use_cache=True).logits[0, -1]
            early = len(ids) < sampling.min_tokens
            hidden = {*eos, *sampling.stop_token_ids} if early else set()
            if sampling.ignore_eos:
                hidden |= set(eos)
            logits[list(hidden)] = -torch.inf
            (best, other), (first, second) = (found.tolist() for found in logits.topk(2))
            choices.append((first, second, best - other))
            ids.append(first)
            if first in ending:
                return Alone(ids, "stop", choices)
            if len(ids) == new:
                return Alone(ids, "length", choices)
            step = torch.tensor([[first]])
