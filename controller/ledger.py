"""Who sits where: the seats of one executor, counted here and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from controller.request import Request, State
from controller.scheduler import Charge
from executor.contract import Capacity, Key, Report, Submit
from policies.contract import Limits

# Prompts go to an executor for so many steps ahead: fewer would leave a step unfilled while the
# answer is on its way, more would queue where nobody can overtake.
PROMPT_STEPS = 2


class SeatState(StrEnum):
    """A seat is running until its request ends otherwise than by the executor's own word, or has
    to make room: then it is releasing, or returning, and taken until the executor has acknowledged.
    What a returning one still generates counts."""

    RUNNING = "running"
    RETURNING = "returning"
    RELEASING = "releasing"


@dataclass(slots=True, eq=False)
class Seat:
    """One attempt at one request, on one executor. `booked` is the tokens that memory is kept for,
    `charge` what its tier was charged. `began` is the number of tokens that it had before, `moved`
    whether it got one since; `trial` says that it was there when an attempt failed, and that it has
    not moved since."""

    request: Request
    attempt: int
    booked: int
    charge: Charge
    began: int
    trial: bool
    moved: bool = False
    state: SeatState = SeatState.RUNNING

    @property
    def key(self) -> Key:
        """What the executor calls this attempt."""
        return Key(self.request.id, self.attempt)


@dataclass(slots=True, eq=False)
class ExecutorSeats:
    """The ledger of one executor. `limits` and `epoch` are its group's, in force from now on.

    `free_since` is the instant from which it could take a request without a break until now, and
    None while it can not; `reserved_tokens` is the KV memory that its requests may come to, and
    `unbounded` how many of them may come to more than is reserved. `context_tokens` were read in
    the last step and `kv_tokens` held after it, as it said; `prompt_tokens` are still to be
    prefilled; `trials` of its seats are on trial, `unmoved` have not had a token.
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
    unbounded: int = 0
    context_tokens: int = 0
    kv_tokens: int | None = None
    prompt_tokens: int = 0
    unmoved: int = 0
    trials: int = 0
    # Who did not fit into memory when last somebody looked; None once somebody left.
    too_large: Request | None = None
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

    def takes_prompts(self) -> bool:
        """Whether another prompt would be begun soon: what waits inside is out of order."""
        capacity = self.capacity
        if capacity is None or capacity.runs_to_completion:
            return True
        return self.prompt_tokens < PROMPT_STEPS * self.step_tokens

    def tier_room(self, tier: str, seats: int | None) -> bool:
        """Whether a tier with a cap of `seats` (None: no cap) may take one more."""
        return seats is None or self.by_tier.get(tier, 0) < seats

    def seat(self, request: Request, charge: Charge, *, priority: int) -> Submit:
        """Give a request a seat; answers the message that tells the executor."""
        request.attempt += 1
        request.state = State.RUNNING
        request.executor = self.name
        request.epoch = self.epoch
        booked, trial = request.work_tokens, request.suspects > 0
        seat = Seat(request, request.attempt, booked, charge, len(request.tokens), trial)
        self.seats[request.id, request.attempt] = seat
        self.by_tier[request.tier] = self.by_tier.get(request.tier, 0) + 1
        self.reserved_tokens += booked
        self.unbounded += request.expected_new_tokens is not None
        self.prompt_tokens += len(request.prompt) + len(request.tokens)
        self.unmoved += 1
        self.trials += trial
        return Submit(
            request.id,
            request.attempt,
            request.prompt + request.tokens,
            len(request.prompt),
            request.remaining_tokens,
            request.sampling,
            priority,
        )

    def find(self, request_id: str, attempt: int) -> Seat | None:
        """The seat of this attempt; None when it has been left."""
        return self.seats.get((request_id, attempt))

    def leave(self, seat: Seat) -> None:
        """The seat is free."""
        request = seat.request
        del self.seats[request.id, seat.attempt]
        self.by_tier[request.tier] -= 1
        self.reserved_tokens -= seat.booked
        self.unbounded -= request.expected_new_tokens is not None
        self.too_large = None
        if not seat.moved:
            self.note_moved(seat)

    def note_moved(self, seat: Seat) -> None:
        """An attempt got its first token, or will never get one."""
        seat.moved = True
        self.unmoved -= 1
        if seat.trial:
            seat.trial = False
            self.trials -= 1
        if not self.unmoved:
            # Prefixes that were cached were never computed: what is left is known to be nothing.
            self.prompt_tokens = 0

    def note_step(self, report: Report) -> None:
        """Keep what the last step says about the next."""
        self.kv_tokens = report.kv_tokens
        if (sample := report.sample) is None:
            return
        self.context_tokens = sample.context_tokens
        if sample.prefill_tokens:
            self.prompt_tokens = max(0, self.prompt_tokens - sample.prefill_tokens)

    def running(self) -> Iterator[Seat]:
        """The seats whose requests go on."""
        return (seat for seat in self.seats.values() if seat.state is SeatState.RUNNING)

    def clear(self) -> list[Seat]:
        """The executor is gone, and every seat with it."""
        seats = list(self.seats.values())
        self.seats.clear()
        self.by_tier.clear()
        self.reserved_tokens = self.unbounded = self.context_tokens = 0
        self.prompt_tokens = self.unmoved = self.trials = 0
        self.too_large = self.kv_tokens = None
        self.capacity = None
        self.free_since = None
        return seats
