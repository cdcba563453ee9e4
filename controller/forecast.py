"""What is about to happen, as far as the step model can tell: how long steps and requests take."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import attrgetter

from controller.ledger import ExecutorSeats, SeatState
from controller.lengths import LengthHistory
from controller.memory import peak_tokens
from controller.promises import NOTHING_KNOWN, Need
from controller.request import Request
from executor.contract import Capacity
from policies.contract import StepEstimate

Estimate = Callable[[str], StepEstimate | None]

# Predictions err: of the memory, so much is planned with.
KV_PLANNED = 0.97
# The model, how many run, their context, tokens in a step; then: a step with one more.
_Beside = tuple[StepEstimate | None, int, int, int, float]
_NOBODY: _Beside = (None, 0, 0, 1, 0.0)
_whole = attrgetter("whole_s")


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
        self._beside: dict[str, _Beside] = {}

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
        """What all together take for so many tokens of prompts; 0 while nothing is known."""
        costs = [
            model.d
            for seats in self._executors.values()
            if seats.capacity is not None and (model := self._estimate(seats.name)) is not None
        ]
        return tokens * _shared(costs)

    def delay_s(self, seats: ExecutorSeats, request: Request) -> float | None:
        """Until a request would be done on this executor, if it went there now.

        Shortest expected delay: where servers differ, going by it is nearly the best that can be
        done at the door (Banawan and Zahorjan 1989).
        """
        if (model := self._estimate(seats.name)) is None:
            return None
        has = _has(request)
        prompts = seats.prompt_tokens + has
        context = seats.reserved_tokens + request.work_tokens
        step_s = model.predict(len(seats.seats) + 1, context)
        return model.d * prompts + max(1, request.work_tokens - has) * step_s

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
        """What a request takes from its dispatch on, beside those that run now, where it takes
        least."""
        needs = [
            self._need(request, seats, seats.capacity, model)
            for seats in self._executors.values()
            if seats.capacity is not None and (model := self._estimate(seats.name)) is not None
        ]
        if len(needs) > 1:
            return min(needs, key=_whole)
        return needs[0] if needs else NOTHING_KNOWN

    def _need(
        self, request: Request, seats: ExecutorSeats, capacity: Capacity, model: StepEstimate
    ) -> Need:
        prompt, rows = len(request.prompt), len(seats.seats)
        # Asked for every request that comes: the running ones change less often.
        context, tokens = seats.context_tokens, seats.step_tokens
        beside = self._beside.get(seats.name, _NOBODY)
        if beside[:4] != (model, rows, context, tokens):
            beside = (model, rows, context, tokens, model.predict(rows + 1, context))
            self._beside[seats.name] = beside
        step_s, chunk = beside[4] + model.b * prompt, tokens - rows
        if not capacity.splits_prefill:
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
        prompts, new = map(sum, zip(*waiting, strict=True)) if waiting else (0, 0)
        alone = []
        for seats in self._executors.values():
            if seats.capacity is not None and (model := self._estimate(seats.name)) is not None:
                size = max(1, seats.size_limit)
                held = max(1, len(seats.seats))
                step_s = model.predict(size, seats.context_tokens / held * size)
                alone.append(prompts * model.d + new * step_s / size)
        return _shared(alone) if alone else None


def _shared(alone_s: Sequence[float]) -> float:
    """How long several take for what each would take so long for by itself: they share it by their
    speed. 0 of nobody, and where one needs no time."""
    if len(alone_s) == 1:
        return alone_s[0]
    return 1.0 / sum([1.0 / one for one in alone_s]) if alone_s and min(alone_s) > 0 else 0.0


def _has(request: Request) -> int:
    """Tokens of KV that a sequence holds once it is prefilled."""
    return len(request.prompt) + len(request.tokens)


def _room(seats: ExecutorSeats, known: int) -> float:
    """Tokens that may be planned with, where sequences are known to hold `known` of them."""
    assert seats.capacity is not None
    # Blocks are held whole: what an executor says that it holds is more than the tokens.
    beyond = 0 if seats.kv_tokens is None else max(0, seats.kv_tokens - known)
    return min(KV_PLANNED * seats.capacity.kv_tokens - beyond, seats.kv_limit)
