"""The simulated executor as a process has it: the model's steps, taking real time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from executor.contract import (
    Capacity,
    Fault,
    Feature,
    Ready,
    Report,
    SimulatedSettings,
    StepSample,
    TextModel,
    Work,
)
from executor.engine import Progress
from executor.simulated_text import END_OF_TEXT
from executor.simulation import Simulation, step_time_s

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
_FEATURES = frozenset(
    {
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.SEED,
        Feature.MIN_TOKENS,
        Feature.IGNORE_EOS,
        Feature.STOP_TOKEN_IDS,
    }
)


def capacity_of(settings: SimulatedSettings) -> Capacity:
    """What an executor with these settings is."""
    return Capacity(
        model=settings.model,
        device="simulated",
        max_seqs=settings.max_seqs,
        max_step_tokens=settings.max_step_tokens,
        kv_tokens=settings.kv_tokens,
        max_context_tokens=settings.max_context_tokens,
        runs_to_completion=settings.runs_to_completion,
        splits_prefill=settings.splits_prefill and not settings.runs_to_completion,
        features=_FEATURES,
        eos_token_ids=(END_OF_TEXT,),
    )


def warmup_of(settings: SimulatedSettings) -> list[StepSample]:
    """What a warm-up would measure: decodes of 1, 2, 4 ... rows at two contexts, three prefills."""
    sizes = [2**power for power in range(settings.max_seqs.bit_length())]
    decodes = [
        StepSample(0.0, size, size, size * context, 0, 0)
        for context in (64, 512)
        for size in sizes
        if size * context <= settings.kv_tokens
    ]
    prefills = [
        StepSample(0.0, 1, 0, 0, length, length * length)
        for length in (64, 256, 1024)
        if length <= min(settings.max_step_tokens, settings.max_context_tokens)
    ]
    return [
        msgspec.structs.replace(sample, duration_s=step_time_s(settings, sample))
        for sample in decodes + prefills
    ]


def _check(settings: SimulatedSettings) -> None:
    for name in ("max_seqs", "max_step_tokens", "kv_tokens", "max_context_tokens"):
        if getattr(settings, name) < 1:
            raise ValueError(f"{name} is {getattr(settings, name)}, at least 1 is needed")
    for name in ("a_s", "b_s", "c_s", "c_above_s", "d_s", "e_s", "jitter", "load_s"):
        if getattr(settings, name) < 0:
            raise ValueError(f"{name} is {getattr(settings, name)}, which is less than 0")


class SimulatedEngine:
    """An `Engine` that computes nothing and sleeps for as long as its settings say.

    Steps follow one another on a schedule, so that what the loop around them costs does not add
    up. A step of no time does not sleep.
    """

    def __init__(
        self,
        settings: SimulatedSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._simulation = Simulation(settings)
        self._due: float | None = None

    def load(self, progress: Progress) -> Ready:
        """Sleep for `load_s`; answers the capacity and samples of the very cost that is set.

        Raises ValueError for settings that contradict each other.
        """
        settings = self._settings
        _check(settings)
        progress("simulating a model", None)
        if settings.load_s > 0:
            self._sleep(settings.load_s)
        text = TextModel(kind="bytes", chat_template=_CHAT_TEMPLATE)
        return Ready(capacity=capacity_of(settings), text=text, warmup=warmup_of(settings))

    def apply(self, work: Work) -> None:
        """Take submits, releases and limits; they are in force from the next step on."""
        self._simulation.limit(work.epoch, work.max_batch_tokens)
        self._simulation.begin(work.submit)
        self._simulation.release(work.release)

    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return self._simulation.has_work()

    def step(self) -> Report:
        """One step of the model, in as much time as it says."""
        now = self._clock()
        duration_s, report = self._simulation.next_step()
        if duration_s > 0:
            # Whoever is late by more than a step was held up by something else than this loop.
            if self._due is None or now - self._due > duration_s:
                self._due = now
            self._due += duration_s
            remaining_s = self._due - self._clock()
            if remaining_s > 0:
                self._sleep(remaining_s)
        if not self._simulation.has_work():
            self._due = None
        return report

    def inject(self, fault: Fault) -> None:
        """Misbehave at the next step, or end the process at once."""
        if fault.kind == "exit":
            os._exit(70)
        self._simulation.inject(fault)

    def close(self) -> None:
        """Nothing is held."""
