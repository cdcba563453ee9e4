"""Who sits where: the seats of one executor, counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from controller.request import Request, State
from executor.contract import Capacity, Key, Submit
from policies.contract import Limits


class SeatState(StrEnum):
    """A seat is running until its request ends otherwise than by the executor's own word; then
    it is releasing, and taken, until the executor has acknowledged."""

    RUNNING = "running"
    RELEASING = "releasing"


@dataclass(slots=True, eq=False)
class Seat:
    """One attempt at one request, on one executor. `booked` is the tokens that memory is kept for
    and that its tier was charged, `paid` what of them came out of the tier's share."""

    request: Request
    attempt: int
    booked: int
    paid: float
    state: SeatState = SeatState.RUNNING

    @property
    def key(self) -> Key:
        """What the executor calls this attempt."""
        return Key(self.request.id, self.attempt)


@dataclass(slots=True, eq=False)
class ExecutorSeats:
    """The ledger of one executor. `limits` and `epoch` are its group's, in force from now on.

    `free_since` is the instant from which it could take a request without a break until now, and
    None while it can not; `reserved_tokens` is the KV memory that its requests may come to.
    """

    name: str
    group: str
    limits: Limits
    epoch: int = 0
    incarnation: int = 0
    capacity: Capacity | None = None
    back_at: float | None = 0.0
    free_since: float | None = None
    reserved_tokens: int = 0
    seats: dict[tuple[str, int], Seat] = field(default_factory=dict)
    by_tier: dict[str, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it takes work now."""
        return self.capacity is not None

    @property
    def size_limit(self) -> int:
        """How many sequences it may hold: the limit, or its capacity where that is smaller."""
        if self.capacity is None:
            return 0
        return min(self.limits.max_batch_size, self.capacity.max_seqs)

    @property
    def step_tokens(self) -> int:
        """How many tokens a step may hold: the limit within capacity, never below the size."""
        if self.capacity is None:
            return self.limits.max_batch_tokens
        within = min(self.limits.max_batch_tokens, self.capacity.max_step_tokens)
        return max(within, self.size_limit)

    def room(self) -> int:
        """How many more sequences it can take now: none while a batch runs to completion."""
        capacity, taken = self.capacity, len(self.seats)
        if capacity is None or (taken and capacity.runs_to_completion):
            return 0
        return max(0, min(self.limits.max_batch_size, capacity.max_seqs) - taken)

    def note_room(self, now: float) -> int:
        """Keep `free_since` true, and answer the room: for when seats or limits changed."""
        room = self.room()
        if not room:
            self.free_since = None
        elif self.free_since is None:
            self.free_since = now
        return room

    def fits(self, request: Request) -> bool:
        """Whether its memory suffices beside what the others may come to hold."""
        assert self.capacity is not None
        return not self.seats or (
            self.reserved_tokens + request.work_tokens <= self.capacity.kv_tokens
        )

    def tier_room(self, tier: str, seats: int | None) -> bool:
        """Whether a tier with a cap of `seats` (None: no cap) may take one more."""
        return seats is None or self.by_tier.get(tier, 0) < seats

    def seat(self, request: Request, *, paid: float) -> Submit:
        """Give a request a seat; answers the message that tells the executor."""
        request.attempt += 1
        request.state = State.RUNNING
        request.executor = self.name
        request.epoch = self.epoch
        booked = request.work_tokens
        seat = Seat(request, request.attempt, booked, paid)
        self.seats[request.id, request.attempt] = seat
        self.by_tier[request.tier] = self.by_tier.get(request.tier, 0) + 1
        self.reserved_tokens += booked
        return Submit(
            request.id,
            request.attempt,
            request.prompt + request.tokens,
            len(request.prompt),
            request.remaining_tokens,
            request.sampling,
        )

    def find(self, request_id: str, attempt: int) -> Seat | None:
        """The seat of this attempt; None when it has been left."""
        return self.seats.get((request_id, attempt))

    def leave(self, seat: Seat) -> None:
        """The seat is free."""
        del self.seats[seat.request.id, seat.attempt]
        self.by_tier[seat.request.tier] -= 1
        self.reserved_tokens -= seat.booked

    def running(self) -> Iterator[Seat]:
        """The seats whose requests go on."""
        return (seat for seat in self.seats.values() if seat.state is SeatState.RUNNING)

    def clear(self) -> list[Seat]:
        """The executor is gone, and every seat with it."""
        seats = list(self.seats.values())
        self.seats.clear()
        self.by_tier.clear()
        self.reserved_tokens = 0
        self.capacity = None
        self.free_since = None
        return seats
