"""Who sits where: the seats of one executor, counted here and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from controller.request import Request, State
from executor.contract import Capacity, Key, Report, Submit
from policies.contract import Limits

# Prompts go to an executor for so many steps ahead: fewer would leave a step unfilled while the
# answer is on its way, more would queue where nobody can overtake.
PROMPT_STEPS = 2
# A prompt of so many steps is long: nobody waits for the whole of it.
LONG_STEPS = 16

# What somebody was refused for want of memory is looked at again after so many steps at the latest.
TOO_LARGE_STEPS = 32


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
    `paid` what of them its tier was owed. `began` is the number of tokens that it had before,
    `moved` whether it got one since, and `left` what of its prompt is still to be prefilled;
    `trial` says that it was there when an attempt failed, and that it has not moved since."""

    request: Request
    attempt: int
    booked: int
    paid: float
    priority: int
    began: int
    trial: bool
    left: int
    moved: bool = False
    state: SeatState = SeatState.RUNNING

    @property
    def charged(self) -> int:
        """Tokens that its tier was charged: not for a prompt that is computed once more."""
        prompt = len(self.request.prompt)
        return max(0, self.booked - prompt - self.began) + (prompt if self.attempt == 1 else 0)

    @property
    def key(self) -> Key:
        """What the executor calls this attempt."""
        return Key(self.request.id, self.attempt)


