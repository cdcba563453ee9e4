"""How the prompts in prefill share the tokens that a step has for them.

Short prompts do not wait for the whole of a long one, and a long one is not put off for ever. Ours:
shortest remaining first as far as it pays, with half of the step kept for the oldest. All of that
among prompts of one priority: a higher one has the step first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def order(remaining: Sequence[int], budget: int) -> tuple[int, list[int]]:
    """How many of `budget` tokens are kept for the oldest prompt, and who follows it on the rest.

    `remaining` are the tokens that each prompt still has to compute, in order of arrival; answered
    are indices into it. A prompt at most half as long as the oldest goes ahead of those between
    them, shortest first, on half of the budget or what the oldest cannot use: at half speed that
    lowers the mean time to the first token of the two. Longer ones wait for their turn, since
    equals that share are all late.
    """
    oldest = remaining[0]
    shorter = [index for index, tokens in enumerate(remaining) if 2 * tokens <= oldest]
    if not shorter:
        return budget, list(range(1, len(remaining)))
    wanted = sum([remaining[index] for index in shorter])
    kept = budget - min(wanted, max(budget // 2, budget - oldest))
    shorter.sort(key=remaining.__getitem__)
    passed = set(shorter)
    return kept, shorter + [i for i in range(1, len(remaining)) if i not in passed]


def shares(remaining: Sequence[int], budget: int) -> list[int]:
    """Tokens for each prompt in one step; all of `budget` goes, as far as there are tokens.

    The oldest gets half at least, so it takes at most twice as long as it would alone.
    """
    if len(remaining) < 2:
        return [min(tokens, budget) for tokens in remaining]
    kept, others = order(remaining, budget)
    given = [0] * len(remaining)
    given[0] = min(remaining[0], kept)
    left = budget - given[0]
    for index in others:
        if not left:
            break
        given[index] = min(remaining[index], left)
        left -= given[index]
    return given


def shares_by_priority(
    remaining: Sequence[int], budget: int, priorities: Sequence[int]
) -> list[int]:
    """As `shares`, for prompts in descending order of priority, then of arrival."""
    if len(remaining) < 2 or priorities[0] == priorities[-1]:
        return shares(remaining, budget)
    given: list[int] = []
    for _, group in groupby(range(len(remaining)), key=priorities.__getitem__):
        given += shares([remaining[index] for index in group], budget - sum(given))
    return given
