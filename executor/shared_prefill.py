"""Which sequences have a part of a step of transformers' continuous batching: ours, in its terms.

With `executor.paged` the only file that knows the insides of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.scheduler import (
    SCHEDULER_MAPPING,
    FIFOScheduler,
)

from executor import prefill_order

_Scheduled = tuple[list[FutureRequestState], bool, bool, int, int]
NAME = "headway_shared_prefill"


@dataclass
class _Rounds:
    """What transformers made of one group of sequences after the other, as if of one."""

    scheduler: Any
    process: Callable[..., _Scheduled]
    tokens: int
    cache: int
    passed: set[str]
    futures: list[FutureRequestState] = field(default_factory=list)
    failed: bool = False
    is_fast: bool = True
    starved: list[Any] = field(default_factory=list)

    def take(self, states: list[RequestState], tokens: int) -> None:
        """Let these have up to so many tokens."""
        if not states or tokens < 1:
            return
        futures, failed, is_fast, used, read = self.process(states, tokens, self.cache, self.passed)
        self.futures += futures
        self.failed |= failed
        self.is_fast &= is_fast
        self.tokens -= used
        self.cache -= read
        self.starved += self.scheduler.starved_requests

    def result(self, tokens: int, cache: int) -> _Scheduled:
        """The whole, where the step began with so many tokens, and reads of the cache."""
        used, read = tokens - self.tokens, cache - self.cache
        return self.futures, self.failed, self.is_fast, used, read


class SharedPrefillScheduler(FIFOScheduler):
    """Decodes first, as in transformers; then prompts, as `executor.prefill_order` says.

    `priorities` are by name: transformers makes a new record of a sequence that it starts again.
    `unshared` are the names of those whose prompts are computed in full.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.priorities: dict[str, int] = {}
        self.unshared: set[str] = set()

    def forget(self, name: str) -> None:
        """A sequence is over, known or not."""
        self.priorities.pop(name, None)
        self.unshared.discard(name)

    def _process_candidates(
        self,
        candidates: list[RequestState],
        token_budget: int,
        cache_budget: int,
        request_ids_to_remove_from_waiting: set[str],
    ) -> _Scheduled:
        """In rounds: within one, everybody takes all that is left when its turn comes."""
        decodes = [state for state in candidates if state.status == RequestStatus.DECODING]
        prompts = [state for state in candidates if state.status != RequestStatus.DECODING]
        passed = request_ids_to_remove_from_waiting
        if len(prompts) < 2 or token_budget <= len(decodes):
            process = super()._process_candidates
            return process(decodes + prompts, token_budget, cache_budget, passed)
        # Highest priority first; within one the oldest, so that it is the last to find no memory.
        prompts.sort(key=lambda state: (-self._priority(state), float(state.created_time)))
        rounds = _Rounds(self, super()._process_candidates, token_budget, cache_budget, passed)
        rounds.take(decodes, len(decodes))
        for _, group in groupby(prompts, key=self._priority):
            mine = list(group)
            lengths = [len(state.remaining_prefill_tokens) for state in mine]
            kept, others = prefill_order.order(lengths, max(0, rounds.tokens))
            rounds.take(mine[:1], kept)
            rounds.take([mine[index] for index in others], rounds.tokens)
        self.starved_requests = rounds.starved
        return rounds.result(token_budget, cache_budget)

    def _infer_request_tokens(
        self, state: RequestState, request_ids_to_remove_from_waiting: set[str]
    ) -> list[int]:
        """Without a look for a prefix that others have computed, where there shall be none."""
        if state.request_id in self.unshared and state.status == RequestStatus.PENDING:
            return state.remaining_prefill_tokens
        return super()._infer_request_tokens(state, request_ids_to_remove_from_waiting)

    def _priority(self, state: RequestState) -> int:
        return self.priorities[state.request_id]


def register() -> None:
    """Make the scheduler known to transformers by its `NAME`."""
    SCHEDULER_MAPPING[NAME] = SharedPrefillScheduler
