"""The door of one tier's queue: bounded, and the only place that turns anybody away."""

from __future__ import annotations

from controller.errors import InvalidRequest, QueueFull
from controller.places import Permit, Places
from controller.request import Request
from controller.tiers import Tier


class Door:
    """Places for those who wait, and for some to come.

    `waiting` requests are there, of together `tokens` of work, `prompts` of those in prompts, and
    `size` bytes; `reserved` are places for those who are on their way. Places held by requests that
    were given back by an executor do not count against new ones: those were admitted once and are
    never turned away a second time.
    """

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.waiting = 0
        self.tokens = 0
        self.prompts = 0
        self.size = 0
        self.reserved = Permit(tier.name, 0, 0, 0)

    def __len__(self) -> int:
        return self.waiting

    def reserve(
        self, requests: int, tokens: int, *, size: int, lent: Permit | None = None
    ) -> Permit:
        """Take `requests` places; `lent` are those of ours that higher tiers sit on.

        Raises QueueFull, saying which bound was met, and InvalidRequest for what would not fit
        into an empty queue either.
        """
        tier = self.tier
        for unit, more, there, bound in self._bounds(requests, tokens, size, lent=lent):
            if more > bound:
                raise InvalidRequest(
                    f"{more} {unit} are more than the queue of tier '{tier.name}' ever takes: "
                    f"{bound}",
                    code="request_too_large",
                )
            if there + more > bound:
                raise QueueFull(
                    f"the queue of tier '{tier.name}' is full: {there} {unit} of {bound} waiting, "
                    f"no room for {more} more"
                )
        return self.hold(requests, tokens, size=size)

    def hold(self, requests: int, tokens: int, *, size: int) -> Permit:
        """Take places (negative: let them go), whatever the bounds say."""
        held = self.reserved
        held.requests += requests
        held.tokens += tokens
        held.size += size
        return Permit(self.tier.name, requests, tokens, size)

    def give_back(self, permit: Permit) -> None:
        """Return what is left of a permit; a second time changes nothing."""
        if permit.requests or permit.tokens or permit.size:
            self.hold(-permit.requests, -permit.tokens, size=-permit.size)
            permit.requests = permit.tokens = permit.size = 0

    def over(self, requests: int, tokens: int, size: int, *, lent: Permit | None = None) -> Places:
        """By how much so many more would be over the bounds, at least 0."""
        bounds = self._bounds(requests, tokens, size, lent=lent)
        by = [max(0, there + more - bound) for _, more, there, bound in bounds]
        return Places(by[0], by[1], by[2])

    def places_of(self, request: Request) -> Places:
        """What a waiting request takes up."""
        return Places(1, request.work_tokens, request.size)

    def let_in(self, permit: Permit) -> int:
        """Somebody comes for one place of a permit; answers the bytes of it.

        Raises ValueError when the permit is used up.
        """
        share = permit.requests
        if share < 1:
            raise ValueError("a request was offered on a permit that is used up")
        tokens, size, held = permit.tokens // share, permit.size // share, self.reserved
        permit.requests = share - 1
        permit.tokens -= tokens
        permit.size -= size
        held.requests -= 1
        held.tokens -= tokens
        held.size -= size
        return size

    def _bounds(
        self, requests: int, tokens: int, size: int, *, lent: Permit | None
    ) -> tuple[tuple[str, int, int, int], ...]:
        """Unit, how many more, how many there are, and the bound."""
        tier, held = self.tier, self.reserved
        out = (0, 0, 0) if lent is None else (lent.requests, lent.tokens, lent.size)
        return (
            (
                "requests",
                requests,
                self.waiting + held.requests + out[0],
                tier.max_queue_requests,
            ),
            ("tokens", tokens, self.tokens + held.tokens + out[1], tier.max_queue_tokens),
            ("bytes", size, self.size + held.size + out[2], tier.max_queue_bytes),
        )
