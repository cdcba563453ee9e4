"""How a profile is shown: a table for people, and a file that `headway simulate` reads."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from bench.held_out import HeldOut
from bench.step_fit import Cell, Fit
from controller.units import SECONDS
from executor.contract import Capacity


@dataclass(frozen=True, slots=True)
class About:
    """What was profiled, when (aware of its zone) and for how long."""

    executor: str
    kind: str
    capacity: Capacity
    when: datetime
    lasted_s: float

    def told(self) -> str:
        """One line."""
        model, device = self.capacity.model, self.capacity.device
        return f"executor {self.executor} ({self.kind}, {model}) on {device}"


def table(fit: Fit) -> str:
    """Measured against fitted: decode steps, prompts from their beginning, and the rest pooled.

    `spread` is from the 10th to the 90th percentile of what was measured.
    """
    head = ("step", "measured, ms", "spread, ms", "steps", "fitted, ms", "off")
    rows = [
        (_told(cell), *_figures(fit, cell))
        for cell in sorted(fit.cells, key=_order)
        if cell.shape.is_decode or cell.shape.is_prefill
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [_line(head, widths), _line(["-" * width for width in widths], widths)]
    lines += [_line(row, widths) for row in rows]
    mixed = [c for c in fit.cells if not (c.shape.is_decode or c.shape.is_prefill)]
    if mixed:
        lines.append(
            f"prompts in parts, or beside decodes: {len(mixed)} kinds of step, {_off(fit, mixed)}"
        )
    lines.append(f"all: {len(fit.cells)} kinds of step, {_off(fit, fit.cells)}")
    return "\n".join(lines)


def coefficients(fit: Fit) -> dict[str, str]:
    """The keys of an executor of kind `simulated` that the fit gives, as they are written."""
    estimate = fit.estimate
    times = {
        "a": estimate.a,
        "b": estimate.b,
        "c": estimate.c,
        "c_above": estimate.c_above,
        "d": estimate.d,
        "e": estimate.e,
    }
    written = {key: _duration(value) for key, value in times.items()}
    return written | {"knee": str(estimate.knee), "jitter": f"{min(fit.jitter, 0.99):.3f}"}


def as_yaml(fit: Fit, about: About, *, held_out: HeldOut | None = None) -> str:
    """An executor of kind `simulated` that is like the one that was profiled; `held_out` is what
    is known of steps that a fit was not shown."""
    capacity, found = about.capacity, coefficients(fit)
    steps = sum(len(cell.samples) for cell in fit.cells)
    lines = [
        f"# Measured by `headway profile`: {about.told()},",
        f"# {about.when:%Y-%m-%d %H:%M %Z}, {steps} steps in {about.lasted_s:.0f} s.",
        f"# The fit is off by {_off(fit, fit.cells)}.",
        *([] if held_out is None else [f"# {held_out.told()}."]),
        "# For `headway simulate --executor FILE`, or among the executors of a configuration.",
        "kind: simulated",
        f"model: {_quoted(capacity.model)}",
        f"max_seqs: {capacity.max_seqs}",
        f"max_step_tokens: {capacity.max_step_tokens}",
        f"kv_tokens: {capacity.kv_tokens}",
        f"max_context_tokens: {capacity.max_context_tokens}",
        f"runs_to_completion: {_switch(capacity.runs_to_completion)}",
        f"splits_prefill: {_switch(capacity.splits_prefill)}",
        f"a: {found['a']} # a step",
        f"b: {found['b']} # a token of context",
        f"c: {found['c']} # a sequence, up to the knee",
        f"c_above: {found['c_above']} # a sequence beyond the knee",
        f"knee: {found['knee']}",
        f"d: {found['d']} # a prompt token",
        f"e: {found['e']} # a squared prompt token",
        f"jitter: {found['jitter']}",
    ]
    return "\n".join(lines) + "\n"


def _duration(seconds: float) -> str:
    """Four digits, and the largest unit that leaves something before the point."""
    exact = Decimal(f"{seconds:.4g}")
    fitting = [unit for unit in ("s", "ms", "us") if exact >= SECONDS[unit]]
    unit = fitting[0] if fitting else "ns"
    return f"{(exact / SECONDS[unit]).normalize():f}{unit}" if exact else "0"


def _told(cell: Cell) -> str:
    shape = cell.shape
    if shape.is_decode:
        context = cell.middle.context_tokens / max(1, shape.decodes)
        return f"decode {shape.sequences} at {context:.0f}"
    # The squares tell whether it was one long prompt or several short ones.
    longest = shape.prefill_squares / shape.prefill_tokens
    return f"prefill {shape.sequences} x {longest:.0f}"


def _order(cell: Cell) -> tuple[bool, int, int, int]:
    shape = cell.shape
    return shape.is_prefill, shape.around, shape.prefill_tokens, shape.sequences


def _figures(fit: Fit, cell: Cell) -> tuple[str, ...]:
    times = sorted(sample.duration_s * 1e3 for sample in cell.samples)
    low, high = times[len(times) // 10], times[-1 - len(times) // 10]
    return (
        f"{cell.middle.duration_s * 1e3:.3f}",
        f"{low:.3f} to {high:.3f}",
        str(len(times)),
        f"{fit.fitted_s(cell) * 1e3:.3f}",
        f"{fit.off(cell):+.1%}",
    )


def _off(fit: Fit, cells: Sequence[Cell]) -> str:
    offs = [abs(fit.off(cell)) for cell in cells]
    return f"{statistics.median(offs):.1%} in the median, {max(offs):.1%} at most"


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    padded = [text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)]
    return "  ".join([first.ljust(widths[0]), *padded])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _switch(value: bool) -> str:
    return "true" if value else "false"
