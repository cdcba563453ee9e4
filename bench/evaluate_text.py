"""How the evaluation of the policies is told: what holds, and tables by executor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from bench.campaign import Ratio
from bench.evaluate_cells import Cell, is_of_the_ten
from bench.evaluate_field import BENTOML, CLIPPER, DEFAULT, FIFO, ORACLE, PANG, STATIC
from bench.evaluate_oracle import online_attainment
from bench.evaluate_rows import Row
from bench.evaluate_run import Evaluation, Results
from bench.evaluation import Figures
from bench.evaluation_text import TIERS, grid, interval, limits_of

MARKS = ("<!-- policies: begin -->", "<!-- policies: end -->")
# They have columns of their own, or an own table.
_TOLD = (DEFAULT, STATIC, FIFO, ORACLE, PANG)


def page(evaluation: Evaluation, rows: Sequence[Row], analyses: Mapping[str, str]) -> str:
    """All tables. `analyses`: by the key of a row, why it does not hold."""
    results = evaluation.results
    parts = [f"### What holds for `{DEFAULT}`", verdicts(rows, analyses)]
    for executor in evaluation.executors:
        here = [cell for cell in results.figures if cell.executor == executor]
        parts += [f"### {executor}", _units(evaluation, executor), _main(results, here)]
        parts += ["Goodput of the others, relative to best static:", _others(results, here)]
    ten = [cell for cell in results.figures if is_of_the_ten(cell)]
    if ten:
        parts += [f"### Ten cells: `{DEFAULT}` against the rules of others", _ten(results, ten)]
    if evaluation.offline.figures:
        parts += ["### Offline work beside online traffic", _backlog(evaluation.offline)]
    return "\n\n".join(parts)


def verdicts(rows: Sequence[Row], analyses: Mapping[str, str]) -> str:
    """The rows as a table, and under it why those that do not hold do not."""
    words = {True: "holds", False: "**does not hold**", None: "not measured"}
    table = grid(
        ("what", "bound", "measured", ""),
        [(row.what, row.bound, row.figure, words[row.holds]) for row in rows],
    )
    failed = dict.fromkeys(row.key for row in rows if row.holds is False)
    told = [f"* *{key}*: {analyses[key].strip()}" for key in failed if key in analyses]
    return "\n\n".join([table, "\n".join(told)]) if told else table


def _units(evaluation: Evaluation, executor: str) -> str:
    found = [
        f"{unit} {load:.2f}"
        for (where, unit), load in evaluation.units.items()
        if where == executor
    ]
    return f"Load 1 of a cell, relative to an executor that is never idle: {', '.join(found)}."


def _main(results: Results, cells: Sequence[Cell]) -> str:
    titles = (
        "workload",
        "best static B, T",
        "its goodput, req/s",
        f"`{DEFAULT}`",
        "oracle",
        "FIFO",
        f"attainment of `{DEFAULT}`, paid / free / offline",
        "reversals/min",
        "seeds",
    )
    told = []
    for cell in cells:
        static, mine = results.get(cell, STATIC), results.get(cell, DEFAULT)
        if static is None or mine is None:
            continue
        reversals = statistics.fmean(one.reversals_per_min for one in mine.outcomes)
        told.append(
            (
                cell.name,
                limits_of(static),
                f"{static.goodput():.3f}",
                *(interval(results.ratio(cell, n, STATIC)) for n in (DEFAULT, ORACLE, FIFO)),
                " / ".join(f"{mine.attainment(tier):.1%}" for tier in TIERS),
                f"{reversals:.1f}",
                f"{len(static.outcomes)}",
            )
        )
    return grid(titles, told)


def _others(results: Results, cells: Sequence[Cell]) -> str:
    names = dict.fromkeys(
        name
        for cell in cells
        for name in results.figures[cell]
        # Each of the four targets is in the best of them.
        if name not in _TOLD and "=" not in name
    )
    told = [
        (cell.name, *(_short(results.ratio(cell, name, STATIC)) for name in names))
        for cell in cells
        if any(results.get(cell, name) for name in names)
    ]
    return grid(("workload", *names), told)


def _short(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{ratio.mean:.3f}"


def _ten(results: Results, cells: Sequence[Cell]) -> str:
    names = [n for n in (CLIPPER, BENTOML, PANG) if any(results.get(c, n) for c in cells)]
    told = [
        (
            f"{cell.executor} {cell.name}",
            *(interval(results.ratio(cell, DEFAULT, name)) for name in names),
        )
        for cell in cells
    ]
    told.append(("all", *(interval(results.pooled(cells, DEFAULT, name)) for name in names)))
    return grid(("cell", *names), told)


def _backlog(offline: Results) -> str:
    told = [
        (cell.executor, name, f"{tokens:.0f}", f"{online:.1%}")
        for cell, figures in offline.figures.items()
        for name, one in figures.items()
        for tokens, online in [_offline(one)]
    ]
    return grid(("executor", "contender", "offline tokens/s", "online attainment"), told)


def _offline(figures: Figures) -> tuple[float, float]:
    outcomes = figures.outcomes
    return (
        statistics.fmean(one.tiers["offline"].tokens_per_s for one in outcomes),
        statistics.fmean(map(online_attainment, outcomes)),
    )
