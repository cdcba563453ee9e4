"""Who goes next: the highest tier first, each tier its share, and nobody starved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from controller.lines import NEW_WEIGHT, PROMPT_WEIGHT
from controller.queues import TierQueue
from controller.request import Request
from controller.tiers import Tier


class Turn(StrEnum):
    """Why a tier had its turn."""

    STARVED = "starved"
    SHARE = "share"
    PRIORITY = "priority"


class Pick(NamedTuple):
    """Who goes next, and why."""

    request: Request
    turn: Turn


class Charge(NamedTuple):
    """What an attempt was booked with: tokens, and how many of them its tier was owed."""

    tokens: int
    paid: float


@dataclass(slots=True)
class _Account:
    """What a tier is owed, in tokens, and when it last got anything while it waited."""

    owed: float = 0.0
    progress: float | None = None


class Scheduler:
    """Orders the tiers; the order within a tier is its queue's.

    Three rules, first match wins. *Starved*: a tier that waited `max_starvation_s` without a
    dispatch or a token takes the seat (longest first), then its patience starts again. *Share*: a
    tier that is owed at least its head's tokens takes it (most owed first). *Priority*: the
    highest tier that waits.

    What is owed follows deficit round robin (Shreedhar, Varghese 1995), in tokens: every tier that
    waits is credited its `min_share` of what anybody is served, and pays for what it is served
    itself. A tier that does not wait is owed nothing, so an unused share is lent and not saved
    up; and nobody falls below zero, so what a tier took while no other wanted it costs it nothing
    later.
    """

    def __init__(self, queues: Iterable[TierQueue]) -> None:
        self._queues = sorted(queues, key=lambda queue: -queue.tier.priority)
        self._sharing = [queue for queue in self._queues if queue.tier.min_share > 0]
        self._accounts = {queue.tier.name: _Account() for queue in self._queues}
        self._pairs = [(queue, self._accounts[queue.tier.name]) for queue in self._queues]
        self._lines = {queue.tier.name: queue.lines for queue in self._queues}

    def pick(self, now: float, may_take: Callable[[Tier], bool] | None = None) -> Pick | None:
        """Who takes the next seat; `may_take(tier)` says whether the tier has a seat left, where
        tiers have a number of seats at all.

        The request is left in its queue. Deterministic: the same queues, the same answer.
        """
        first = starved = owed = head = None
        most_over = most_owed = 0.0
        # One pass, without lists: it is done for every seat that is given away.
        for queue, account in self._pairs:
            tier = queue.tier
            if not queue.waiting or (may_take is not None and not may_take(tier)):
                continue
            if first is None:
                first = queue
            if account.progress is not None:
                over = now - account.progress - tier.max_starvation_s
                if over >= 0 and (starved is None or over > most_over):
                    starved, most_over = queue, over
            if account.owed > most_owed and tier.min_share > 0:
                due = queue.head()
                if due is not None and account.owed >= due.work_tokens:
                    owed, most_owed, head = queue, account.owed, due
        if first is None:
            return None
        if starved is not None:
            head, turn = starved.head(), Turn.STARVED
        elif owed is not None:
            turn = Turn.SHARE
        else:
            head, turn = first.head(), Turn.PRIORITY
        assert head is not None
        return Pick(head, turn)

    def note_waiting(self, now: float) -> None:
        """Start the patience of tiers that begin to wait, and forget what idle ones were owed."""
        for queue in self._queues:
            account = self._accounts[queue.tier.name]
            if not queue.waiting:
                account.owed, account.progress = 0.0, None
            elif account.progress is None:
                account.progress = now

    def charge(self, request: Request) -> Charge:
        """Book the tokens that a request may still come to on its tier and client.

        What is computed once more after a preemption is on nobody's account.
        """
        prompt = len(request.prompt)
        new = max(0, request.work_tokens - prompt - len(request.tokens))
        if request.attempt:
            prompt = 0
        self._lines[request.tier].charge(request.client, PROMPT_WEIGHT * prompt + NEW_WEIGHT * new)
        tokens = prompt + new
        self._credit(tokens)
        account = self._accounts[request.tier]
        if account.owed <= 0:
            return Charge(tokens, 0.0)
        paid = min(account.owed, float(tokens))
        account.owed -= paid
        return Charge(tokens, paid)

    def settle(self, request: Request, charge: Charge, *, unused: int) -> None:
        """Correct a booking once it is known how many of its tokens were not used (negative: how
        many more)."""
        self._lines[request.tier].charge(request.client, -NEW_WEIGHT * unused)
        if charge.tokens > 0 and unused > 0:
            account = self._accounts[request.tier]
            account.owed += charge.paid * unused / charge.tokens
            self._credit(-unused)

    def progressed(self, tier: str, now: float) -> None:
        """The tier got a seat or a token: its patience starts again."""
        account = self._accounts[tier]
        if account.progress is not None:
            account.progress = now

    def owed(self) -> Mapping[str, float]:
        """Tokens that each tier is owed."""
        return {name: account.owed for name, account in self._accounts.items()}

    def _credit(self, tokens: int) -> None:
        for queue in self._sharing:
            if queue.waiting:
                account = self._accounts[queue.tier.name]
                account.owed = max(0.0, account.owed + queue.tier.min_share * tokens)
