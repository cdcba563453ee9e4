"""What each batch size would bring and cost, by a fitted step model: the curve to plan with.

Decodes alone, and with the prompts that replace rows which are done: of `n` rows with completions
of `output` tokens, `n / output` end in a step, and as many prompts come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.probes import sizes_up_to
from bench.step_fit import Cell
from executor.contract import Capacity
from policies.contract import StepEstimate

# Where the clients say nothing else: a question of a page, and an answer of half of one.
PROMPT, OUTPUT = 256, 128


@dataclass(frozen=True, slots=True)
class Mix:
    """Tokens of a prompt and of its completion, each of many that are alike."""

    prompt: int = PROMPT
    output: int = OUTPUT

    @property
    def context(self) -> float:
        """Tokens that a row reads in the mean over its completion."""
        return self.prompt + self.output / 2

    def within(self, capacity: Capacity) -> Mix:
        """The same, shortened in proportion where no sequence may become so long."""
        longest = min(capacity.max_context_tokens, capacity.kv_tokens)
        if not capacity.splits_prefill:
            longest = min(longest, capacity.max_step_tokens + self.output)
        whole = self.prompt + self.output
        if whole <= longest:
            return self
        output = max(1, self.output * longest // whole)
        return replace(self, prompt=max(1, longest - output), output=output)


@dataclass(frozen=True, slots=True)
class Point:
    """`size` rows at once. `step_s` is a step that decodes and no more; `itl_s` the mean time
    between two tokens of a row, prompts of others included."""

    size: int
    step_s: float
    itl_s: float

    @property
    def decoded_per_s(self) -> float:
        """Tokens per second of decodes alone."""
        return self.size / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of completions, where prompts replace what is done."""
        return self.size / self.itl_s


@dataclass(frozen=True, slots=True)
class Curve:
    """A point for each size, ascending. `knee` is the size at which throughput over latency, the
    *power*, is largest (Kleinrock 1979); None: it still grows at the last."""

    mix: Mix
    points: tuple[Point, ...]
    knee: int | None


def curve_of(estimate: StepEstimate, capacity: Capacity, mix: Mix) -> Curve:
    """The curve of an executor, up to where its seats or its memory end.

    `mix` is shortened to what fits.
    """
    mix = mix.within(capacity)
    held = max(1, capacity.kv_tokens // (mix.prompt + mix.output))
    point = _together if capacity.splits_prefill else _apart
    if capacity.runs_to_completion:
        point = _whole
    sizes = reversed(sizes_up_to(max(1, min(capacity.max_seqs, held))))
    points = tuple(point(estimate, mix, size) for size in sizes)
    return Curve(mix, points, _knee(points))


def _together(estimate: StepEstimate, mix: Mix, size: int) -> Point:
    """Prompts are prefilled in the steps that decode."""
    step_s = estimate.predict(size, size * mix.context)
    return Point(size, step_s, step_s + size / mix.output * _prompt_s(estimate, mix))


def _apart(estimate: StepEstimate, mix: Mix, size: int) -> Point:
    """Each prompt is a step of its own, for which the others wait."""
    step_s = estimate.predict(size, size * mix.context)
    pause_s = estimate.predict(1, 0) + _prompt_s(estimate, mix)
    return Point(size, step_s, step_s + size / mix.output * pause_s)


def _whole(estimate: StepEstimate, mix: Mix, size: int) -> Point:
    """All prompts are one step, and the next ones wait until the last row is done."""
    step_s = estimate.predict(size, size * mix.context)
    first_s = estimate.predict(size, 0) + size * _prompt_s(estimate, mix)
    return Point(size, step_s, (first_s + (mix.output - 1) * step_s) / mix.output)


def _prompt_s(estimate: StepEstimate, mix: Mix) -> float:
    return estimate.d * mix.prompt + estimate.e * mix.prompt**2


def _knee(points: Sequence[Point]) -> int | None:
    best = max(points, key=lambda point: point.tokens_per_s / point.itl_s)
    return None if best is points[-1] else best.size


def beyond(curve: Curve, cells: Sequence[Cell]) -> str | None:
    """Where the curve goes on beyond the decodes that were measured, in words."""
    decodes = [cell.middle for cell in cells if cell.shape.is_decode]
    rows = max((one.sequences for one in decodes), default=0)
    context = max((one.context_tokens / one.sequences for one in decodes), default=0.0)
    told = []
    if curve.points[-1].size > rows:
        told.append(f"{rows} rows")
    if curve.mix.context > context:
        told.append(f"a context of {context:.0f} tokens")
    return f"beyond what was measured: more than {' and '.join(told)}" if told else None


def table(curve: Curve) -> str:
    """The curve in text; the knee is marked."""
    mix = curve.mix
    head = ("rows", "step, ms", "tokens/s", "ITL, ms", "tokens/s", "requests/s")
    lines = [
        f"by batch size: decodes alone at a context of {mix.context:.0f} tokens, and with the"
        f" prompts of {mix.prompt}",
        f"tokens that replace rows which are done, completions being {mix.output} tokens long",
        "",
        "     " + " decodes alone ".center(20, "-") + "  " + " with prompts ".center(32, "-"),
        _line(head),
    ]
    for point in curve.points:
        cells = (
            f"{point.size}",
            f"{point.step_s * 1e3:.2f}",
            f"{point.decoded_per_s:.1f}",
            f"{point.itl_s * 1e3:.2f}",
            f"{point.tokens_per_s:.1f}",
            f"{point.tokens_per_s / mix.output:.2f}",
        )
        lines.append(_line(cells) + ("  <- knee" if point.size == curve.knee else ""))
    last = curve.points[-1].size
    if curve.knee is None:
        lines.append(f"no knee up to {last} rows: more at once would still pay")
    else:
        lines.append("knee: beyond it latency grows faster than throughput")
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    widths = (4, 9, 10, 9, 10, 11)
    return " ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
