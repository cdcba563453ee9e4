"""How long completions become, by tier: for those whose client set no bound of its own."""

from __future__ import annotations

import bisect
from collections import deque
from itertools import accumulate

# So many completions are remembered: the mix of a tier changes within the hour.
REMEMBERED = 512
# Fewer say less than the operator's own word does.
ENOUGH = 20


class LengthHistory:
    """Lengths of the latest completions of one tier, in tokens.

    The estimate for a completion that has come so far is the mean of those that came further, as
    Past-Future (Gong et al., ASPLOS 2025) has it: what a request holds, it is known to need.
    """

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._sorted: list[int] = []
        # Sums from each place on, made when they are asked for.
        self._sums: list[int] | None = None

    def add(self, tokens: int) -> None:
        """A completion ended by itself at this length."""
        self._order.append(tokens)
        bisect.insort(self._sorted, tokens)
        self._sums = None
        if len(self._order) > REMEMBERED:
            oldest = self._order.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]

    def expected(self, so_far: int, *, at_most: int) -> int | None:
        """Tokens that a completion may come to which has `so_far`; None: too few are known."""
        if len(self._sorted) < ENOUGH:
            return None
        if self._sums is None:
            self._sums = list(accumulate(reversed(self._sorted)))
        beyond = len(self._sorted) - bisect.bisect_right(self._sorted, so_far)
        if not beyond:
            # Longer than anything seen lately: all that can be said is that it is not over yet.
            return min(at_most, so_far + max(16, so_far // 8))
        return min(at_most, -(-self._sums[beyond - 1] // beyond))
