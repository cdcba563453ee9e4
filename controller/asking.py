"""How a policy is asked: what it is shown, and what it answered, if it did."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, Protocol

from controller.showing import shown
from policies.contract import Limits, Policy, Proposal, Signals, TierLimits
from policies.faults import in_words
from policies.registry import TYPES

AnswerState = Literal["answered", "failed", "slow", "hung"]

# Decisions are kept by the thousand, and a reason is one sentence.
LONGEST_REASON = 500
# Beyond that whole numbers cannot be written in JSON, and some cannot be compared with a float.
_LARGEST = 2**53


@dataclass(frozen=True, slots=True)
class Named:
    """A policy with the type and the parameters by which it is configured."""

    name: str
    policy: Policy
    parameters: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Question:
    """What a policy is asked."""

    named: Named
    signals: Signals
    limits: Limits


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a question.

    `answered` has a proposal, `failed` says in `told` what was raised. `slow`: there is no answer
    yet. `hung`: there will be none, and the policy must not be asked again. `waited_s` is the time
    since it was asked, where that was at an earlier tick.
    """

    state: AnswerState
    proposal: Proposal | None = None
    told: str = ""
    waited_s: float = 0.0


class Asker(Protocol):
    """Asks policies, so that one that does not answer holds up nobody."""

    def ask(self, questions: Sequence[Question], now: float) -> list[Answer]:
        """What each of the policies says, in order; at once. `now` is monotonic, in seconds."""
        ...

    def refusal(self, named: Named) -> str | None:
        """Why this policy cannot be asked any more; None where it can."""
        ...


class InlineAsker:
    """Asks in the caller's thread: deterministic, and only for policies that do answer."""

    def ask(self, questions: Sequence[Question], now: float) -> list[Answer]:
        """The answers, in order."""
        return [answer_to(question) for question in questions]

    def refusal(self, named: Named) -> str | None:
        """None: whoever answers can be asked again."""
        return None


def answer_to(question: Question) -> Answer:
    """What a policy answers; whatever it raises is an answer too, but for KeyboardInterrupt: in the
    main thread that is somebody who wants a simulation to end.

    Other people's code sees copies. Headway's own is tested to leave alone what it is shown.
    """
    signals, limits = question.signals, question.limits
    try:
        if not is_own(question.named):
            signals, limits = shown(signals), shown(limits)
        decided = question.named.policy.decide(signals, limits)
        return Answer("answered", _checked(decided))
    except KeyboardInterrupt:
        raise
    # Whatever else it is, `sys.exit()` too: a policy costs one tick, never the loop.
    except BaseException as error:
        return failed(error)


def is_own(named: Named) -> bool:
    """Whether a policy runs Headway's own code only: a type of the table with numbers for
    parameters. A text or a mapping may name another policy, of anybody's."""
    return named.name in TYPES and all(
        isinstance(value, int | float) for value in named.parameters.values()
    )


def one_line(text: str) -> str:
    """Somebody else's words on one line of at most `LONGEST_REASON` characters, without what a
    terminal or a log would take for more than text."""
    if len(text) <= LONGEST_REASON and text.isprintable():
        return text
    # More than is kept: blanks in a row become one.
    begun = text[: 4 * LONGEST_REASON]
    line = " ".join("".join(c if c.isprintable() else " " for c in begun).split())
    if len(line) <= LONGEST_REASON and len(begun) == len(text):
        return line
    return f"{line[: LONGEST_REASON - 3]}..."


def failed(error: BaseException) -> Answer:
    """The answer of a policy that raised this."""
    return Answer("failed", told=one_line(in_words(error)))


def _checked(answer: object) -> Proposal:
    """What a policy answered, if it is of the right shape: what stands in it is the guard's."""
    if not isinstance(answer, Proposal) or not isinstance(answer.limits, Limits):
        raise TypeError(f"decide() should answer a Proposal of Limits, got {answer!r}")
    limits = answer.limits
    if not isinstance(limits.tiers, Mapping):
        raise TypeError(f"Limits.tiers should map names to TierLimits, got {limits.tiers!r}")
    plain = Limits(
        max_batch_size=_number("Limits.max_batch_size", limits.max_batch_size),  # type: ignore[arg-type]  # whole by the guard's rounding
        max_batch_tokens=_number("Limits.max_batch_tokens", limits.max_batch_tokens),  # type: ignore[arg-type]  # likewise
        wait_timeout_s=_number("Limits.wait_timeout_s", limits.wait_timeout_s),
        tiers=MappingProxyType({name: _tier(name, t) for name, t in limits.tiers.items()}),
    )
    return Proposal(plain, one_line(str(answer.reason)))


def _tier(name: str, tier: object) -> TierLimits:
    if not isinstance(tier, TierLimits):
        raise TypeError(f"Limits.tiers[{name!r}] should be TierLimits, got {tier!r}")
    seats, wait_s = tier.max_seats, tier.wait_timeout_s
    for value in (seats, wait_s):
        if value is not None and not (isinstance(value, int | float) and value >= 0):
            raise TypeError(f"Limits.tiers[{name!r}] holds {value!r}, which is no limit")
    return TierLimits(
        None if seats is None else _number("max_seats", seats),  # type: ignore[arg-type]  # likewise
        None if wait_s is None else _number("wait_timeout_s", wait_s),
    )


def _number(name: str, value: object) -> float:
    """A plain number that can be compared, shown and written down, whatever it stands for."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} should be a number, got {value!r}")
    if isinstance(value, float):
        return float(value)
    if abs(value) <= _LARGEST:
        return int(value)
    return math.inf if value > 0 else -math.inf
