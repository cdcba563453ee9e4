"""Which policy is asked, and which one takes its place when it fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

from controller.asking import Answer, AnswerState, Named
from controller.guard import NAMES, is_limit
from policies.contract import Limits, Proposal
from policies.registry import PolicyError, build

# So many failures in a row are no accident: another policy takes over.
MAX_FAILURES = 3
# A policy that answered so often is one to come back to: five seconds at four ticks a second.
GOOD_ANSWERS = 20
LAST_RESORT = "static"


@dataclass(frozen=True, slots=True)
class Settled:
    """What a tick goes on with: a proposal, whatever became of the question.

    `asked` is who was asked, `error` what went wrong, and `successor` who takes over for it; both
    are empty where nothing did.
    """

    asked: str
    proposal: Proposal
    state: AnswerState
    error: str = ""
    successor: str = ""


class Succession:
    """The policy in force, the last good one before it, and the fallback.

    A policy that raises `MAX_FAILURES` times in a row, or does not answer at all, gives way to the
    last good one, or to the fallback where there is none; and the fallback, should that fail as
    well, to `static`. An answer with what is no limit in it (NaN, infinite, negative) counts as a
    failure too, though the guard makes do with the first ones. A policy is good once it has
    answered `GOOD_ANSWERS` times with limits. `refusal` says why a policy cannot be asked any more.
    """

    def __init__(
        self, policy: Named, fallback: Named, *, refusal: Callable[[Named], str | None]
    ) -> None:
        self.policy = policy
        self.fallback = fallback
        self.last_good: Named | None = None
        self.fallen_back = False
        self._refusal = refusal
        self._good = self._at_fallback = False
        self._failures = self._answers = 0
        self._news = ""

    def switch(self, policy: Named) -> None:
        """Ask another one from now on.

        Raises PolicyError where policies like it have been abandoned too often.
        """
        if (why := self._refusal(policy)) is not None:
            raise PolicyError(why)
        self._news = f"'{policy.name}' in place of '{self.policy.name}': "
        if self._good:
            self.last_good = self.policy
        self._begin(policy)
        self.fallen_back = self._at_fallback = False

    def roll_back(self) -> None:
        """Ask the last good one again. Raises PolicyError where there is none."""
        if (good := self.last_good) is None:
            raise PolicyError(
                f"there is no policy to go back to: none before '{self.policy.name}' has answered "
                f"{GOOD_ANSWERS} times"
            )
        self.switch(good)
        if self.last_good is good:
            self.last_good = None
        self._good = True

    def instead(self, name: str, policy: Named) -> None:
        """Go back to this one where it would have been the one of that name."""
        if self.last_good is not None and self.last_good.name == name:
            self.last_good = policy

    def settle(self, answer: Answer, limits: Limits) -> Settled:
        """Take note of an answer; where there is none, the limits stay."""
        asked, news = self.policy.name, self._news
        self._news = ""
        if answer.proposal is not None:
            if wrong := _no_limit(answer.proposal.limits):
                return self._absurd(answer, answer.proposal, wrong, limits=limits, news=news)
            self._failures = 0
            self._answers += 1
            self._good = self._good or self._answers >= GOOD_ANSWERS
            return self._heard(answer, answer.proposal, news)
        if answer.state == "slow":
            told = f"{news}policy '{asked}' slow: no answer for {answer.waited_s:.2f} s"
            return Settled(asked, Proposal(limits, f"{told}: the limits stay"), answer.state)
        return self._failed(answer, limits, news)

    def _heard(self, answer: Answer, proposal: Proposal, news: str) -> Settled:
        late = f" (asked {answer.waited_s:.2f} s ago)" if answer.waited_s else ""
        told = f"{news}{proposal.reason}{late}"
        return Settled(self.policy.name, Proposal(proposal.limits, told), answer.state)

    def _absurd(
        self, answer: Answer, proposal: Proposal, wrong: str, *, limits: Limits, news: str
    ) -> Settled:
        """An answer that holds what is no limit: the guard puts it right, and it is a failure of
        which only the last of too many is one of the tick."""
        if self._failures + 1 < MAX_FAILURES:
            self._failures += 1
            return self._heard(answer, proposal, news)
        return self._failed(replace(answer, state="failed", told=wrong), limits, news)

    def _failed(self, answer: Answer, limits: Limits, news: str) -> Settled:
        asked, error = self.policy.name, answer.told
        self._failures += 1
        if answer.state == "hung":
            error = f"no answer for {answer.waited_s:.2f} s"
            told = f"policy '{asked}' is given up ({error})"
        elif self._failures < MAX_FAILURES:
            told = f"policy '{asked}' failed ({error}): the limits stay"
            return Settled(asked, Proposal(limits, news + told), answer.state, error)
        else:
            told = f"policy '{asked}' failed {self._failures} times in a row ({error})"
        heir = self._heir()
        reason = f"{news}{told}: '{heir.name}' takes over"
        return Settled(asked, Proposal(limits, reason), answer.state, error, heir.name)

    def _heir(self) -> Named:
        """Put the next in line in force."""
        good, self.last_good = self.last_good, None
        if good is not None and self._refusal(good) is None:
            self._begin(good)
            self._good = True
        elif not self._at_fallback:
            self._begin(_fresh(self.fallback))
            self._at_fallback = True
        else:
            self._begin(Named(LAST_RESORT, build(LAST_RESORT, {})))
        self.fallen_back = True
        return self.policy

    def _begin(self, policy: Named) -> None:
        self.policy, self._good = policy, False
        self._failures = self._answers = 0


def _no_limit(limits: Limits) -> str:
    """Which proposed values are none that the guard can judge; nothing where all can be."""
    values = {name: getattr(limits, name) for name in NAMES}
    absurd = [f"{name} {value!r}" for name, value in values.items() if not is_limit(value)]
    return f"answered what is no limit: {', '.join(absurd)}" if absurd else ""


def _fresh(named: Named) -> Named:
    """One that has not been asked yet: `static` holds the limits of its first question."""
    try:
        return Named(named.name, copy.deepcopy(named.policy), named.parameters)
    # What cannot be copied (a lock, a file) is somebody's own, and better than nothing.
    except Exception:
        return named
