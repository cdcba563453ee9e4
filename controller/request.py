"""The request: what was asked for, how far it is, where its time went, and how it ended."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from executor.contract import Ask, Refusal, Sampling


class Outcome(StrEnum):
    """How a request ends: exactly one of these, exactly once."""

    FINISHED = "finished"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


class State(StrEnum):
    """Where a request is now."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True)
class Timeline:
    """Instants of one request on the monotonic clock, in seconds; None has not happened.

    `dispatched` is the first dispatch.
    """

    dispatched: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None


@dataclass(slots=True, eq=False)
class Request:
    """One completion asked for.

    `arrival` is monotonic, `arrived_at` wall clock (unix seconds); both are the arrival at the
    daemon, before parsing. `start_by` and `finish_by` are monotonic deadlines: past the first a
    request expires that waits and has no token yet, past the second a running one ends too.
    `expected_new_tokens` is how long the completion is thought to become where the client set no
    bound of its own, and `work_tokens` prompt plus completion as far as that can be told: what it
    will hold in KV memory. `due` is the instant by which it has to begin to meet its tier's targets
    (infinite: there is none), and `first_s` what its first token takes. `rank` and then `place`
    order those of one client, and `line` is where in its queue it waits, the queue's own business.
    `size` is the bytes that it takes up in its queue, the first time.
    `prompt` is a range, as long as the prompt is thought to be, where the engine reads text by
    itself; then `ask` is what it gets. `unseen`: nobody sees anything of it before it is whole, so
    that it may begin again.
    `tokens` is the completion so far and survives a preemption; `attempt` counts dispatches,
    `preemptions` the seats that it gave up for others, `faults` the attempts that an executor gave
    back or lost, and `suspects` how many of those that were with it then may be to blame, until it
    moves again; `shuns` is an executor that failed with it alone.
    """

    id: str
    tier: str
    client: str
    prompt: list[int] | range
    max_new_tokens: int
    sampling: Sampling
    arrival: float
    arrived_at: float
    start_by: float | None = None
    finish_by: float | None = None
    expected_new_tokens: int | None = None
    ask: Ask | None = None
    unseen: bool = False
    work_tokens: int = field(init=False)
    place: int = 0
    size: int = 0
    rank: float = 0.0
    due: float = math.inf
    first_s: float = 0.0
    line: object = None
    tokens: list[int] = field(default_factory=list)
    attempt: int = 0
    preemptions: int = 0
    suspects: int = 0
    shuns: str | None = None
    faults: int = 0
    state: State = State.QUEUED
    executor: str | None = None
    epoch: int | None = None
    times: Timeline = field(default_factory=Timeline)
    hold_s: float = 0.0
    outcome: Outcome | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        self.expect(self.expected_new_tokens)

    def expect(self, new_tokens: int | None) -> None:
        """How long the completion is thought to become; None: as long as it may."""
        self.expected_new_tokens = new_tokens
        new_tokens = self.max_new_tokens if new_tokens is None else new_tokens
        self.work_tokens = len(self.prompt) + new_tokens

    def learn_prompt(self, tokens: int) -> None:
        """How many tokens the prompt really has, where that was a guess."""
        self.work_tokens += tokens - len(self.prompt)
        self.prompt = range(tokens)

    @property
    def remaining_tokens(self) -> int:
        """How many tokens may still be generated."""
        return self.max_new_tokens - len(self.tokens)


class Ended(NamedTuple):
    """The end of a request, told once. `reason` is a code (`stop`, `length`, `disconnect`,
    `start_by`, `finish_by`, ...), `detail` the words for the public, `refusal` those of an engine
    that does not take it."""

    request: Request
    outcome: Outcome
    reason: str
    detail: str = ""
    refusal: Refusal | None = None
