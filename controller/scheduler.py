"""Who goes next: the highest tier first, each tier its share, and nobody starved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from controller.lines import NEW_WEIGHT, PROMPT_WEIGHT
from controller.queues import TierQueue
from controller.request import Request
from controller.tiers import Tier


class Turn(StrEnum):
    """Why a tier had its turn."""

    STARVED = "starved"
    SHARE = "share"
    PRIORITY = "priority"


# Who goes next, and why. A plain tuple: one is made for every seat.
Pick = tuple[Request, Turn]


@dataclass(slots=True, eq=False)
class _Account:
    """A tier's queue, what the tier is owed, in tokens, and the instant from which it starves:
    infinite while it does not wait."""

    queue: TierQueue
    share: float
    patience_s: float
    owed: float = 0.0
    starves_at: float = math.inf


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
        highest_first = sorted(queues, key=lambda queue: -queue.tier.priority)
        self._accounts = {
            queue.tier.name: _Account(queue, queue.tier.min_share, queue.tier.max_starvation_s)
            for queue in highest_first
        }
        self._in_order = list(self._accounts.values())
        self._sharing = [account for account in self._in_order if account.share > 0]
        # Patience grows until time passes, so it is looked at once for all seats of an instant.
        self._may_starve = False

    def retier(self) -> None:
        """Take shares and patience as the queues' tiers have them now. What is owed stays owed, and
        who waits has waited for as long."""
        for account in self._in_order:
            tier = account.queue.tier
            account.starves_at += tier.max_starvation_s - account.patience_s
            account.share, account.patience_s = tier.min_share, tier.max_starvation_s
            if not account.share:
                account.owed = 0.0
        self._sharing = [account for account in self._in_order if account.share > 0]

    def pick(self, now: float, may_take: Callable[[Tier], bool] | None = None) -> Pick | None:
        """Who takes the next seat; `may_take(tier)` says whether the tier has a seat left, where
        tiers have a number of seats at all.

        The request is left in its queue. Deterministic: the same queues, the same answer.
        """
        head: Request | None = None
        if self._may_starve and (starved := self._starved(now, may_take)) is not None:
            head, turn = starved.head(), Turn.STARVED
            assert head is not None
            return head, turn
        turn, most_owed = Turn.SHARE, 0.0
        for account in self._sharing:
            queue = account.queue
            if account.owed > most_owed and (may_take is None or may_take(queue.tier)):
                due = queue.head()
                if due is not None and account.owed >= due.work_tokens:
                    head, most_owed = due, account.owed
        if head is None:
            turn = Turn.PRIORITY
            for account in self._in_order:
                queue = account.queue
                if queue.waiting and (may_take is None or may_take(queue.tier)):
                    head = queue.head()
                    break
        return None if head is None else (head, turn)

    def note_waiting(self, now: float) -> None:
        """Start the patience of tiers that begin to wait, and forget what idle ones were owed: at
        each instant before anybody is picked."""
        self._may_starve = False
        for account in self._in_order:
            if not account.queue.waiting:
                account.owed, account.starves_at = 0.0, math.inf
            elif account.starves_at == math.inf:
                account.starves_at = now + account.patience_s
            elif account.starves_at <= now:
                self._may_starve = True

    def charge(self, request: Request, now: float) -> float:
        """Book the tokens that a request may still come to on its tier and client; the tier has got
        a seat. Answers what was paid of them out of what the tier was owed, for `settle`.

        What is computed once more after a preemption is on nobody's account.
        """
        account, prompt = self._accounts[request.tier], len(request.prompt)
        new = request.work_tokens - prompt - len(request.tokens)
        if new < 0:
            new = 0
        if request.attempt:
            prompt = 0
        account.queue.charge(request.client, PROMPT_WEIGHT * prompt + NEW_WEIGHT * new)
        account.starves_at = now + account.patience_s
        tokens = prompt + new
        self._credit(tokens)
        if not account.owed:
            return 0.0
        paid = min(account.owed, float(tokens))
        account.owed -= paid
        return paid

    def settle(self, request: Request, *, charged: int, unused: int, paid: float) -> None:
        """Correct a booking of `charged` tokens once it is known how many of them were not used
        (negative: how many more)."""
        account = self._accounts[request.tier]
        account.queue.charge(request.client, -NEW_WEIGHT * unused)
        if charged > 0 and unused > 0:
            account.owed += paid * unused / charged
            self._credit(-unused)

    def progressed(self, tier: str, now: float) -> None:
        """The tier got a token: its patience starts again."""
        account = self._accounts[tier]
        if account.starves_at < math.inf:
            account.starves_at = now + account.patience_s

    def owed(self) -> Mapping[str, float]:
        """Tokens that each tier is owed."""
        return {name: account.owed for name, account in self._accounts.items()}

    def _starved(self, now: float, may_take: Callable[[Tier], bool] | None) -> TierQueue | None:
        """The tier that has starved for longest."""
        over = [
            (now - account.starves_at, -place)
            for place, account in enumerate(self._in_order)
            if now >= account.starves_at
            and account.queue.waiting
            and (may_take is None or may_take(account.queue.tier))
        ]
        return self._in_order[-max(over)[1]].queue if over else None

    def _credit(self, tokens: int) -> None:
        for account in self._sharing:
            if account.queue.waiting:
                owed = account.owed + account.share * tokens
                account.owed = owed if owed > 0 else 0.0
