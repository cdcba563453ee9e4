"""Limits by the time of day and week, around another policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from policies.contract import Limits, Proposal, Signals
from policies.parameters import Refused, parameter
from policies.registry import build, problems

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = get_args(Day)
_MIDNIGHT = 24 * 60


@dataclass(frozen=True, slots=True)
class Inner:
    """The policy that decides what no entry holds."""

    type: str = parameter("aimd", "Its type, as in `control.policy`.")
    parameters: Mapping[str, Any] = parameter(doc="Its parameters.", factory=dict)

    def __post_init__(self) -> None:
        wrong = problems(self.type, self.parameters)
        if wrong:
            raise Refused(
                *((("parameters", *path) if path else ("type",), told) for path, told in wrong)
            )


@dataclass(frozen=True, slots=True)
class Held:
    """Limits that an entry holds; those left out are the inner policy's."""

    max_batch_size: int | None = parameter(None, "B.", low=1, unit="sequences")
    max_batch_tokens: int | None = parameter(None, "T.", low=1)
    wait_timeout_s: float | None = parameter(None, "W.", low=0)

    def __post_init__(self) -> None:
        size, tokens = self.max_batch_size, self.max_batch_tokens
        if not self.values():
            raise ValueError(f"should name one of {', '.join(f.name for f in fields(self))}")
        if size is not None and tokens is not None and tokens < size:
            raise ValueError(f"max_batch_tokens {tokens} is below max_batch_size {size}")

    def values(self) -> dict[str, Any]:
        """The limits that are held, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Entry:
    """Limits for some hours of some days."""

    name: str = parameter(doc="What it is called in reasons.")
    # `parameter` makes a field, as `dataclasses.field` does; ruff knows only the latter.
    limits: Held = parameter(doc="The limits that are held meanwhile.")  # noqa: RUF009
    days: tuple[Day, ...] = parameter(DAYS, "The days on which it begins.")
    from_: str = parameter("00:00", 'When it begins, as "HH:MM" in quotes.')
    to: str = parameter("24:00", "When it ends; not after `from`: on the day after.")

    def __post_init__(self) -> None:
        wrong = [
            (
                (key,),
                f'should be a time of day in quotes, such as "22:00"; given {time!r}',
            )
            for key, time in (("from", self.from_), ("to", self.to))
            if _minutes(time) is None
        ]
        if not wrong and _minutes(self.from_) == _minutes(self.to):
            wrong = [
                (("to",), f"{self.to} is when it begins: write 00:00 to 24:00 for a whole day")
            ]
        if not self.days:
            wrong.append((("days",), f"should name one of {', '.join(DAYS)}"))
        if wrong:
            raise Refused(*wrong)

    def applies(self, day: int, minute: int) -> bool:
        """Whether it holds on a day of the week (0: Monday) at a minute of the day."""
        begins, ends = _minutes(self.from_) or 0, _minutes(self.to) or 0
        today, yesterday = DAYS[day] in self.days, DAYS[day - 1] in self.days
        if begins < ends:
            return today and begins <= minute < ends
        return (today and minute >= begins) or (yesterday and minute < ends)


class Schedule:
    """While an entry applies its limits are held; everything else another policy decides.

    The first entry that applies counts. When it ends, the limits are led back to what they were
    before it, until they are there or the inner policy moves them itself.

    Regime: traffic that is known to change by the clock: chat by day, batches by night. An entry is
    no way around the guard: it clamps to the envelope, and raises B and T only while they bind.
    Hours are those of the time zone, so they move with its summer time. Any executor, as far as the
    inner policy goes.
    Source: the schedules of autoscalers, such as those of KEDA and Kubernetes.
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """An example stands in docs/policies.md."""

        inner: Inner = parameter(  # noqa: RUF009 (a field, see above)
            doc="The policy that decides the rest.", factory=Inner
        )
        entries: tuple[Entry, ...] = parameter((), "Limits by hours and days, the first one first.")
        timezone: str = parameter("UTC", "Name of the time zone of all hours: Europe/Berlin.")

        def __post_init__(self) -> None:
            names = [entry.name for entry in self.entries]
            for index, name in enumerate(names):
                if name in names[:index]:
                    raise Refused((("entries", index, "name"), f"{name!r} stands there already"))
            try:
                _zone(self.timezone)
            except (ValueError, LookupError, OSError) as error:
                raise Refused(
                    (("timezone",), f"{self.timezone!r} is no time zone known here: {error}")
                ) from error

    def __init__(self, parameters: Parameters) -> None:
        self._entries = parameters.entries
        self._zone = _zone(parameters.timezone)
        self._inner = build(parameters.inner.type, parameters.inner.parameters)
        self._before: dict[str, Any] = {}

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """The inner policy's proposal, with the limits of the entry that applies in their place."""
        entry = self._applying(signals.wall_s)
        held = {} if entry is None else entry.limits.values()
        for name in held:
            self._before.setdefault(name, getattr(limits, name))
        back = self._back(limits, held)
        given = _with(limits, back)
        inner = self._inner.decide(signals, given)
        taken = {}
        for name in back:
            value = getattr(inner.limits, name)
            if value != getattr(given, name):
                # The inner policy has moved it, for what is in force: from there, not from before.
                del self._before[name]
                if value < getattr(given, name):
                    taken[name] = min(value, getattr(limits, name))
        proposed = _with(inner.limits, taken | held)
        if entry is None:
            return Proposal(proposed, inner.reason)
        told = ", ".join(f"{name} {value:g}" for name, value in held.items())
        return Proposal(proposed, f"{entry.name!r} holds {told}; {inner.reason}")

    def _applying(self, wall_s: float | None) -> Entry | None:
        if wall_s is None or not self._entries:
            return None
        here = datetime.fromtimestamp(wall_s, self._zone)
        minute = here.hour * 60 + here.minute
        return next((e for e in self._entries if e.applies(here.weekday(), minute)), None)

    def _back(self, limits: Limits, held: Mapping[str, Any]) -> dict[str, Any]:
        """What limits that are no longer held are to become again."""
        for name in [n for n in self._before if n not in held]:
            if getattr(limits, name) == self._before[name]:
                del self._before[name]
        return {name: value for name, value in self._before.items() if name not in held}


def _with(limits: Limits, values: Mapping[str, Any]) -> Limits:
    changed = replace(limits, **values)
    return replace(changed, max_batch_tokens=max(changed.max_batch_tokens, changed.max_batch_size))


def _zone(name: str) -> tzinfo:
    # The one zone that every machine knows, with or without a database of them.
    return UTC if name == "UTC" else ZoneInfo(name)


def _minutes(time: str) -> int | None:
    """Minutes since midnight of "HH:MM", up to "24:00"; None for anything else."""
    hours, colon, minutes = time.partition(":")
    if not (colon and len(minutes) == 2 and (hours + minutes).isascii()):
        return None
    if not ((hours + minutes).isdigit() and 1 <= len(hours) <= 2 and int(minutes) < 60):
        return None
    total = 60 * int(hours) + int(minutes)
    return total if total <= _MIDNIGHT else None
