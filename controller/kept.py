"""What was learnt, as it outlives a restart: a file's bytes to records and back, exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from controller.step_model import StepModel, StepSums

# Another number whenever what stands in the records means something else.
VERSION = 1
# A file of an executor or a hundred has some thousand bytes.
MOST_BYTES = 2**20
# After so long hardware, drivers and traffic are others; so far ahead the clock was wrong.
OLDEST_S = 7 * 86400.0
AHEAD_S = 3600.0


class KeptLimits(msgspec.Struct, frozen=True):
    """The limits of a group, in counts and seconds."""

    max_batch_size: int
    max_batch_tokens: int
    wait_timeout_s: float


class Ceiling(msgspec.Struct, frozen=True):
    """Tokens above which steps ran out of memory, and for how many seconds more they stay out of
    reach; after that the ceiling is probed by small steps."""

    tokens: float
    left_s: float


class KeptGroup(msgspec.Struct, frozen=True):
    """A group of executors: the limits in force, those that were configured to begin with, and
    what is known of its memory."""

    limits: KeptLimits
    began_with: KeptLimits
    ceiling: Ceiling | None = None


class KeptExecutor(msgspec.Struct, frozen=True):
    """An executor: what it was, and the sums of its step model."""

    kind: str
    model: str
    device: str
    sums: StepSums


class Kept(msgspec.Struct, frozen=True):
    """Everything, by the names of the configuration. `saved_at` is unix time."""

    version: int
    saved_at: float
    executors: Mapping[str, KeptExecutor]
    groups: Mapping[str, KeptGroup]


class _Any(msgspec.Struct, frozen=True):
    """What a file of any version has."""

    version: int


class Unusable(Exception):
    """What was kept cannot be used, and why."""


def dump(kept: Kept) -> bytes:
    """The bytes of a file, for `load`."""
    return msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n"


def load(data: bytes, *, now: float) -> Kept:
    """Read what `dump` wrote; `now` is unix time. Raises Unusable, and nothing else."""
    if len(data) > MOST_BYTES:
        raise Unusable(f"it has {len(data)} bytes, and no state has more than {MOST_BYTES}")
    try:
        version = msgspec.json.decode(data, type=_Any).version
        if version != VERSION:
            raise Unusable(f"it is of version {version}, and this code writes {VERSION}")
        kept = msgspec.json.decode(data, type=Kept)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unusable(f"it is broken: {error}") from error
    age_s = now - kept.saved_at
    if age_s > OLDEST_S:
        raise Unusable(f"it is {age_s / 86400:.0f} days old")
    if not age_s >= -AHEAD_S:
        raise Unusable(f"it is from {-age_s:.0f} s ahead")
    for group in kept.groups.values():
        _check_group(group)
    return kept


def model_of(kept: KeptExecutor, *, kind: str, model: str, device: str) -> StepModel:
    """The step model of an executor that is what the kept one was. Raises Unusable otherwise."""
    was, now = (kept.kind, kept.model, kept.device), (kind, model, device)
    for what, old, new in zip(("kind", "model", "device"), was, now, strict=True):
        if old != new:
            raise Unusable(f"its {what} was {old!r} and is {new!r}")
    try:
        made = StepModel.from_sums(kept.sums)
        estimate = made.estimate()
    # Sums that no step ever made overflow where they are solved.
    except (ValueError, ArithmeticError) as error:
        raise Unusable(f"the sums of its step model make no sense: {error}") from error
    if estimate is None or not 0 < estimate.predict(1, 1) < math.inf:
        raise Unusable("the sums of its step model make no sense: a step takes no time")
    return made


def remaining(ceiling: Ceiling, *, saved_at: float, now: float) -> float:
    """For how many seconds a kept ceiling still stays, below 0: for how long it has been probed;
    both instants are unix time."""
    return ceiling.left_s - max(0.0, now - saved_at)


def _check_group(group: KeptGroup) -> None:
    for limits in (group.limits, group.began_with):
        whole = (limits.max_batch_size, limits.max_batch_tokens)
        if min(whole) < 1 or max(whole) > 2**31 or not 0 <= limits.wait_timeout_s < 86400:
            raise Unusable(f"it has limits that are none: {limits}")
    if (ceiling := group.ceiling) is not None:
        right = 0 < ceiling.tokens < math.inf and 0 <= ceiling.left_s < math.inf
        if not right:
            raise Unusable(f"it has a ceiling that is none: {ceiling}")
