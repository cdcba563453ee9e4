"""Which attempts run on a real model, what each is owed next, and what a step means for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from executor import logprobs
from executor.adjustments import Adjustment
from executor.contract import (
    Capacity,
    Finished,
    Key,
    Logprobs,
    Returned,
    Sampling,
    StepSample,
    Submit,
    TokenLogprob,
    Tokens,
)
from executor.paged import Advance
from executor.sampling import Row


@dataclass(slots=True)
class Attempt:
    """`position` is the index in the completion of the next token; `hidden` are ids that it may
    not be, `hidden_early` those before `min_tokens`. `of_token` is the log-probability of the token
    that goes out next, where it is wanted; `of_prompt` those of its `prompt` as far as it is
    computed, which go out with the first token."""

    key: Key
    sampling: Sampling
    position: int
    stop_ids: frozenset[int]
    hidden: tuple[int, ...]
    hidden_early: tuple[int, ...]
    adjustment: Adjustment | None
    prompt: Sequence[int] = ()
    of_prompt: list[TokenLogprob] = field(default_factory=list)
    of_token: TokenLogprob | None = None
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
            adjustment=Adjustment.of(
                sampling, submit.tokens, submit.prompt_length, vocabulary=self._vocabulary
            ),
        )
        # With the first token those of the prompt have gone out, whatever became of the attempt.
        if sampling.prompt_logprobs and not attempt.position:
            attempt.prompt = submit.tokens
        name = name_of(attempt.key)
        self._attempts[name] = attempt
        return name, attempt.stop_ids

    def reads_prompt(self, name: str) -> bool:
        """Whether `read_prompt` is owed the logits of every token of its prompt."""
        return bool(self._attempts[name].prompt)

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
            rows.append(Row(attempt.sampling, attempt.position, forbidden, attempt.adjustment))
        return rows

    def read_prompt(self, name: str, past: int, logits: torch.Tensor) -> None:
        """Take the `logits` [n, vocabulary] of n tokens of its prompt, the first of which has
        `past` others before it."""
        attempt = self._attempts[name]
        targets = attempt.prompt[past + 1 : past + 1 + len(logits)]
        told = logprobs.of_prompt(logits, targets, attempt.sampling.logprobs or 0)
        # A prompt that had to make room for others is computed again from its beginning.
        attempt.of_prompt[past:] = told

    def note(self, names: Sequence[str], told: Mapping[int, TokenLogprob]) -> None:
        """Keep what goes out with the tokens that were chosen for these, by their places."""
        for place, one in told.items():
            self._attempts[names[place]].of_token = one

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
            told, ids = _told(attempt), [advance.token]
            tokens.append(Tokens(request_id, number, attempt.position, ids, logprobs=told))
            attempt.position += 1
            if attempt.adjustment is not None:
                attempt.adjustment.add(advance.token)
            if advance.is_finished:
                is_stop = advance.token in attempt.stop_ids
                finished.append(Finished(request_id, number, "stop" if is_stop else "length"))
                del self._attempts[advance.name]
        return tokens, finished

    def give_back(self, reason: Literal["error", "out_of_memory"], detail: str) -> list[Returned]:
        """Forget every attempt, unfinished."""
        keys = [attempt.key for attempt in self._attempts.values()]
        self._attempts.clear()
        return [Returned(key.request_id, key.attempt, reason, detail) for key in keys]


def _told(attempt: Attempt) -> Logprobs | None:
    """What goes out with its next token."""
    if attempt.of_token is None:
        return None
    told = Logprobs([attempt.of_token], attempt.of_prompt)
    attempt.of_token, attempt.prompt, attempt.of_prompt = None, (), []
    return told


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
