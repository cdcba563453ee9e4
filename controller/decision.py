"""The decision: what was proposed, what became of it, and why, kept and told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal, NamedTuple

from controller.asking import AnswerState
from controller.shadows import Shadowed
from policies.contract import Applied, GuardNote, LimitName, Limits, Signals

Mode = Literal["apply", "observe"]
SHORT: Mapping[LimitName, str] = MappingProxyType(
    {"max_batch_size": "B", "max_batch_tokens": "T", "wait_timeout_s": "W"}
)
# A tier's own: it has no tokens of a step to itself.
SHORT_OF_TIER: Mapping[LimitName, str] = MappingProxyType(
    {"max_batch_size": "seats", "wait_timeout_s": "W"}
)
# What the guard does whatever the policy wants: the reasons of a move that nobody asked for.
_BOUNDS = ("capacity", "out_of_memory", "envelope")


class DecisionCode(StrEnum):
    """What a tick came to, as it stands in metrics and answers."""

    MOVED = "moved"
    KEPT = "kept"
    HELD_BACK = "held_back"
    OBSERVED = "observed"  # would have moved, and only observes
    PINNED = "pinned"  # held by hand
    UNPINNED = "unpinned"  # no longer held by hand
    SLOW = "slow"  # the policy has not answered yet
    ERROR = "error"  # it raised, or answered nonsense
    HUNG = "hung"  # it did not answer in time, and was abandoned


class Change(NamedTuple):
    """One limit that moved: of a tier, or (None) of all; `reason` is `policy` or a code."""

    tier: str | None
    limit: LimitName
    direction: Literal["up", "down"]
    reason: str


# Why a limit moved.
CHANGE_REASONS = ("policy", DecisionCode.PINNED, DecisionCode.UNPINNED, *_BOUNDS)


@dataclass(frozen=True, slots=True)
class TierDecision:
    """What a tier's own policy came to: seats are its `max_batch_size`, W its own.

    `before` and `after` were and are in force, `judged` is what the guard made of the proposal.
    """

    tier: str
    policy: str
    before: Limits
    proposed: Limits
    judged: Limits
    after: Limits
    reason: str
    notes: tuple[GuardNote, ...]
    state: AnswerState = "answered"
    error: str = ""
    successor: str = ""

    def sentence(self) -> str:
        """In one line, as `Decision.sentence`."""
        moves = ", ".join(_moves(self.before, self.judged, SHORT_OF_TIER)) or "no change"
        return f"{self.tier} {moves}: {self.reason}{_held(self.notes, SHORT_OF_TIER)}"


@dataclass(frozen=True, slots=True)
class Decision:
    """One tick. `at` is wall clock (unix seconds); `epoch` is in force after it.

    `proposed` is the policy's, `judged` what the guard, or somebody's hand, made of it, and
    `after` what is in force: the limits from `before` where the loop only observes. `error` is
    what a policy raised, empty when it did not; `successor` who takes over for it. `hand` says
    that the limits are held by hand (`pinned`), or were until now.
    """

    number: int
    at: float
    group: str
    policy: str
    epoch: int
    before: Limits
    proposed: Limits
    judged: Limits
    after: Limits
    reason: str
    notes: tuple[GuardNote, ...]
    signals: Signals
    duration_s: float
    mode: Mode = "apply"
    state: AnswerState = "answered"
    error: str = ""
    successor: str = ""
    hand: Literal["", "pinned", "unpinned"] = ""
    tiers: tuple[TierDecision, ...] = ()
    shadows: tuple[Shadowed, ...] = ()

    @property
    def moved(self) -> bool:
        """Whether anything changed."""
        return self.before != self.after

    @property
    def observed(self) -> bool:
        """Whether anything would have changed, had it been applied."""
        return self.judged != self.after

    @property
    def applied(self) -> Applied:
        """What the next tick's signals say of it: what is in force, observed or not."""
        return Applied(self.proposed, self.after, self.notes)

    @property
    def code(self) -> DecisionCode:
        """What it came to; what went wrong with the policy comes first."""
        if self.state == "failed":
            return DecisionCode.ERROR
        if self.state != "answered":
            return DecisionCode(self.state)
        if self.hand:
            return DecisionCode(self.hand)
        if self.observed:
            return DecisionCode.OBSERVED
        if self.moved:
            return DecisionCode.MOVED
        return DecisionCode.HELD_BACK if self.notes else DecisionCode.KEPT

    def changes(self) -> Iterator[Change]:
        """Every limit that moved, which way, and why."""
        for name in SHORT:
            old, new = getattr(self.before, name), getattr(self.after, name)
            if new != old:
                yield Change(None, name, "up" if new > old else "down", self._why(name))
        for tier in self.tiers:
            for name in SHORT_OF_TIER:
                old, new = getattr(tier.before, name), getattr(tier.after, name)
                if new != old:
                    yield Change(tier.tier, name, "up" if new > old else "down", "policy")

    def sentence(self) -> str:
        """The decision in one line: the moves, the reason, and what the guard held back."""
        moves = ", ".join(_moves(self.before, self.judged, SHORT)) or "no change"
        told = f"{moves}: {self.reason}{_held(self.notes, SHORT)}"
        tiers = [tier.sentence() for tier in self.tiers if tier.judged != tier.before or tier.error]
        whole = "; ".join([told, *tiers])
        return f"only observed: {whole}" if self.observed else whole

    def _why(self, name: LimitName) -> str:
        if self.hand:
            return self.hand
        bounds = [note.code for note in self.notes if note.limit == name and note.code in _BOUNDS]
        wanted, before = getattr(self.proposed, name), getattr(self.before, name)
        # A proposal that is cut to the bounds is a move of the policy's all the same.
        return bounds[-1] if bounds and wanted == before else "policy"


def _moves(before: Limits, after: Limits, names: Mapping[LimitName, str]) -> list[str]:
    return [
        f"{short} {_shown(old)} -> {_shown(new)}"
        for name, short in names.items()
        if (old := getattr(before, name)) != (new := getattr(after, name))
    ]


def _held(notes: tuple[GuardNote, ...], names: Mapping[LimitName, str]) -> str:
    held = [f"{names[note.limit]} {note.code}: {note.detail}" for note in notes]
    return f" ({'; '.join(held)})" if held else ""


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value * 1000:g} ms"
