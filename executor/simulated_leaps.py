"""Many equal decode steps of a simulated executor taken as one, for those who have no time to wait.

The steps are those of `Simulation`: same rows, same durations, same ends. Only the word of them
comes in fewer reports, and what is generated is counted and not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal

from executor.contract import (
    Finished,
    FinishReason,
    Key,
    Report,
    SimulatedSettings,
    StepSample,
    Submit,
    Tokens,
)
from executor.simulated_rows import Plan, Row
from executor.simulation import Simulation, step_time_s


class LeapingSimulation(Simulation):
    """A `Simulation` that leaps over steps in which nothing happens.

    Tokens all are 0. A row's first and last tokens are told with the step that made them, those
    between when the caller asks, or when the row is released.
    """

    def __init__(
        self, settings: SimulatedSettings, lengths: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """`lengths`: tokens of a completion by request; it may be shorter than was asked for."""
        super().__init__(settings)
        self._lengths = lengths
        self._tell = True
        self._owed: list[Tokens] = []
        self._drawn: float | None = None

    def begin(self, submits: Iterable[Submit]) -> None:
        """See `Simulation.begin`."""
        submits = list(submits)
        super().begin(submits)
        for submit in submits:
            key = Key(submit.request_id, submit.attempt)
            row = self._running.get(key) or self._waiting.get(key)
            length = self._lengths.get(submit.request_id)
            if row is not None and length is not None and length < row.length:
                row.ends_at = max(length - 1, row.position)

    def release(self, keys: Iterable[Key]) -> None:
        """See `Simulation.release`; tokens not told yet come with the acknowledgement."""
        keys = list(keys)
        self._owe(row for key in keys if (row := self._running.get(key)) is not None)
        super().release(keys)

    def leap(
        self, *, begin_within_s: float, end_within_s: float, tell_after_s: float = 0.0
    ) -> tuple[float, Report]:
        """Take a step, and those after it in which the same rows decode and none of them ends.

        All of them begin before `begin_within_s` from now, and all but the first end by
        `end_within_s`. Every row's tokens are told when they end after `tell_after_s`. Answers as
        `next_step` does, with the number of steps in the report and their durations summed up.
        """
        most = self._equal_steps() if begin_within_s > 0 and end_within_s > 0 else 1
        if most > 1:
            return self._leap(
                most,
                begin_within_s=begin_within_s,
                end_within_s=end_within_s,
                tell_after_s=tell_after_s,
            )
        self._tell = tell_after_s <= 0
        duration_s, report = self.next_step()
        if self._owed:
            report.tokens[:0] = self._owed
            self._owed = []
        return duration_s, report

    def _give_back(
        self, rows: Iterable[Row], reason: Literal["error", "out_of_memory"], *, detail: str
    ) -> None:
        rows = list(rows)
        self._owe(rows)
        super()._give_back(rows, reason, detail=detail)

    def _owe(self, rows: Iterable[Row]) -> None:
        """Tell the tokens of rows that leave with the next report: they count."""
        self._owed += [tokens for row in rows if (tokens := _untold(row)) is not None]

    def _noise(self) -> float:
        drawn, self._drawn = self._drawn, None
        return super()._noise() if drawn is None else drawn

    def _equal_steps(self) -> int:
        """How many steps from now on have the same rows, all decoding, the last one included."""
        if not self._running or self._faults or self._released or self._returned:
            return 1
        rows = len(self._running)
        if rows > self._max_batch_tokens:
            return 1
        settings = self._settings
        memory = min(settings.kv_tokens, settings.fails_above_tokens or settings.kv_tokens)
        most = (memory - self._kv_held) // rows
        for row in self._running.values():
            if row.need:
                return 1
            left = row.length - row.position
            if left < most:
                most = left
            ends_at = row.ends_at
            if ends_at is not None and ends_at + 1 - row.position < most:
                most = ends_at + 1 - row.position
        return most

    def _leap(
        self, most: int, *, begin_within_s: float, end_within_s: float, tell_after_s: float
    ) -> tuple[float, Report]:
        settings, rows = self._settings, len(self._running)
        first = StepSample(
            duration_s=0.0,
            sequences=self._batch_rows if settings.runs_to_completion else rows,
            decodes=rows,
            context_tokens=self._kv_held,
            prefill_tokens=0,
            prefill_squares=0,
        )
        step_s, longer_s = step_time_s(settings, first), settings.b_s * rows
        noise_of = self._noise
        duration_s, count = step_s * noise_of(), 1
        while count < most and duration_s < begin_within_s:
            step_s += longer_s
            noise = noise_of()
            after_s = duration_s + step_s * noise
            if after_s > end_within_s:
                # The step is taken next time, and lasts as long as it would have now.
                self._drawn = noise
                break
            duration_s, count = after_s, count + 1
        self._tell = duration_s >= tell_after_s
        # Context grows by one token a row and step, so its mean is that of first and last.
        context = self._kv_held + rows * (count - 1) / 2
        sample = StepSample(duration_s, first.sequences, rows, math.floor(context + 0.5), 0, 0)
        plan = [(row, count) for row in self._running.values()]
        tokens, finished = self._advance(plan)
        return duration_s, Report(
            epoch=self._epoch,
            steps=count,
            sample=sample,
            kv_tokens=self._kv_held,
            tokens=tokens,
            finished=finished,
            utilization=self._utilization(sample),
        )

    def _advance(self, plan: Plan) -> tuple[list[Tokens], list[Finished]]:
        tokens: list[Tokens] = []
        finished: list[Finished] = []
        held, tell = 0, self._tell
        for row, count in plan:
            row.kv += count
            held += count
            told = tell
            if row.need:
                row.need -= count
                if row.need:
                    continue
                count, told = 1, True
            row.position += count
            # Asked first and in short: nearly no row ends.
            if row.position >= row.length or row.ends_at is not None:
                end = _end(row)
                if end is not None:
                    told = True
                    finished.append(Finished(row.key.request_id, row.key.attempt, end))
            if told and (new := _untold(row)) is not None:
                tokens.append(new)
        self._kv_held += held
        for done in finished:
            self._remove(Key(done.request_id, done.attempt))
        return tokens, finished


def _untold(row: Row) -> Tokens | None:
    """The tokens of a row that nobody was told of, as told from now on."""
    index, row.told = row.told, row.position
    if index >= row.position:
        return None
    return Tokens(row.key.request_id, row.key.attempt, index, [0] * (row.position - index))


def _end(row: Row) -> FinishReason | None:
    if row.ends_at is not None and row.position > row.ends_at:
        return "stop"
    return "length" if row.position >= row.length else None
