"""What becomes of a proposal: clamped always, growth only where the evidence carries it.

Order: hard bounds (capacity, memory, envelope), then shrinks, which no gate holds back, then the
gates for growth, each of which says its name, then bounds and rounding again.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from controller.ceiling import Ceiling
from controller.config_control import GuardConfig
from controller.gates import Code, Gates, Memory, has_room, throughput
from policies.contract import GuardNote, LimitName, Limits, Signals

NAMES: tuple[LimitName, ...] = ("max_batch_size", "max_batch_tokens", "wait_timeout_s")


@dataclass(frozen=True, slots=True)
class Envelope:
    """The hard range of each limit, and what the executors of the group can take (None: they
    have not said yet)."""

    low: Limits
    high: Limits
    capacity_seqs: int | None = None
    capacity_tokens: int | None = None

    def within(self, limits: Limits) -> Limits:
        """The nearest limits that are in range."""
        low, high = self.low, self.high
        sizes = [limits.max_batch_size, high.max_batch_size, self.capacity_seqs]
        tokens = [limits.max_batch_tokens, high.max_batch_tokens, self.capacity_tokens]
        size = max(low.max_batch_size, min(one for one in sizes if one is not None))
        step = max(low.max_batch_tokens, min(one for one in tokens if one is not None))
        wait_s = min(max(limits.wait_timeout_s, low.wait_timeout_s), high.wait_timeout_s)
        return replace(
            limits,
            max_batch_size=size,
            max_batch_tokens=max(step, size),
            wait_timeout_s=wait_s,
        )


@dataclass(frozen=True, slots=True)
class Judged:
    """What is to be applied, and what was done to each limit on the way."""

    limits: Limits
    notes: tuple[GuardNote, ...]


class Guard:
    """Judges proposals. Time is an argument; state is what was applied before, and `ceiling`, which
    the executors lower themselves when they run out of memory."""

    def __init__(self, config: GuardConfig, envelope: Envelope, *, min_samples: int) -> None:
        self._config = config
        self.envelope = envelope
        self.ceiling = Ceiling(config)
        self._gates = Gates(config, min_samples)
        self._memory = Memory(signs={name: deque(maxlen=config.reversal_moves) for name in NAMES})

    def reconfigure(self, config: GuardConfig, envelope: Envelope, *, min_samples: int) -> None:
        """Judge by other rules and in another range; what was applied, and what did not fit, is
        remembered. Of `envelope` only the range counts: capacities are the executors' to say."""
        self._config = self.ceiling.config = config
        self._gates = Gates(config, min_samples)
        self.envelope = replace(self.envelope, low=envelope.low, high=envelope.high)
        signs = self._memory.signs
        for name in NAMES:
            signs[name] = deque(signs[name], maxlen=config.reversal_moves)

    def judge(self, proposed: Limits, current: Limits, signals: Signals, now: float) -> Judged:
        """What of a proposal may be applied now."""
        notes: list[GuardNote] = []
        wanted = self._bounded(_finite(proposed, current, notes), signals, notes, now=now)
        values: dict[LimitName, float] = {}
        for name in NAMES:
            old, new = getattr(current, name), getattr(wanted, name)
            if new > old:
                new = self._grown(name, old, new, signals=signals, notes=notes, now=now)
            # 9 ms less 8 ms is a little less than 1 ms in floats, and a move all the same.
            if 0 < abs(new - old) < self._least(name) - 1e-9:
                notes.append(GuardNote(name, Code.DEAD_BAND, f"{old:g} -> {new:g} is no move"))
                new = old
            values[name] = new
        limits = _rounded(values, wanted)
        # A last time, for what rounding and T >= B may have done; said already where it matters.
        return Judged(self._bounded(limits, signals, [], now=now), tuple(notes))

    def bounded(self, limits: Limits, signals: Signals, now: float) -> Judged:
        """Limits set by hand: they stay within the hard bounds, and pass no gate."""
        notes: list[GuardNote] = []
        return Judged(self._bounded(limits, signals, notes, now=now), tuple(notes))

    def applied(self, before: Limits, after: Limits, signals: Signals, now: float) -> None:
        """Remember a move that was made."""
        for name in NAMES:
            old, new = getattr(before, name), getattr(after, name)
            if new != old:
                self._memory.moved_at = now
                self._memory.signs[name].append(1 if new > old else -1)
                if name == "max_batch_size":
                    # After a shrink, what growth once brought says nothing of growth from here.
                    self._memory.grew_from = throughput(signals) if new > old else None

    def reversals(self, name: LimitName) -> int:
        """Changes of direction in the last applied moves of a limit."""
        return sum(a != b for a, b in pairwise(self._memory.signs[name]))

    # --- bounds -----------------------------------------------------------------------------

    def _bounded(
        self, limits: Limits, signals: Signals, notes: list[GuardNote], *, now: float
    ) -> Limits:
        low, high = self.envelope.low, self.envelope.high
        values: dict[LimitName, float] = {}
        for name in NAMES:
            value = getattr(limits, name)
            for code, bound in self._ceilings(name, signals, now):
                if value > bound:
                    notes.append(GuardNote(name, code, f"{value:g} is above {bound:g}"))
                    value = bound
            top, bottom = getattr(high, name), getattr(low, name)
            within = min(max(value, bottom), top)
            if within != value:
                side = f"above {top:g}" if value > top else f"below {bottom:g}"
                notes.append(GuardNote(name, Code.ENVELOPE, f"{value:g} is {side}"))
            values[name] = within
        values["max_batch_tokens"] = max(values["max_batch_tokens"], values["max_batch_size"])
        return _rounded(values, limits)

    def _ceilings(self, name: LimitName, signals: Signals, now: float) -> list[tuple[Code, float]]:
        found: list[tuple[Code, float]] = []
        capacity: dict[LimitName, int | None] = {
            "max_batch_size": self.envelope.capacity_seqs,
            "max_batch_tokens": self.envelope.capacity_tokens,
        }
        if (bound := capacity.get(name)) is not None:
            found.append((Code.CAPACITY, bound))
        held = self.ceiling.tokens(now)
        if name == "max_batch_tokens":
            # What a step computes is held after it.
            found.append((Code.OUT_OF_MEMORY, max(1.0, min(held, self.ceiling.step_tokens(now)))))
        elif name == "max_batch_size":
            contexts = [e.mean_context for e in signals.executors if e.mean_context]
            if contexts:
                found.append((Code.OUT_OF_MEMORY, max(1.0, held / max(contexts))))
        return found

    # --- growth -----------------------------------------------------------------------------

    def _grown(
        self,
        name: LimitName,
        old: float,
        new: float,
        *,
        signals: Signals,
        notes: list[GuardNote],
        now: float,
    ) -> float:
        refusal = self._gates.refusal(name, old, signals, memory=self._memory, now=now)
        if refusal is not None:
            code, detail = refusal
            notes.append(GuardNote(name, code, detail))
            return old
        known = name == "max_batch_size" and has_room(signals, min(new, 2 * old))
        most = max(old * (1.0 if known else self._config.slew), self._least(name))
        if self.reversals(name) > self._config.reversals:
            notes.append(
                GuardNote(
                    name,
                    Code.OSCILLATION,
                    f"{self.reversals(name)} reversals in {self._config.reversal_moves} moves",
                )
            )
            new = max(old + (new - old) / 2, min(new, old + self._least(name)))
        if new - old > most:
            notes.append(GuardNote(name, Code.SLEW, f"{old:g} -> {new:g} is over {most:g} a tick"))
            new = old + most
        return new

    def _least(self, name: LimitName) -> float:
        least: Mapping[LimitName, float] = {
            "max_batch_size": self._config.least_batch_size,
            "max_batch_tokens": self._config.least_batch_tokens,
            "wait_timeout_s": self._config.least_wait,
        }
        return least[name]


def is_limit(value: object) -> bool:
    """Whether a proposed value is a number that can be a limit at all, in whatever envelope."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # Beyond the floats a whole number cannot even be compared with a bound or shown.
    return number and 0 <= value <= sys.float_info.max  # type: ignore[operator]  # it is a number


def _finite(proposed: Limits, current: Limits, notes: list[GuardNote]) -> Limits:
    """The proposal, with what is no number replaced by what is in force."""
    values: dict[LimitName, float] = {}
    for name in NAMES:
        value = getattr(proposed, name)
        if not is_limit(value):
            notes.append(GuardNote(name, Code.INVALID, f"{value!r} is no limit"))
            value = getattr(current, name)
        values[name] = value
    return replace(proposed, **values)  # type: ignore[arg-type]  # whole numbers come by rounding


def _rounded(values: Mapping[LimitName, float], like: Limits) -> Limits:
    return replace(
        like,
        max_batch_size=max(1, math.floor(values["max_batch_size"])),
        max_batch_tokens=max(1, math.floor(values["max_batch_tokens"])),
        wait_timeout_s=round(values["wait_timeout_s"], 6),
    )
