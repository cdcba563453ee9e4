"""Which measured steps a fit is not shown, to see how well it tells of what it has not seen."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.step_fit import Cell, NothingToFit, fit, predicted_s

# Of prompts, and of what is not decodes alone, every so manieth kind of step.
EVERY = 3


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How far a fit to the others is off at `kinds` of step, as fractions of what these take."""

    kinds: int
    median: float
    most: float

    def told(self) -> str:
        """One line."""
        return (
            f"held out: {self.kinds} kinds of step, which a fit to the others tells within "
            f"{self.median:.1%} in the median, {self.most:.1%} at most"
        )


def split(cells: Sequence[Cell]) -> tuple[list[Cell], list[Cell]]:
    """Those that a fit is shown, and those that are held out, always the same.

    Held out are decodes of every second size (none of a size that is alone, the smallest or the
    largest) and every third of the other kinds of step, from the shortest to the longest.
    """
    sizes = sorted({cell.shape.sequences for cell in cells if cell.shape.is_decode})
    between = set(sizes[1:-1:2])
    others = sorted((c for c in cells if not c.shape.is_decode), key=lambda c: _length(c))
    third = {id(cell) for cell in others[1:-1:EVERY]}
    shown, held = list[Cell](), list[Cell]()
    for cell in cells:
        of_size = cell.shape.is_decode and cell.shape.sequences in between
        (held if of_size or id(cell) in third else shown).append(cell)
    return shown, held


def check(cells: Sequence[Cell]) -> HeldOut | None:
    """What a fit that was not shown some of the cells says of these; None: they are too few."""
    shown, held = split(cells)
    if not held:
        return None
    try:
        estimate = fit(shown).estimate
    except NothingToFit:
        return None
    offs = [abs(predicted_s(estimate, c.middle) / c.middle.duration_s - 1) for c in held]
    return HeldOut(len(held), statistics.median(offs), max(offs))


def _length(cell: Cell) -> tuple[int, int, int, int, int]:
    shape = cell.shape
    squares = shape.prefill_squares
    return shape.prefill_tokens, squares, shape.sequences, shape.decodes, shape.around
