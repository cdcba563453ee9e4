"""Which attempts run on a real model, what each is owed next, and what a step means for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from executor.contract import (
    Capacity,
    Finished,
    Key,
    Returned,
    Sampling,
    StepSample,
    Submit,
    Tokens,
)
from executor.paged import Advance
from executor.sampling import Row


@dataclass(slots=True)
class Attempt:
    """`position` is the index in the completion of the next token; `hidden` are ids that it may
    not be, `hidden_early` those before `min_tokens`."""

    key: Key
    sampling: Sampling
    position: int
    stop_ids: frozenset[int]
    hidden: tuple[int, ...]
    hidden_early: tuple[int, ...]
    decodes: bool = False


class Running:
    """The attempts by the name that the engine has for each."""

    def __init__(self, capacity: Capacity, vocabulary: int) -> None:
        self._capacity = capacity
        self._vocabulary = vocabulary
        self._attempts: dict[str, Attempt] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def problem(self, submit: Submit) -> Returned | None:
        """Why this can never run here, if so: one bad request must not fail its neighbours."""
        length, limit = len(submit.tokens), self._capacity.max_context_tokens
        detail = ""
        if length == 0 or submit.max_new_tokens < 1:
            detail = f"{length} tokens and {submit.max_new_tokens} to come: neither may be 0"
        elif length + submit.max_new_tokens > limit:
            detail = (
                f"{length} tokens and {submit.max_new_tokens} to come exceed"
                f" max_context_tokens = {limit}"
            )
        elif not 0 <= min(submit.tokens) <= max(submit.tokens) < self._vocabulary:
            detail = f"a token id is outside the vocabulary of {self._vocabulary}"
        if not detail:
            return None
        return Returned(submit.request_id, submit.attempt, "does_not_fit", detail, fatal=True)

    def begin(self, submit: Submit) -> tuple[str, frozenset[int]]:
        """Take an attempt; answers its name and the ids that end it."""
        sampling, eos = submit.sampling, self._capacity.eos_token_ids
        stops = tuple(i for i in sampling.stop_token_ids if 0 <= i < self._vocabulary)
        attempt = Attempt(
            key=Key(submit.request_id, submit.attempt),
            sampling=sampling,
            position=len(submit.tokens) - submit.prompt_length,
            stop_ids=frozenset(stops if sampling.ignore_eos else (*eos, *stops)),
            hidden=eos if sampling.ignore_eos else (),
            hidden_early=(*eos, *stops),
        )
        name = name_of(attempt.key)
        self._attempts[name] = attempt
        return name, attempt.stop_ids

    def release(self, keys: Iterable[Key]) -> list[str]:
        """Forget attempts, known or not; answers their names."""
        names = [name_of(key) for key in keys]
        for name in names:
            self._attempts.pop(name, None)
        return names

    def rows(self, names: Sequence[str]) -> list[Row]:
        """How the next token of each is chosen."""
        rows = []
        for name in names:
            attempt = self._attempts[name]
            is_early = attempt.position < attempt.sampling.min_tokens
            forbidden = attempt.hidden_early if is_early else attempt.hidden
            rows.append(Row(attempt.sampling, attempt.position, forbidden))
        return rows

    def stalled(self, moved: Sequence[Advance], max_tokens: int) -> list[Key]:
        """Who stood still in a step for want of memory, not because the step was full."""
        if len(moved) == len(self._attempts):
            return []
        names = {advance.name for advance in moved}
        prefilled = sum(advance.queries for advance in moved if not advance.is_decode)
        is_full = sum(advance.queries for advance in moved) >= max_tokens
        return [
            attempt.key
            for name, attempt in self._attempts.items()
            # Who decodes goes before prompts: a prompt in the step means that there was a place.
            if name not in names and (not is_full or (attempt.decodes and prefilled))
        ]

    def record(self, moved: Sequence[Advance]) -> tuple[list[Tokens], list[Finished]]:
        """Advance the attempts that moved; who finished is forgotten."""
        tokens, finished = [], []
        for advance in moved:
            attempt = self._attempts[advance.name]
            if advance.token is None:
                continue
            attempt.decodes = True
            request_id, number = attempt.key.request_id, attempt.key.attempt
            tokens.append(Tokens(request_id, number, attempt.position, [advance.token]))
            attempt.position += 1
            if advance.is_finished:
                is_stop = advance.token in attempt.stop_ids
                finished.append(Finished(request_id, number, "stop" if is_stop else "length"))
                del self._attempts[advance.name]
        return tokens, finished

    def give_back(
        self,
        reason: Literal["error", "out_of_memory"],
        detail: str,
        names: Sequence[str] | None = None,
    ) -> list[Returned]:
        """Forget attempts, every one if none is named, unfinished."""
        names = list(self._attempts) if names is None else names
        keys = [self._attempts.pop(name).key for name in names]
        return [Returned(key.request_id, key.attempt, reason, detail) for key in keys]


def name_of(key: Key) -> str:
    """What an attempt is called inside the engine."""
    return f"{key.request_id}/{key.attempt}"


def sample(moved: Sequence[Advance], duration_s: float) -> StepSample:
    """What a step held."""
    prompts = [advance.queries for advance in moved if not advance.is_decode]
    return StepSample(
        duration_s=duration_s,
        sequences=len(moved),
        decodes=len(moved) - len(prompts),
        context_tokens=sum(advance.past for advance in moved),
        prefill_tokens=sum(prompts),
        prefill_squares=sum(queries**2 for queries in prompts),
    )
