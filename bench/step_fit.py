"""What the measured steps of an executor amount to: a step model, and how well it tells of them."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from controller.step_model import StepModel
from executor.contract import StepSample
from policies.contract import StepEstimate

# The model learns online and is careful with whatever surprises it; after some passes over the same
# steps in turn nothing does any more.
PASSES = 10
# A bend is believed in when it explains so much of what a straight line leaves.
BEND_EXPLAINS = 0.5
# Of a normal distribution the standard deviation is so many median absolute deviations.
_MAD_TO_SIGMA = 1.4826


class NothingToFit(ValueError):
    """The steps do not say what a step costs; the message says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What makes steps alike. `around` is the context of a row at the probe's beginning."""

    sequences: int
    decodes: int
    prefill_tokens: int
    prefill_squares: int
    around: int

    @property
    def is_decode(self) -> bool:
        """Whether nothing was prefilled."""
        return self.prefill_tokens == 0

    @property
    def is_prefill(self) -> bool:
        """Whether nothing but the beginnings of prompts was prefilled."""
        return self.decodes == 0 and self.around == 0


@dataclass(frozen=True, slots=True)
class Cell:
    """Steps of one shape; `middle` has their median time and mean context."""

    shape: Shape
    middle: StepSample
    samples: tuple[StepSample, ...]


@dataclass(frozen=True, slots=True)
class Fit:
    """A step model and the cells that it was fitted to; `jitter` is the relative deviation of
    a step's time from the median of its kind."""

    estimate: StepEstimate
    jitter: float
    cells: tuple[Cell, ...]

    def fitted_s(self, cell: Cell) -> float:
        """What the model says of the cell, in seconds."""
        return predicted_s(self.estimate, cell.middle)

    def off(self, cell: Cell) -> float:
        """By which fraction the model is off."""
        return self.fitted_s(cell) / cell.middle.duration_s - 1


def predicted_s(estimate: StepEstimate, sample: StepSample) -> float:
    """What the model says of a step with these contents."""
    return estimate.predict(
        sample.sequences,
        sample.context_tokens,
        prefill=sample.prefill_tokens,
        squares=sample.prefill_squares,
    )


def cells_of(steps: Sequence[tuple[int, StepSample]]) -> list[Cell]:
    """Measured steps, each with the prompt length of its probe, sorted by what they held.

    The first step of a shape does not count where there are others: it may have paid for more.
    """
    found: dict[Shape, list[StepSample]] = {}
    for prompt, sample in steps:
        # The context of decodes grows from step to step, that of prompts is what tells them apart.
        around = prompt if sample.prefill_tokens == 0 else sample.context_tokens
        shape = Shape(
            sample.sequences,
            sample.decodes,
            sample.prefill_tokens,
            sample.prefill_squares,
            around,
        )
        found.setdefault(shape, []).append(sample)
    return [_cell(shape, samples[1:] or samples) for shape, samples in found.items()]


def _cell(shape: Shape, samples: Sequence[StepSample]) -> Cell:
    middle = StepSample(
        duration_s=statistics.median(sample.duration_s for sample in samples),
        sequences=shape.sequences,
        decodes=shape.decodes,
        context_tokens=round(statistics.fmean(sample.context_tokens for sample in samples)),
        prefill_tokens=shape.prefill_tokens,
        prefill_squares=shape.prefill_squares,
    )
    return Cell(shape, middle, tuple(samples))


def fit(cells: Sequence[Cell]) -> Fit:
    """The step model of these cells, each with the same weight whatever its size.

    Errors count relative to the time of the step. Tries every size between the smallest and the
    largest as the knee. Raises NothingToFit.
    """
    if not cells:
        raise NothingToFit("no step was measured: give it more --seconds")
    for cell in cells:
        if cell.middle.duration_s <= 0:
            size, prompt = cell.shape.sequences, cell.shape.prefill_tokens
            raise NothingToFit(f"a step of {size} rows and {prompt} prompt tokens takes no time")
    sizes = sorted({cell.shape.sequences for cell in cells if cell.shape.is_decode})
    straight = _learn(cells, knee=max(cell.shape.sequences for cell in cells))
    best, least = straight, _error(cells, straight) * (1 - BEND_EXPLAINS)
    for knee in sizes[1:-1]:
        bent = _learn(cells, knee=knee)
        if (error := _error(cells, bent)) < least:
            best, least = bent, error
    return Fit(best, _jitter(cells, best), tuple(cells))


def _learn(cells: Sequence[Cell], knee: int) -> StepEstimate:
    model, order = StepModel(knee=knee), random.Random(0)
    shortest = min(cell.middle.duration_s for cell in cells)
    for _ in range(PASSES):
        for cell in order.sample(cells, len(cells)):
            model.learn(cell.middle, weight=(shortest / cell.middle.duration_s) ** 2)
        estimate = model.estimate()
    assert estimate is not None
    return estimate


def _error(cells: Sequence[Cell], estimate: StepEstimate) -> float:
    """Mean of the squared relative errors."""
    return statistics.fmean(
        (predicted_s(estimate, cell.middle) / cell.middle.duration_s - 1) ** 2 for cell in cells
    )


def _jitter(cells: Sequence[Cell], estimate: StepEstimate) -> float:
    """The relative standard deviation of a step's time, from medians: hiccups do not count.

    What context alone changes within a cell is taken out first, by the model.
    """
    deviations = []
    for cell in cells:
        if len(cell.samples) > 2:
            ratios = [one.duration_s / predicted_s(estimate, one) for one in cell.samples]
            middle = statistics.median(ratios)
            # A median of few lies among them: of n values the deviations are short by 1 / n.
            short = math.sqrt(len(ratios) / (len(ratios) - 1))
            deviations += [abs(ratio / middle - 1) * short for ratio in ratios]
    return _MAD_TO_SIGMA * statistics.median(deviations) if deviations else 0.0
