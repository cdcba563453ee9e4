"""Which token comes next, for all rows of a step at once, each by its own rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from executor.adjustments import Adjustment, adjust
from executor.contract import Sampling

NUCLEUS = 1024
"""`top_k` and `top_p` choose among the likeliest tokens, at most this many."""

# Below this temperature the quotient of a logit might be infinite.
_COLD = 1e-5
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence in the step: its rules, the index of the token that it gets next (0 is the
    first of the completion), the token ids that it must not get, and what its bias and penalties
    come to (None: it has none)."""

    sampling: Sampling
    position: int
    forbidden: tuple[int, ...] = ()
    adjustment: Adjustment | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, whatever the noise."""
        return self.sampling.temperature < _COLD or self.sampling.top_k == 1


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """The next token of every row: int64, shape [n], from float32 `logits` [n, vocabulary].

    A row's token depends on nothing but its own logits, rules and position. Rows that sample take
    the inverse of their distribution at one uniform number, a hash of seed and position. `logits`
    is overwritten where tokens are forbidden, biased or penalised.
    """
    adjusted = [index for index, row in enumerate(rows) if row.adjustment is not None]
    if adjusted:
        adjust(logits, adjusted, [made for row in rows if (made := row.adjustment) is not None])
    _forbid(logits, rows)
    drawn = [index for index, row in enumerate(rows) if not row.is_greedy]
    if len(drawn) == len(rows):
        return _draw(logits, rows)
    tokens = logits.argmax(dim=-1)
    if drawn:
        where = torch.tensor(drawn, device=logits.device)
        tokens[where] = _draw(logits[where], [rows[index] for index in drawn])
    return tokens


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Numbers in (0, 1), float64 [n], a hash of 64-bit `seeds` and `positions` (int64, both [n]).

    Three rounds of the 32-bit integer hash `lowbias32` (Chris Wellons, 2018). Products stay within
    63 bits and a sign, so that the arithmetic is exact on every device.
    """
    state = _mix(seeds & _WORD)
    state = _mix(state ^ ((seeds >> 32) & _WORD))
    state = _mix(state ^ (positions & _WORD))
    return (state.to(torch.float64) + 0.5) / 2.0**32


def _mix(word: torch.Tensor) -> torch.Tensor:
    word = word + 0x9E3779B9 & _WORD
    word = (word ^ (word >> 16)) * 0x7FEB352D & _WORD
    word = (word ^ (word >> 15)) * (0x846CA68B - 2**32) & _WORD
    return word ^ (word >> 16)


def _forbid(logits: torch.Tensor, rows: Sequence[Row]) -> None:
    places = [(index, token) for index, row in enumerate(rows) for token in row.forbidden]
    if places:
        at = torch.tensor(places, device=logits.device)
        logits[at[:, 0], at[:, 1]] = -torch.inf


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    """Sampled tokens [m] of `logits` [m, vocabulary], none of the rows greedy."""
    device = logits.device
    rules = [row.sampling for row in rows]
    seeds = torch.tensor([_signed(rule.seed) for rule in rules], device=device)
    positions = torch.tensor([row.position for row in rows], device=device)
    noise = uniform(seeds, positions).to(torch.float32).unsqueeze(-1)
    scaled = logits / torch.tensor([[rule.temperature] for rule in rules], device=device)
    bound = [index for index, rule in enumerate(rules) if rule.min_p > 0.0]
    if bound:
        _leave_out(scaled, bound, [rules[index].min_p for index in bound])
    cut = [index for index, rule in enumerate(rules) if rule.top_k > 0 or rule.top_p < 1.0]
    if len(cut) == len(rows):
        return _draw_nucleus(scaled, noise, rules)
    tokens = _invert(scaled.softmax(dim=-1), noise)
    if cut:
        where = torch.tensor(cut, device=device)
        nucleus = _draw_nucleus(scaled[where], noise[where], [rules[index] for index in cut])
        tokens[where] = nucleus
    return tokens


def _leave_out(scaled: torch.Tensor, rows: list[int], shares: list[float]) -> None:
    """In these rows, the tokens less likely than that share of the likeliest one's probability."""
    where = torch.tensor(rows, device=scaled.device)
    part = scaled[where]
    least = part.amax(dim=-1, keepdim=True) + torch.tensor([shares], device=scaled.device).log().T
    scaled[where] = part.masked_fill(part < least, -torch.inf)


def _draw_nucleus(
    scaled: torch.Tensor, noise: torch.Tensor, rules: Sequence[Sampling]
) -> torch.Tensor:
    """As `_draw`, for rows with `top_k` or `top_p`: first the k likeliest, then of what is left
    the fewest that hold `top_p` of it.

    The number of candidates is a constant, since the order among equal logits may depend on it.
    """
    device = scaled.device
    width = min(NUCLEUS, scaled.shape[-1])
    values, ids = scaled.topk(width, dim=-1)
    # Relative to the whole vocabulary, so that top_p alone means what it says.
    shares = (values - scaled.logsumexp(dim=-1, keepdim=True)).exp()
    counts = torch.tensor([[max(rule.top_k, 0) or width] for rule in rules], device=device)
    places = torch.arange(width, device=device)
    shares = shares.masked_fill(places >= counts, 0.0)
    total = torch.where(counts < width, shares.sum(dim=-1, keepdim=True), 1.0)
    top_p = torch.tensor([[rule.top_p] for rule in rules], device=device)
    ahead = shares.cumsum(dim=-1) - shares
    shares = shares.masked_fill((ahead >= top_p * total) & (places > 0), 0.0)
    return ids.gather(-1, _invert(shares, noise).unsqueeze(-1)).squeeze(-1)


def _invert(shares: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Where the running sum of `shares` [m, n] first exceeds `noise` [m, 1] of their total."""
    running = shares.cumsum(dim=-1)
    goal = noise * running[:, -1:]
    # Rounding can put the goal at the total itself: the last token that has a share is then meant.
    goal = torch.minimum(goal, torch.nextafter(running[:, -1:], torch.zeros_like(goal)))
    return torch.searchsorted(running, goal, right=True).squeeze(-1)


def _signed(seed: int) -> int:
    """Any integer as the 64 bits that torch can hold."""
    return (seed & 0xFFFFFFFFFFFFFFFF) - ((seed & 0x8000000000000000) << 1)
