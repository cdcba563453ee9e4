"""When the steps of an engine behind HTTP were, told from the instants at which its tokens came.

An engine sends the tokens of one step together. So tokens that come together are taken for one
step, which began when those before it came, or when the engine was given something after a rest. A
step is over when somebody has a token for the second time, or nothing came for half a step: some
engines send all tokens at once, some a little at a time, and some wait for a prompt in between.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from executor.contract import StepSample

# Nothing more of a step comes after so long: half of the step before, within these bounds.
LEAST_GAP_S = 0.002
MOST_GAP_S = 0.05
FIRST_GAP_S = 0.005


class Arrival(NamedTuple):
    """New tokens of one sequence. `context` is what it held before them; `prompt` the tokens of its
    prompt where these are its first, else 0."""

    key: Hashable
    tokens: int
    context: int
    prompt: int


class Step(NamedTuple):
    """`steps` equal steps, taken under the limits of `epoch`; `sample` is of all of them."""

    steps: int
    epoch: int
    sample: StepSample


@dataclass(slots=True)
class _Burst:
    began_at: float
    last_at: float
    duration_s: float
    epoch: int
    rows: dict[Hashable, int] = field(default_factory=dict)
    context: int = 0
    prefill: int = 0
    squares: int = 0
    firsts: int = 0


class Bursts:
    """The steps of one engine. Instants are monotonic seconds."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._burst: _Burst | None = None
        self._gap_s = FIRST_GAP_S

    @property
    def over_at(self) -> float | None:
        """The instant from which the step under way is over, unless more comes; None: there is
        none of which anything has come."""
        return None if self._burst is None else self._burst.last_at + self._gap_s

    def begin(self, now: float) -> None:
        """The engine was given something to do; it was at rest unless something was under way."""
        if self._since is None:
            self._since = now

    def come(self, arrivals: Sequence[Arrival], now: float, *, epoch: int) -> Step | None:
        """Tokens came, each sequence named once; answers the step before, where this is another."""
        burst, done = self._burst, None
        if burst is not None and (
            now > burst.last_at + self._gap_s or any(one.key in burst.rows for one in arrivals)
        ):
            done, burst = self.close(), None
        if burst is None:
            since = now if self._since is None else self._since
            burst = self._burst = _Burst(now, now, now - since, epoch)
            self._since = now
        burst.last_at = now
        for one in arrivals:
            burst.rows[one.key] = one.tokens
            burst.context += one.context
            burst.prefill += one.prompt
            burst.squares += one.prompt**2
            burst.firsts += one.prompt > 0
        return done

    def close(self) -> Step | None:
        """The step under way is over; None where there is none, or nobody knows how long it was."""
        burst, self._burst = self._burst, None
        if burst is None or burst.duration_s <= 0:
            return None
        # Whoever got several tokens at once had several steps, or as many tokens as these give.
        steps = max(1, *burst.rows.values())
        rows = max(1, round(sum(burst.rows.values()) / steps))
        step_s = burst.duration_s / steps
        self._gap_s = min(MOST_GAP_S, max(LEAST_GAP_S, step_s / 2))
        sample = StepSample(
            duration_s=burst.duration_s,
            sequences=rows,
            decodes=max(0, rows - burst.firsts),
            context_tokens=burst.context,
            prefill_tokens=burst.prefill,
            prefill_squares=burst.squares,
        )
        return Step(steps, burst.epoch, sample)

    def rest(self) -> None:
        """Nothing is under way any more."""
        self._since = None
