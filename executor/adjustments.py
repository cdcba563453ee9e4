"""What its bias and its own text so far do to a sequence's logits, before a token is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.contract import Sampling

# How many columns a table that is full gets more, at least.
_ROOM = 64
_ID, _BIAS, _COUNT, _SEEN = range(4)


class Adjustment:
    """The tokens of one sequence whose logits change, and all that matters of each.

    Only those have a column in `table`, so that a step costs what was said and not what could be.
    Made from a prompt and what came of it so far, it is the same as if it had been there.
    """

    __slots__ = ("_cells", "_counts", "_places", "_table", "rules")

    def __init__(
        self, sampling: Sampling, tokens: Sequence[int], prompt_length: int, *, vocabulary: int
    ) -> None:
        """`tokens` begins with the prompt, the rest was generated. A bias for an id outside the
        `vocabulary` is for nobody."""
        repetition, frequency = sampling.repetition_penalty, sampling.frequency_penalty
        self.rules = (repetition, frequency, sampling.presence_penalty)
        self._counts = self.rules != (1.0, 0.0, 0.0)
        self._places: dict[int, int] = {}
        self._table = torch.empty((4, 0), dtype=torch.float64)
        self._reserve(len(tokens) + len(sampling.logit_bias))
        for token, bias in sampling.logit_bias:
            if 0 <= token < vocabulary:
                self._cells[_BIAS, self._place(token)] = bias
        if repetition != 1.0:
            for token in set(tokens[:prompt_length]):
                self._cells[_SEEN, self._place(token)] = 1.0
        for token in tokens[prompt_length:]:
            self.add(token)

    @staticmethod
    def of(
        sampling: Sampling, tokens: Sequence[int], prompt_length: int, *, vocabulary: int
    ) -> Adjustment | None:
        """That of a sequence; None where its rules change no logit."""
        penalties = (sampling.frequency_penalty, sampling.presence_penalty)
        if not sampling.logit_bias and sampling.repetition_penalty == 1.0 and not any(penalties):
            return None
        return Adjustment(sampling, tokens, prompt_length, vocabulary=vocabulary)

    @property
    def table(self) -> torch.Tensor:
        """Id, bias, how often it was generated, and whether it is in the text at all: float64 [4,
        tokens] on the CPU, each id once."""
        return self._table[:, : len(self._places)]

    def add(self, token: int) -> None:
        """This one was generated."""
        if self._counts:
            place = self._place(token)
            self._cells[_COUNT, place] += 1.0
            self._cells[_SEEN, place] = 1.0

    def _place(self, token: int) -> int:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == self._table.shape[1]:
                self._reserve(place)
            self._cells[_ID, place] = token
        return place

    def _reserve(self, more: int) -> None:
        """Make room for so many columns more, and some."""
        new = torch.zeros((4, more + _ROOM), dtype=torch.float64)
        self._table = torch.cat([self._table, new], dim=1)
        # Single cells are written twenty times as fast through numpy's view of the same memory.
        self._cells: Any = self._table.numpy()


def adjust(logits: torch.Tensor, rows: Sequence[int], adjustments: Sequence[Adjustment]) -> None:
    """Change the float32 `logits` [n, vocabulary] in place, in `rows`, one adjustment each.

    Bias, then repetition penalty (Keskar et al., 2019, with the sign of the logit minded, as in
    transformers and vLLM), then frequency and presence penalty as OpenAI defines them.
    """
    tables = [adjustment.table for adjustment in adjustments]
    lengths = torch.tensor([table.shape[1] for table in tables])
    rules = [(row, *adjustment.rules) for row, adjustment in zip(rows, adjustments, strict=True)]
    per_token = torch.tensor(rules, dtype=torch.float64).repeat_interleave(lengths, dim=0)
    told = torch.cat([per_token.T, torch.cat(tables, dim=1)]).to(logits.device)
    at, ids = told[0].long(), told[4 + _ID].long()
    repetition, frequency, presence = told[1:4].float()
    bias, count, seen = told[4 + _BIAS :].float()
    values = logits[at, ids] + bias
    penalised = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen > 0, penalised, values)
    logits[at, ids] = values - frequency * count - presence * (count > 0)
