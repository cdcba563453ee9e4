"""What a real model does with work that is run to completion: a batch begins when the one before it
is over; one report a step."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from time import perf_counter
from typing import Literal

import msgspec
import torch

from executor import demo_model, logprobs
from executor import model as models
from executor.continuous import is_out_of_memory
from executor.contract import (
    DEMO_MODEL,
    Capacity,
    Fault,
    Finished,
    Key,
    PaddedSettings,
    Ready,
    Report,
    Returned,
    Submit,
    Tokens,
    Work,
)
from executor.engine import Progress
from executor.padded_batch import PaddedBatch
from executor.padded_capacity import capacity_of
from executor.padded_rows import Row, Rows
from executor.paged import Advance
from executor.running import Running, name_of, sample
from executor.sampling import choose
from executor.warmup import warm_up


class PaddedEngine:
    """A causal language model run batch by batch; see `executor.engine.Engine`.

    What is submitted while a batch runs waits for the next one. A batch is prefilled in as many
    steps as its prompts, padded, need within `max_batch_tokens`, and then decodes a token of every
    row in a step. Padding is among the tokens that are reported of a step, since it takes time and
    memory. A batch that comes to more than the memory gives its youngest rows back.
    """

    def __init__(self, settings: PaddedSettings) -> None:
        self._settings = settings
        self._batch: PaddedBatch
        self._running: Running
        self._capacity: Capacity
        self._rows = Rows()
        self._epoch = 0
        self._max_tokens = 0
        self._has_new_epoch = False
        self._finished: list[Finished] = []
        self._released: list[Key] = []
        self._returned: list[Returned] = []

    def load(self, progress: Progress) -> Ready:
        """Load the weights and warm up. Raises ValueError where the settings can never work."""
        settings = self._settings
        # The daemon needs a core of its own: with torch on all there are, steps crawl.
        torch.set_num_threads(settings.threads or max(1, torch.get_num_threads() - 1))
        if settings.model == DEMO_MODEL:
            settings = msgspec.structs.replace(settings, model=str(demo_model.ensure(progress)))
        progress("loading weights", None)
        loaded = models.load(settings)
        self._batch = PaddedBatch(loaded.model)
        token_bytes = self._batch.try_out(loaded.vocabulary)
        self._capacity = capacity_of(settings, loaded, token_bytes)
        self._running = Running(self._capacity, loaded.vocabulary)
        self._max_tokens = self._capacity.max_step_tokens
        # Where layers keep a state instead of keys, a context cannot be made up.
        sizes = settings.warmup_sizes if self._batch.is_plain else ()
        samples = warm_up(self._batch, self._capacity, sizes=sizes, progress=progress)
        return Ready(capacity=self._capacity, text=loaded.text, warmup=samples)

    def apply(self, work: Work) -> None:
        """Take submits, then releases, and the limits; an impossible submit is given back."""
        self._has_new_epoch |= work.epoch != self._epoch
        self._epoch = work.epoch
        self._max_tokens = max(1, min(work.max_batch_tokens, self._capacity.max_step_tokens))
        for submit in work.submit:
            problem = self._problem(submit)
            if problem is not None:
                self._returned.append(problem)
                continue
            name, stop_ids = self._running.begin(submit)
            row = Row(name, submit.tokens, submit.max_new_tokens, stop_ids, submit.priority)
            self._rows.add(row)
        if work.release:
            self._rows.forget(self._running.release(work.release))
            self._released.extend(work.release)

    def has_work(self) -> bool:
        """Whether a sequence runs, or an end, a release, a refusal or new limits are to be told."""
        owed = self._rows.has_done or self._finished or self._released or self._returned
        return bool(len(self._running) or owed or self._has_new_epoch)

    def step(self) -> Report:
        """One iteration of the model; see `executor.engine.Engine`."""
        self._has_new_epoch = False
        measured, tokens, warning = None, list[Tokens](), ""
        if len(self._running):
            start = perf_counter()
            try:
                moved = self._advance()
                measured = sample(moved, perf_counter() - start)
                tokens = self._record(moved)
            except Exception as error:
                warning = self._recover(error)
        if self._rows.is_over:
            self._finished += self._rows.end_all()
            self._batch.reset()
        report = Report(
            epoch=self._epoch,
            steps=0 if measured is None else 1,
            sample=measured,
            kv_tokens=self._batch.held_tokens(),
            tokens=tokens,
            finished=self._finished,
            released=self._released,
            returned=self._returned,
            warning=warning,
        )
        self._finished, self._released, self._returned = [], [], []
        return report

    def inject(self, fault: Fault) -> None:
        """Raises ValueError: a real model cannot be told to misbehave."""
        raise ValueError(f"only a simulated executor can be told to {fault.kind}")

    def close(self) -> None:
        """Let go of the model and its memory."""
        del self._running, self._batch

    def _problem(self, submit: Submit) -> Returned | None:
        problem, most = self._running.problem(submit), self._capacity.max_step_tokens
        # What it generated before it was given back does not count: else it could not come back.
        if problem is not None or submit.prompt_length <= most:
            return problem
        detail = (
            f"a prompt of {submit.prompt_length} tokens exceeds max_step_tokens = {most}, and"
            " prompts are not split here"
        )
        return Returned(submit.request_id, submit.attempt, "does_not_fit", detail, fatal=True)

    def _advance(self) -> list[Advance]:
        """Compute the next prompts of the batch, or a token of every row; what each row did,
        padding included."""
        batch, rows = self._batch, self._rows
        batch.keep(rows.computed())
        if rows.is_over:
            rows.begin()
        self._make_room()
        # Rows of models that are not plain cannot be joined later.
        prompts = rows.next_prompts(self._max_tokens if batch.is_plain else None)
        if prompts:
            names, past = [row.name for row in prompts], 0
            queries = max(len(row.tokens) for row in prompts)
            read = {name for name in names if self._running.reads_prompt(name)}
            tokens = batch.prefill(
                [(row.name, row.tokens) for row in prompts],
                self._choose,
                lambda name, logits: self._running.read_prompt(name, 0, logits),
                read=read,
            )
            rows.prefilled(prompts)
        else:
            names, queries, past = batch.names, 1, batch.columns
            tokens = batch.decode(self._choose)
        return [
            Advance(name, queries, past, not prompts, token, self._is_last(name, token))
            for name, token in zip(names, tokens, strict=True)
        ]

    def _is_last(self, name: str, token: int) -> bool:
        return not self._rows.is_done(name) and self._rows.is_last(name, token)

    def _make_room(self) -> None:
        """Let the youngest go while the batch would come to more than the memory in this step."""
        rows, limit = self._rows, self._capacity.kv_tokens
        while True:
            count, width = rows.rectangle(self._batch.columns)
            if count < 2 or count * width <= limit:
                return
            if rows.has_done:
                self._finished += rows.end_all()
            else:
                detail = f"{count} rows of {width} tokens exceed kv_tokens = {limit}"
                self._give_back("out_of_memory", detail, [rows.youngest()])
            self._batch.keep(rows.computed())

    def _choose(self, logits: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
        going = [index for index, name in enumerate(names) if not self._rows.is_done(name)]
        if len(going) < len(names):
            # Those who are done are only computed on: any token will do.
            tokens = logits.new_zeros(len(names), dtype=torch.long)
            tokens[going] = self._choose(logits[going], [names[index] for index in going])
            return tokens
        rows = self._running.rows(names)
        asked = logprobs.Asked(logits, rows)
        tokens = choose(logits, rows)
        self._running.note(names, asked.of(tokens))
        return tokens

    def _record(self, moved: Sequence[Advance]) -> list[Tokens]:
        """The tokens to stream; who is done goes, or is computed on until all are."""
        going = [advance for advance in moved if not self._rows.is_done(advance.name)]
        tokens, finished = self._running.record(going)
        for one in finished:
            self._rows.finish(name_of(Key(one.request_id, one.attempt)), one)
        if self._settings.leave == "early":
            self._finished += self._rows.end_all()
        return tokens

    def _give_back(
        self,
        reason: Literal["error", "out_of_memory"],
        detail: str,
        names: Sequence[str] | None = None,
    ) -> int:
        """Give attempts back unfinished, all of them if none are named; answers how many."""
        returned = self._running.give_back(reason, detail, names)
        self._rows.forget(name_of(Key(one.request_id, one.attempt)) for one in returned)
        self._returned += returned
        return len(returned)

    def _recover(self, error: Exception) -> str:
        """Give everything back and start afresh; what to warn of. Raises where even that fails."""
        is_memory = is_out_of_memory(error)
        detail = f"{type(error).__name__}: {error}"
        count = self._give_back("out_of_memory" if is_memory else "error", detail)
        self._batch.reset()
        if is_memory and torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
        return f"a step failed, {count} requests are given back: {detail}"
