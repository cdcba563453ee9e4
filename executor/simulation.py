"""What a simulated executor does in each step and how long it takes, with no clock and no sleep.

The process of a simulated executor and a simulator in virtual time drive the very same model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Literal

from executor.contract import (
    Fault,
    Finished,
    Key,
    Report,
    Returned,
    SimulatedSettings,
    StepSample,
    Submit,
    Tokens,
)
from executor.simulated_rows import Plan, Row, plan_chunked, plan_prefill_first, refusal, row_of


def step_time_s(settings: SimulatedSettings, sample: StepSample) -> float:
    """Seconds of a step with these contents, jitter aside; `sample.duration_s` is not read."""
    return seconds_of(
        settings,
        sample.sequences,
        context=sample.context_tokens,
        prefill=sample.prefill_tokens,
        squares=sample.prefill_squares,
    )


def seconds_of(
    settings: SimulatedSettings, sequences: int, *, context: int, prefill: int, squares: int
) -> float:
    """As `step_time_s`, where there is no sample yet."""
    above = max(0, sequences - settings.knee)
    return (
        settings.a_s
        + settings.b_s * context
        + settings.c_s * (sequences - above)
        + settings.c_above_s * above
        + settings.d_s * prefill
        + settings.e_s * squares
    )


class Simulation:
    """The sequences on one simulated executor.

    Three kinds. *Run to completion*: what was begun together is prefilled and decoded to its end,
    and what comes meanwhile waits for that; a row costs as long as its batch lasts, and its seat
    and KV are free when it is done itself. *Prefill first*: a step prefills whole prompts or else
    decodes. *Chunked*: a step decodes, and spends the rest of `max_batch_tokens` on prompts.

    `context_tokens` in a sample is the KV that the rows held when the step began.
    """

    def __init__(self, settings: SimulatedSettings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)
        # Log-normal with mean 1: never negative, and exactly as wide as was asked for.
        variance = math.log1p(settings.jitter**2)
        self._noise_mean, self._noise_sigma = -variance / 2, math.sqrt(variance)
        self._max_batch_tokens = settings.max_step_tokens
        self._epoch = 0
        self._running: dict[Key, Row] = {}
        self._waiting: dict[Key, Row] = {}
        self._batch_rows = 0
        self._kv_held = 0
        self._released: list[Key] = []
        self._returned: list[Returned] = []
        self._faults: list[Fault] = []

    def limit(self, epoch: int, max_batch_tokens: int) -> None:
        """Put a token budget in force, from the next step on."""
        self._epoch = epoch
        self._max_batch_tokens = max(1, min(max_batch_tokens, self._settings.max_step_tokens))

    def begin(self, submits: Iterable[Submit]) -> None:
        """Take sequences; one that has no place is given back with the next report.

        Raises ValueError for an attempt that runs already.
        """
        for submit in submits:
            row = row_of(self._settings, submit)
            if row.key in self._running or row.key in self._waiting:
                raise ValueError(f"{submit.request_id}, attempt {submit.attempt}, runs already")
            never = refusal(self._settings, submit)
            if never is not None:
                self._return(row.key, "does_not_fit", detail=never, fatal=True)
            elif len(self._running) + len(self._waiting) >= self._settings.max_seqs:
                detail = f"all {self._settings.max_seqs} seats are taken"
                self._return(row.key, "error", detail=detail)
            elif self._settings.runs_to_completion:
                self._waiting[row.key] = row
            else:
                self._running[row.key] = row

    def release(self, keys: Iterable[Key]) -> None:
        """Let sequences go; each key is acknowledged once, also one that is over already."""
        for key in keys:
            self._remove(key)
            self._released.append(key)

    def inject(self, fault: Fault) -> None:
        """Let the next step with a sequence stall, fail or run out of memory.

        Raises ValueError for a fault that only a process can have.
        """
        if fault.kind == "exit":
            raise ValueError("a simulation has no process that could exit")
        self._faults.append(fault)

    def has_work(self) -> bool:
        """Whether there is a sequence to step or something to acknowledge."""
        return bool(self._running or self._waiting or self._released or self._returned)

    def next_step(self) -> tuple[float, Report]:
        """Take one step: how long it lasts in seconds (a stall included), and what came of it.

        `_plan` says which rows and how many tokens, `_sample` prices them, `_advance` moves each
        row on. Where equal decode steps are taken as one: `executor.simulated_leaps`.
        """
        if not self._running:
            self._running, self._waiting = self._waiting, self._running
            self._batch_rows = len(self._running)
        stall_s = self._suffer() if self._running else 0.0
        plan, stalled = self._plan()
        while self._running and not plan:
            # Everybody waits for memory that somebody else holds: the youngest makes room.
            youngest = [row for row in self._running.values() if row.kv][-1]
            self._give_back([youngest], "out_of_memory", detail="no KV left for any sequence")
            plan, stalled = self._plan()
        sample = self._sample(plan) if plan else None
        if self._fails(plan):
            # The step was worth nothing, but it took its time.
            assert sample is not None
            stall_s += sample.duration_s
            plan, stalled, sample = [], [], None
        tokens, finished = self._advance(plan)
        report = Report(
            epoch=self._epoch,
            steps=1 if plan else 0,
            sample=sample,
            kv_tokens=self._kv_held,
            tokens=tokens,
            finished=finished,
            released=self._released,
            returned=self._returned,
            stalled=stalled,
            utilization=self._utilization(sample),
        )
        self._released, self._returned = [], []
        return stall_s + (sample.duration_s if sample is not None else 0.0), report

    def _suffer(self) -> float:
        """Let what was injected happen; answers the seconds that it takes."""
        stall_s = 0.0
        for fault in self._faults:
            everybody = [*self._running.values(), *self._waiting.values()]
            if fault.kind == "stall":
                stall_s += fault.seconds
            elif fault.kind == "oom":
                self._give_back(everybody, "out_of_memory", detail="told to run out of memory")
            else:
                self._give_back(everybody, "error", detail="told to fail")
        self._faults.clear()
        return stall_s

    def _fails(self, plan: Plan) -> bool:
        """Whether the step runs out of memory, and with it everything that there is."""
        bound = self._settings.fails_above_tokens
        held = self._kv_held + sum(count for _, count in plan)
        if not bound or held <= bound:
            return False
        everybody = [*self._running.values(), *self._waiting.values()]
        detail = f"{held} tokens do not fit into the {bound} that there really are"
        self._give_back(everybody, "out_of_memory", detail=detail)
        return True

    def _give_back(
        self, rows: Iterable[Row], reason: Literal["error", "out_of_memory"], *, detail: str
    ) -> None:
        for row in rows:
            self._remove(row.key)
            self._return(row.key, reason, detail=detail)

    def _return(
        self,
        key: Key,
        reason: Literal["error", "out_of_memory", "does_not_fit"],
        *,
        detail: str,
        fatal: bool = False,
    ) -> None:
        self._returned.append(Returned(key.request_id, key.attempt, reason, detail, fatal))

    def _remove(self, key: Key) -> None:
        row = self._running.pop(key, None) or self._waiting.pop(key, None)
        if row is not None:
            self._kv_held -= row.kv

    def _plan(self) -> tuple[Plan, list[Key]]:
        settings = self._settings
        whole = settings.runs_to_completion or not settings.splits_prefill
        plan = plan_prefill_first if whole else plan_chunked
        free = settings.kv_tokens - self._kv_held
        return plan(list(self._running.values()), self._max_batch_tokens, free=free)

    def _sample(self, plan: Plan) -> StepSample:
        settings, rows = self._settings, len(plan)
        prompts = context = prefill = squares = 0
        for row, count in plan:
            context += row.kv
            if row.need:
                prompts += 1
                prefill += count
                squares += count * count
        sequences = self._batch_rows if settings.runs_to_completion else rows
        base_s = seconds_of(settings, sequences, context=context, prefill=prefill, squares=squares)
        return StepSample(
            base_s * self._noise(), sequences, rows - prompts, context, prefill, squares
        )

    def _noise(self) -> float:
        """What a step's time is multiplied by."""
        if not self._noise_sigma:
            return 1.0
        return self._random.lognormvariate(self._noise_mean, self._noise_sigma)

    def _advance(self, plan: Plan) -> tuple[list[Tokens], list[Finished]]:
        tokens: list[Tokens] = []
        finished: list[Finished] = []
        for row, count in plan:
            row.kv += count
            self._kv_held += count
            if row.need:
                row.need -= count
                if row.need:
                    continue
            request_id, attempt = row.key.request_id, row.key.attempt
            token, end = row.draw(self._settings.seed)
            tokens.append(Tokens(request_id, attempt, row.position, [token]))
            row.position += 1
            if end is not None:
                self._remove(row.key)
                finished.append(Finished(request_id, attempt, end))
        return tokens, finished

    def _utilization(self, sample: StepSample | None) -> float | None:
        claimed = self._settings.utilization
        if claimed == "model":
            return sample.sequences / self._settings.max_seqs if sample is not None else 0.0
        return claimed
