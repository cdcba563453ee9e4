"""What is about to happen, as far as the step model can tell: how long steps and requests take."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Container, Iterable, Mapping

from controller.ledger import ExecutorSeats, SeatState
from controller.lengths import LengthHistory
from controller.memory import peak_tokens
from controller.promises import NOTHING_KNOWN, Need
from controller.request import Request
from policies.contract import StepEstimate

Estimate = Callable[[str], StepEstimate | None]

# Predictions err: of the memory, so much is planned with.
KV_PLANNED = 0.97


class Forecast:
    """Answers in seconds, and None where nothing is known yet.

    `estimate` answers the step model of an executor, `lengths` are the completions of each tier.
    """

    def __init__(
        self,
        executors: Mapping[str, ExecutorSeats],
        estimate: Estimate,
        lengths: Mapping[str, LengthHistory],
    ) -> None:
        self._executors = executors
        self._estimate = estimate
        self._lengths = lengths
        # The model, how many run, their context, tokens in a step; then: a step with one more.
        self._beside: tuple[StepEstimate | None, int, int, int, float] = (None, 0, 0, 1, 0.0)

    def model(self, executor: str) -> StepEstimate | None:
        """The step model of one executor."""
        return self._estimate(executor)

    def step_s(self, seats: ExecutorSeats, more: int = 0, *, context: int = 0) -> float | None:
        """The next decode step, with `more` sequences of together `context` tokens beside those
        that run."""
        model = self._estimate(seats.name)
        if model is None:
            return None
        return model.predict(len(seats.seats) + more, seats.context_tokens + context)

    def least_s(self) -> float:
        """The shortest step there can be, 0 where nothing is known."""
        models = [self._estimate(name) for name in self._executors]
        return min((model.predict(1, 0) for model in models if model is not None), default=0.0)

    def ready(self) -> int:
        """How many executors share the work, at least 1."""
        return max(1, sum([seats.ready for seats in self._executors.values()]))

    def prompts_s(self, tokens: int) -> float:
        """What an executor takes for so many tokens of prompts; 0 while nothing is known."""
        for seats in self._executors.values():
            if (model := self._estimate(seats.name)) is not None:
                return model.d * tokens
        return 0.0

    def prompts_left(self, priority: int) -> int:
        """Tokens that executors still have to prefill before a prompt of this priority."""
        return sum(
            [
                seat.left
                for seats in self._executors.values()
                for seat in seats.prefilling.values()
                if seat.priority >= priority
            ]
        )

    def need(self, request: Request) -> Need:
        """What a request takes from its dispatch on, beside those that run now."""
        for seats in self._executors.values():
            if seats.capacity is not None and (model := self._estimate(seats.name)) is not None:
                break
        else:
            return NOTHING_KNOWN
        prompt, rows = len(request.prompt), len(seats.seats)
        # Asked for every request that comes: the running ones change less often.
        context, tokens = seats.context_tokens, seats.step_tokens
        if self._beside[:4] != (model, rows, context, tokens):
            self._beside = (model, rows, context, tokens, model.predict(rows + 1, context))
        step_s, chunk = self._beside[4] + model.b * prompt, tokens - rows
        if not seats.capacity.splits_prefill:
            first_s = model.a + prompt * (model.d + model.e * prompt)
        elif prompt <= chunk:
            first_s = step_s + prompt * (model.d + model.e * prompt)
        else:
            chunk = max(1, chunk)
            first_s = -(-prompt // chunk) * step_s + prompt * (model.d + model.e * chunk)
        expected = request.expected_new_tokens
        new = request.max_new_tokens if expected is None else expected
        return Need(first_s, first_s + new * step_s)

    def to_come(self, request: Request) -> int:
        """Tokens that a running request will still generate, at least 1."""
        has, expected = len(request.tokens), request.expected_new_tokens
        if expected is None:
            return max(1, request.max_new_tokens - has)
        if has >= expected:
            known = self._lengths[request.tier].expected(has, at_most=request.max_new_tokens)
            expected = has + max(16, has // 8) if known is None else known
        return max(1, min(expected, request.max_new_tokens) - has)

    def fits(
        self, seats: ExecutorSeats, request: Request, *, without: Container[tuple[str, int]]
    ) -> bool:
        """Whether the memory suffices for a request when those that run hold the most; `without`
        are the keys of seats that will be free by then."""
        holdings, known = [], 0
        for key, seat in seats.seats.items():
            has = _has(seat.request)
            known += has - seat.left
            if key not in without:
                holdings.append((self.to_come(seat.request), has))
        has = _has(request)
        holdings.append((request.work_tokens - has, has))
        return peak_tokens(holdings) <= _room(seats, known)

    def memory_s(self, seats: ExecutorSeats, request: Request) -> float | None:
        """Until enough of those that run have ended for a request to fit. Infinite: never."""
        step_s = self.step_s(seats)
        if step_s is None:
            return None
        ends, holdings, known = [], [], 0
        for key, seat in seats.seats.items():
            has, to_come = _has(seat.request), self.to_come(seat.request)
            known += has - seat.left
            holdings.append(((to_come, has), key))
            if seat.state is SeatState.RUNNING:
                ends.append((to_come, key))
        ends.sort()
        # Once for all counts that are tried; sorted, which `peak_tokens` is quick with.
        holdings.sort(reverse=True)
        room = _room(seats, known)

        def enough(count: int) -> bool:
            gone = {key for _, key in ends[:count]}
            left = [holding for holding, key in holdings if key not in gone]
            has = _has(request)
            return peak_tokens([*left, (request.work_tokens - has, has)]) <= room

        first = bisect.bisect_left(range(1, len(ends) + 1), True, key=enough)
        return ends[first][0] * step_s if first < len(ends) else math.inf

    def ends(self, seats: ExecutorSeats) -> list[int]:
        """How many tokens each that runs has still to come, least first."""
        running, to_come = SeatState.RUNNING, self.to_come
        return sorted(
            [
                seat.request.max_new_tokens - len(seat.request.tokens)
                if seat.request.expected_new_tokens is None
                else to_come(seat.request)
                for seat in seats.seats.values()
                if seat.state is running
            ]
        )

    def drain_s(self, waiting: Iterable[tuple[int, int]]) -> float | None:
        """How long all executors together take for work, given as pairs of (prompt, new) tokens."""
        speeds = []
        for seats in self._executors.values():
            if seats.capacity is not None and (model := self._estimate(seats.name)) is not None:
                size = max(1, seats.size_limit)
                held = max(1, len(seats.seats))
                step_s = model.predict(size, seats.context_tokens / held * size)
                speeds.append((model.d, step_s / size))
        if not speeds:
            return None
        prompts, new = map(sum, zip(*waiting, strict=True)) if waiting else (0, 0)
        # Like executors share the work equally.
        mean_d = sum(d for d, _ in speeds) / len(speeds)
        mean_new = sum(s for _, s in speeds) / len(speeds)
        return (prompts * mean_d + new * mean_new) / len(speeds)


def _has(request: Request) -> int:
    """Tokens of KV that a sequence holds once it is prefilled."""
    return len(request.prompt) + len(request.tokens)


def _room(seats: ExecutorSeats, known: int) -> float:
    """Tokens that may be planned with, where sequences are known to hold `known` of them."""
    assert seats.capacity is not None
    # Blocks are held whole: what an executor says that it holds is more than the tokens.
    beyond = 0 if seats.kv_tokens is None else max(0, seats.kv_tokens - known)
    return min(KV_PLANNED * seats.capacity.kv_tokens - beyond, seats.kv_limit)
