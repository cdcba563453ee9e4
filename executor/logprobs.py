"""How likely the model itself held tokens: those that were chosen, and those of prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor.contract import TokenLogprob
from executor.sampling import Row

MOST = 20
"""How many of the likeliest tokens can be told beside each."""

# So many rows of a prompt are float32 at once: its logits may fill a good part of the memory.
_ROWS = 128


class Asked:
    """The logits of the rows that ask for log-probabilities, as they were before any rule."""

    def __init__(self, logits: torch.Tensor, rows: Sequence[Row]) -> None:
        self._places = [i for i, row in enumerate(rows) if row.sampling.logprobs is not None]
        self._tops = [rows[place].sampling.logprobs or 0 for place in self._places]
        # Whoever chooses tokens overwrites logits, and indices copy.
        self._logits = logits[self._places] if self._places else None

    def of(self, tokens: torch.Tensor) -> dict[int, TokenLogprob]:
        """By row, those of the `tokens` [n] that were chosen; of rows that did not ask, nothing."""
        if self._logits is None:
            return {}
        chosen = tokens[self._places]
        told = _score(self._logits, chosen, self._tops)
        return dict(zip(self._places, told, strict=True))


def of_prompt(logits: torch.Tensor, targets: Sequence[int], top: int) -> list[TokenLogprob]:
    """Those of `targets`, the tokens that came next after each row of `logits` [>= n, vocabulary],
    with `top` others each."""
    told = []
    for start in range(0, len(targets), _ROWS):
        part = targets[start : start + _ROWS]
        rows = logits[start : start + len(part)].float()
        tokens = torch.tensor(part, device=rows.device)
        told += _score(rows, tokens, [top] * len(part))
    return told


def _score(logits: torch.Tensor, tokens: torch.Tensor, tops: Sequence[int]) -> list[TokenLogprob]:
    """The log-probabilities of `tokens` [n] by float32 `logits` [n, vocabulary]."""
    all_of_them = logits.log_softmax(dim=-1)
    own = all_of_them.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1).tolist()
    if not any(tops):
        return [TokenLogprob(value) for value in own]
    # A constant number, since the order among equal values may depend on it.
    values, ids = all_of_them.topk(min(MOST, logits.shape[-1]), dim=-1)
    likeliest = zip(ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprob(value, list(zip(names[:top], theirs[:top], strict=True)))
        for value, (names, theirs), top in zip(own, likeliest, tops, strict=True)
    ]
