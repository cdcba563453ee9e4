"""Whether a request's memory fits beside the others': by the peak that they will come to together.

Not every request holds its most at the same time: those with little to go end first. Ordered by
what they have still to come, longest first, the peak is the largest of
`sum of what the first i hold + i * what the i-th has to come` (Past-Future, Gong et al. 2025).
"""

from __future__ import annotations

from collections.abc import Iterable


def peak_tokens(holdings: Iterable[tuple[int, int]]) -> int:
    """The most KV tokens that sequences will hold together, if none is added.

    `holdings` are pairs of (tokens still to come, tokens held), each growing by one a step.
    """
    held = most = 0
    for count, (to_come, has) in enumerate(sorted(holdings, reverse=True), 1):
        held += has
        most = max(most, held + count * to_come)
    return most
