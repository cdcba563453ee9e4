"""Until when an answer is of use to its client: the tier's bounds, or the client's own if shorter.

Two headers tell of a client's patience. `x-request-timeout` is meant for the server: how long after
its arrival the answer must be done, streamed or not, in seconds or with a unit (`1500ms`).
`x-stainless-read-timeout` is how long OpenAI's SDK waits for the next bytes, in seconds: an answer
that comes whole has to be there by then, a stream only has to go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from controller.errors import InvalidRequest
from controller.units import parse_duration
from gateway.settings import TierPlan

HEADER = "x-request-timeout"
READ_TIMEOUT_HEADER = "x-stainless-read-timeout"


class Deadlines(NamedTuple):
    """Monotonic seconds; None is never. A request expires that has not begun by `start_by`, and
    ends at `finish_by` wherever it is."""

    start_by: float | None
    finish_by: float | None


def deadlines(
    headers: Mapping[str, str], plan: TierPlan, *, arrival: float, streamed: bool
) -> Deadlines:
    """The deadlines of a request of this tier. Raises InvalidRequest for a timeout that is none.

    `arrival` is monotonic seconds; `headers` has to be a mapping that ignores case.
    """
    patience_s = _asked(headers.get(HEADER))
    if not streamed:
        patience_s = _shorter(patience_s, _told(headers.get(READ_TIMEOUT_HEADER)))
    # What has not begun when its answer is due is of no use any more.
    start_s = _shorter(plan.start_within_s, patience_s)
    finish_s = _shorter(plan.finish_within_s, patience_s)
    return Deadlines(
        None if start_s is None else arrival + start_s,
        None if finish_s is None else arrival + finish_s,
    )


def _asked(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = _seconds(text)
    if seconds is None:
        try:
            seconds = parse_duration(text)
        except ValueError:
            seconds = 0.0
    if not 0 < seconds < math.inf:
        raise InvalidRequest(
            f"{HEADER}: {text[:32]!r} should be more than 0: seconds, such as 30 or 0.5, or a "
            "number with its unit, such as 1500ms or 2m",
            param=HEADER,
        )
    return seconds


def _told(text: str | None) -> float | None:
    """Nobody writes this header by hand: one that says nothing is not worth refusing a request."""
    seconds = None if text is None else _seconds(text)
    return seconds if seconds is not None and 0 < seconds < math.inf else None


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shorter(one: float | None, other: float | None) -> float | None:
    """The shorter of two bounds; None is no bound."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