@dataclass(slots=True, eq=False)
class ExecutorSeats:
    """The ledger of one executor. `limits` and `epoch` are its group's, in force from now on.

    `free_since` is the instant from which it could take a request without a break until now, and
    None while it can not. `size_limit` is how many sequences it may hold, the limit within its
    capacity, and `step_tokens` how many tokens a step may, never fewer than that. `most_tokens` is
    the longest that one sequence may become there, alone, and `most_prompt` its longest prompt.
    `reserved_tokens` is the KV memory that its requests may come to, and
    `unbounded` how many of them may come to more than is reserved. `context_tokens` were read in
    the last step and `kv_tokens` held after it, as it said; `prompt_tokens` are still to be
    prefilled, those of the seats in `prefilling`; `trials` of its seats are on trial.
    """

    name: str
    group: str
    limits: Limits
    epoch: int = 0
    incarnation: int = 0
    capacity: Capacity | None = None
    back_at: float | None = 0.0
    free_since: float | None = None
    size_limit: int = 0
    step_tokens: int = 0
    most_tokens: int = 0
    most_prompt: int = 0
    reserved_tokens: int = 0
    unbounded: int = 0
    context_tokens: int = 0
    kv_tokens: int | None = None
    prompt_tokens: int = 0
    trials: int = 0
    # Who did not fit into memory when last somebody looked, and how many steps that is good for.
    too_large: Request | None = None
    too_large_steps: int = 0
    seats: dict[tuple[str, int], Seat] = field(default_factory=dict)
    prefilling: dict[tuple[str, int], Seat] = field(default_factory=dict)
    by_tier: dict[str, int] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Whether it takes work now."""
        return self.capacity is not None

    def bound(
        self, *, limits: Limits | None = None, epoch: int = 0, capacity: Capacity | None = None
    ) -> None:
        """Put limits (with their epoch) or a capacity in force."""
        if limits is not None:
            self.limits, self.epoch = limits, epoch
        if capacity is not None:
            self.capacity = capacity
        # Asked for every seat that is given away, so reckoned only where it may change.
        self.step_tokens = self.limits.max_batch_tokens
        if (has := self.capacity) is not None:
            self.size_limit = min(self.limits.max_batch_size, has.max_seqs)
            within = min(self.limits.max_batch_tokens, has.max_step_tokens)
            self.step_tokens = max(within, self.size_limit)
            self.most_tokens = min(has.max_context_tokens, has.kv_tokens)
            self.most_prompt = self.most_tokens if has.splits_prefill else has.max_step_tokens

    def room(self) -> int:
        """How many more sequences it can take now: none while a batch runs to completion."""
        capacity, taken = self.capacity, len(self.seats)
        if capacity is None or (taken and capacity.runs_to_completion):
            return 0
        return max(0, self.size_limit - taken)

    def note_room(self, now: float) -> int:
        """Keep `free_since` true, and answer the room: for when seats or limits changed."""
        room = self.room()
        if not room:
            self.free_since = None
        elif self.free_since is None:
            self.free_since = now
        return room

    def prompts_ahead(self, request: Request, priority: int) -> int:
        """Tokens of prompts that will be prefilled before this one's, if it goes now.

        Higher priorities go first, then older ones, except that where prompts are split a prompt of
        at most half the length passes (`executor.prefill_order`).
        """
        assert self.capacity is not None
        splits = self.capacity.splits_prefill
        passed = 2 * (len(request.prompt) + len(request.tokens)) if splits else math.inf
        return sum(
            seat.left
            for seat in self.prefilling.values()
            if seat.priority > priority or (seat.priority == priority and seat.left < passed)
        )

    def takes_prompt(self, request: Request, priority: int) -> bool:
        """Whether its prompt would be begun soon: what waits inside an executor waits in the order
        of its coming, and no longer in ours."""
        assert self.capacity is not None
        most = PROMPT_STEPS * self.step_tokens
        if self.prompt_tokens < most or self.capacity.runs_to_completion:
            return True
        return self.prompts_ahead(request, priority) < most

    def is_full_of_prompts(self, request: Request, priority: int) -> bool:
        """Whether so long a prompt is in prefill that steps are as long as they may be for a while
        without this one too, which would only have a part of the tokens of those that it passes."""
        assert self.capacity is not None
        long = LONG_STEPS * self.step_tokens
        if not self.capacity.splits_prefill or self.prompt_tokens < long:
            return False
        return self.prompt_tokens - self.prompts_ahead(request, priority) >= long

    def tier_room(self, tier: str, seats: int | None) -> bool:
        """Whether a tier with a cap of `seats` (None: no cap) may take one more."""
        return seats is None or self.by_tier.get(tier, 0) < seats

    def seat(self, request: Request, *, priority: int, paid: float) -> Submit:
        """Give a request a seat; answers the message that tells the executor."""
        request.attempt = attempt = request.attempt + 1
        request.state = State.RUNNING
        request.executor = self.name
        request.epoch = self.epoch
        booked, trial = request.work_tokens, request.suspects > 0
        prompt, has = request.prompt, len(request.tokens)
        left = len(prompt) + has
        seat = Seat(request, attempt, booked, paid, priority, has, trial, left)
        key = (request.id, attempt)
        self.seats[key] = self.prefilling[key] = seat
        self.by_tier[request.tier] = self.by_tier.get(request.tier, 0) + 1
        self.reserved_tokens += booked
        self.unbounded += request.expected_new_tokens is not None
        self.prompt_tokens += left
        self.trials += trial
        tokens = [] if isinstance(prompt, range) else prompt + request.tokens if has else prompt
        return Submit(
            request.id,
            attempt,
            tokens,
            left - has,
            request.max_new_tokens - has,
            request.sampling,
            priority,
            request.ask,
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
        self.too_large = None
        del self.prefilling[seat.request.id, seat.attempt]
        # Prefixes that were cached were never computed: what was left is known to be nothing.
        self.prompt_tokens -= seat.left
        seat.left = 0
        if seat.trial:
            seat.trial = False
            self.trials -= 1

    def note_too_large(self, request: Request) -> None:
        """Somebody does not fit beside those that run, which changes little until somebody leaves,
        or a prompt is done."""
        self.too_large, self.too_large_steps = request, TOO_LARGE_STEPS

    def can_ever_hold(self, request: Request) -> bool:
        """Whether an executor like this could hold the request if it were alone."""
        prompt = len(request.prompt)
        return prompt <= self.most_prompt and prompt + request.max_new_tokens <= self.most_tokens

    def note_step(self, report: Report) -> None:
        """Keep what the last step says about the next."""
        self.kv_tokens = report.kv_tokens
        self.too_large_steps -= report.steps
        if self.too_large_steps <= 0:
            self.too_large = None
        if (sample := report.sample) is None:
            return
        self.context_tokens = sample.context_tokens
        done = sample.prefill_tokens
        assert self.capacity is not None
        if not done or not self.prefilling or not self.capacity.tells_prefill:
            return
        # Nobody says whose they were: in order of priority and age is near enough.
        for seat in sorted(self.prefilling.values(), key=lambda seat: -seat.priority):
            part = min(seat.left, done)
            seat.left -= part
            self.prompt_tokens -= part
            done -= part

    def running(self) -> Iterator[Seat]:
        """The seats whose requests go on."""
        return (seat for seat in self.seats.values() if seat.state is SeatState.RUNNING)

    def clear(self) -> list[Seat]:
        """The executor is gone, and every seat with it."""
        seats = list(self.seats.values())
        self.seats.clear()
        self.by_tier.clear()
        self.reserved_tokens = self.unbounded = self.context_tokens = 0
        self.prefilling.clear()
        self.prompt_tokens = self.trials = 0
        self.too_large = self.kv_tokens = None
        self.capacity = None
        self.size_limit = self.most_tokens = self.most_prompt = 0
        self.free_since = None
        return seats
