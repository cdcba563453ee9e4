"""What the batcher wants done: messages for executors, ends to tell, and when to be asked again."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from controller.request import Ended
from executor.contract import Work


class Why(StrEnum):
    """Why a batch went when it did."""

    FULL = "full"  # no seat was left, or as many waited as would fit
    TIMEOUT = "timeout"  # it was held for company as long as allowed
    IMMEDIATE = "immediate"  # nothing is to be held for
    NO_GAIN = "no_gain"  # waiting longer would have cost more than company saves
    URGENT = "urgent"  # somebody's target is about to be missed
    JOIN = "join"  # steps were running anyway: it joined them
    DRAIN = "drain"  # the daemon is on its way down


class Dispatch(NamedTuple):
    """Requests that went to one executor together.

    `depth` were waiting before, the oldest of them for `oldest_s` seconds; `held_s` is how long
    the batch was held for company on purpose. `padding` is the part (0..1) of a batch that runs to
    completion which is wasted on members that are shorter than the longest; None elsewhere.
    """

    executor: str
    size: int
    why: Why
    depth: int
    oldest_s: float
    held_s: float
    padding: float | None


class Plan(NamedTuple):
    """What is to be done now. `wake_at`: poll again at this instant at the latest, None: only
    after the next call that changes something."""

    work: Mapping[str, Work]
    ended: tuple[Ended, ...]
    dispatches: tuple[Dispatch, ...]
    wake_at: float | None
