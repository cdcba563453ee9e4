"""How sequences of unequal length share one rectangle of tokens: padded on the left, cut back as
they leave."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

Choose = Callable[[torch.Tensor, Sequence[str]], torch.Tensor]
"""Next tokens [n] from float32 logits [n, vocabulary] of the sequences with these names."""
Take = Callable[[str, torch.Tensor], None]
"""Hands over the logits [tokens, vocabulary] of all tokens of the prompt with this name."""

# What a padded row may differ by from the same row alone, relative to the spread of its logits.
# Rounding in bfloat16 came to 0.1 on a real model; padding or positions that are misread, to 0.57
# and more on random ones.
_TOLERANCE = 0.3


class PaddedBatch:
    """Rows of one causal model over transformers' `DynamicCache`, stepped by hand. One thread only.

    `names` are the rows from the top. A row's tokens stand at the right, padding at the left: it is
    masked, and positions count tokens only, so it changes nothing but the time and memory taken.
    After an exception nothing in here can be trusted: `reset` and add everything again. Raises
    ValueError for a model that keeps no cache.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        takes = inspect.signature(model.forward).parameters
        kind = model.config.model_type
        if not {"cache", "attention_mask"} <= set(takes):
            raise ValueError(
                f"{kind} models cannot be batched with padding: transformers knows no cache, or no"
                " mask, for them"
            )
        self._takes_positions = "position_ids" in takes
        self._keeps_logits = "logits_to_keep" in takes
        layers = DynamicCache(config=model.config).layers
        # Windows are kept by the mask as well, and full layers can be joined and cut.
        self.is_plain = {type(layer) for layer in layers} <= {
            DynamicLayer,
            DynamicSlidingWindowLayer,
        }
        self.reset()

    def reset(self) -> None:
        """Drop every row."""
        self.names: list[str] = []
        self._lengths: list[int] = []
        self._cache: Any = None
        self._mask = torch.empty((0, 0), dtype=torch.long, device=self._model.device)
        self._last = torch.empty((0, 1), dtype=torch.long, device=self._model.device)

    @property
    def columns(self) -> int:
        """Tokens in each row, padding included."""
        return int(self._mask.shape[1])

    def held_tokens(self) -> int:
        """KV memory that the rows take, in tokens, padding included."""
        return len(self.names) * self.columns

    def rounded(self, tokens: int) -> int:
        """The KV memory, in tokens, that a row of so many takes where none is longer."""
        return tokens

    def prefill(
        self,
        prompts: Sequence[tuple[str, Sequence[int]]],
        choose: Choose,
        take: Take,
        *,
        read: Container[str] = (),
    ) -> list[int]:
        """Compute named prompts, all in one forward, and join them to the batch as its last rows;
        answers the token that comes next in each. `take` gets the logits of those in `read`."""
        names, lengths = [name for name, _ in prompts], [len(tokens) for _, tokens in prompts]
        longest = max(lengths)
        rows = [[0] * (longest - len(tokens)) + list(tokens) for _, tokens in prompts]
        ids = torch.tensor(rows, device=self._model.device)
        starts = torch.tensor([[longest - length] for length in lengths], device=ids.device)
        mask = (torch.arange(longest, device=ids.device) >= starts).long()
        cache = self._empty()
        wanted = [row for row, name in enumerate(names) if name in read]
        logits = self._compute(ids, mask, cache, keeps=longest if wanted else 1)
        with torch.inference_mode():
            for row in wanted:
                take(names[row], logits[row, -lengths[row] :])
            tokens = choose(logits[:, -1].float(), names)
        self._join(mask, cache)
        self.names += names
        self._lengths += lengths
        self._last = torch.cat([self._last, tokens.view(-1, 1)])
        answer: list[int] = tokens.tolist()
        return answer

    def decode(self, choose: Choose) -> list[int]:
        """Compute the last token of every row; answers the next of each."""
        self._mask = torch.cat([self._mask, self._mask.new_ones((len(self.names), 1))], dim=1)
        logits = self._compute(self._last, self._mask, self._cache)
        with torch.inference_mode():
            tokens = choose(logits[:, -1].float(), self.names)
        self._lengths = [length + 1 for length in self._lengths]
        self._last = tokens.view(-1, 1)
        answer: list[int] = tokens.tolist()
        return answer

    def keep(self, names: Iterable[str]) -> None:
        """Let all other rows go, and with them the columns that are padding in all that stay."""
        wanted = set(names)
        rows = [row for row, name in enumerate(self.names) if name in wanted]
        if len(rows) == len(self.names):
            return
        if not rows:
            self.reset()
            return
        self.names = [self.names[row] for row in rows]
        self._lengths = [self._lengths[row] for row in rows]
        index = torch.tensor(rows, device=self._mask.device)
        spare = self.columns - max(self._lengths) if self.is_plain else 0
        self._mask = self._mask[index, spare:]
        self._last = self._last[index]
        if not self.is_plain:
            self._cache.reorder_cache(index)
            return
        for layer in self._cache.layers:
            layer.keys = layer.keys[:, :, spare:].index_select(0, index)
            layer.values = layer.values[:, :, spare:].index_select(0, index)

    def probe(self, sequences: int, *, context: int, queries: int) -> float:
        """Seconds of a step of `sequences`, each computing `queries` tokens after `context` ones.

        The contents are made up, only the work is real. No row may be there.
        """
        device = self._model.device
        cache = self._empty()
        if context:
            self._fill(cache, sequences, context)
        mask = torch.ones((sequences, context + queries), dtype=torch.long, device=device)
        ids = torch.zeros((sequences, queries), dtype=torch.long, device=device)
        start = perf_counter()
        self._compute(ids, mask, cache)[:, -1].argmax(dim=-1).tolist()
        return perf_counter() - start

    def try_out(self, vocabulary: int) -> int:
        """Compare a row that begins beside a longer one, and stays when that leaves, with the same
        row alone. Raises ValueError where the padding changes what the model says. Answers the
        bytes of KV memory that a token takes."""
        long, short = ([(7 * i + n) % vocabulary for i in range(n)] for n in (11, 4))
        said: list[torch.Tensor] = []

        def note(logits: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
            said.append(logits[-1].clone())
            return torch.full((len(logits),), 5 % vocabulary, device=logits.device)

        for prompts in ([("short", short)], [("long", long), ("short", short)]):
            self.reset()
            self.prefill(prompts, note, lambda name, logits: None)
            self.decode(note)
            self.keep(["short"])
            self.decode(note)
        states = [state for layer in self._cache.layers for state in _states(layer)]
        held_bytes = sum(state.numel() * state.itemsize for state in states)
        token_bytes = held_bytes // self.held_tokens()
        self.reset()
        alone, beside = torch.stack(said[:3]), torch.stack(said[3:])
        off = float((beside - alone).norm() / (alone - alone.mean(dim=-1, keepdim=True)).norm())
        # Written so that NaN is refused as well.
        if not off <= _TOLERANCE:
            raise ValueError(
                f"{self._model.config.model_type} models cannot be batched with padding: it changes"
                f" the logits by {off:.0%} of their spread"
            )
        return token_bytes

    def _empty(self) -> Any:
        return DynamicCache() if self.is_plain else DynamicCache(config=self._model.config)

    def _compute(
        self, ids: torch.Tensor, mask: torch.Tensor, cache: Any, *, keeps: int = 1
    ) -> torch.Tensor:
        """The logits [rows, at least the last `keeps` queries, vocabulary] of the tokens `ids`
        [rows, queries] that end what `mask` [rows, columns] describes; `cache` has the rest, and
        takes these."""
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "cache": cache}
        if self._takes_positions:
            positions = (mask.cumsum(dim=-1) - 1).clamp(min=0)
            batch["position_ids"] = positions[:, -ids.shape[1] :]
        if self._keeps_logits:
            batch["logits_to_keep"] = keeps
        with torch.inference_mode():
            logits: torch.Tensor = self._model(**batch, use_cache=True).logits
            return logits

    def _join(self, mask: torch.Tensor, cache: Any) -> None:
        if not self.names:
            self._mask, self._cache = mask, cache
            return
        if not self.is_plain:
            raise RuntimeError("rows of this model cannot join a batch that runs")
        width = max(self.columns, int(mask.shape[1]))
        self._mask = _stacked(self._mask, mask, width=width, dim=1)
        for ours, theirs in zip(self._cache.layers, cache.layers, strict=True):
            ours.keys = _stacked(ours.keys, theirs.keys, width=width, dim=2)
            ours.values = _stacked(ours.values, theirs.values, width=width, dim=2)

    def _fill(self, cache: Any, sequences: int, context: int) -> None:
        """Zeros for keys and values, in the shapes that a token has."""
        sample = self._empty()
        ids = torch.zeros((1, 1), dtype=torch.long, device=self._model.device)
        self._compute(ids, torch.ones_like(ids), sample)
        for number, layer in enumerate(sample.layers):
            keys, values = (
                state.new_zeros((sequences, state.shape[1], context, state.shape[3]))
                for state in (layer.keys, layer.values)
            )
            cache.update(keys, values, number)


def _stacked(ours: torch.Tensor, theirs: torch.Tensor, *, width: int, dim: int) -> torch.Tensor:
    """Rows over rows, each moved to the right end of dimension `dim`, which becomes `width` wide;
    what is left free there is 0."""
    rows, shape = ours.shape[0], list(ours.shape)
    shape[0], shape[dim] = rows + theirs.shape[0], width
    both = ours.new_zeros(shape)
    for part, start in ((ours, 0), (theirs, rows)):
        place = both.narrow(0, start, part.shape[0])
        place.narrow(dim, width - part.shape[dim], part.shape[dim]).copy_(part)
    return both


def _states(layer: Any) -> list[torch.Tensor]:
    states = (getattr(layer, "keys", None), getattr(layer, "values", None))
    return [state for state in states if state is not None]
