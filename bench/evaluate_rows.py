"""What was to hold of the default policy, and whether it does."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.campaign import Ratio, paired
from bench.evaluate_cells import Cell, is_moving, is_of_the_ten, is_steady
from bench.evaluate_field import (
    BENTOML,
    CLIPPER,
    DEFAULT,
    FIFO,
    ORACLE,
    PANG,
    STATIC,
    VLLM,
    VLLM_FIFO,
)
from bench.evaluate_oracle import ONLINE_LEAST, online_attainment
from bench.evaluate_run import Results
from bench.evaluation import Figures
from bench.evaluation_text import interval
from bench.tick_cost import TickCost

FIFO_LEAST, STEADY_LEAST, ALTERNATING_LEAST, VENDOR_LEAST = 1.20, 0.97, 1.10, 1.20
OFFLINE_LEAST, ORACLE_LEAST, PAID_LEAST = 1.15, 0.92, 0.99
UP_MOST_S, DOWN_MOST_S, REVERSALS_MOST = 10.0, 20.0, 2.0
TICK_MEAN_MOST_MS, TICK_P99_MOST_MS = 1.0, 5.0
RULE_LEAST, RULE_CELLS = 0.98, 9


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was to hold. `holds` None: it was not measured. `key` names its analysis."""

    key: str
    what: str
    bound: str
    figure: str
    holds: bool | None


def rows(results: Results, offline: Results, tick: TickCost | None) -> list[Row]:
    """Every row, in the order of the aims."""
    return [
        _against_fifo(results),
        _on_steady(results),
        _alternating(results),
        _against_vendor(results),
        *_offline(offline),
        _of_oracle(results),
        *_settling(results),
        _reversals(results),
        *_flood(results),
        _tick(tick),
        *(_rule(results, name) for name in (CLIPPER, BENTOML, PANG)),
    ]


def _among(results: Results) -> Iterator[Cell]:
    return (cell for cell in results.figures if results.get(cell, DEFAULT) is not None)


def _ratio_row(key: str, what: str, least: float, ratio: Ratio | None, more: str = "") -> Row:
    holds = None if ratio is None else ratio.mean >= least
    return Row(key, what, f"{least:.2f}", f"{interval(ratio)}{more}", holds)


def _against_fifo(results: Results) -> Row:
    moving = [cell for cell in _among(results) if is_moving(cell) and cell.executor != "E1"]
    ratio = results.pooled(moving, DEFAULT, FIFO)
    what = f"against best static with FIFO, {len(moving)} cells of moving traffic on E2 and E3"
    return _ratio_row("fifo", what, FIFO_LEAST, ratio)


def _on_steady(results: Results) -> Row:
    what = "against best static with our queues, every cell of steady traffic"
    steady = [cell for cell in _among(results) if is_steady(cell)]
    known = [(r, c) for c in steady if (r := results.ratio(c, DEFAULT, STATIC)) is not None]
    if not known or len(known) < len(steady):
        return Row("steady", what, f"{STEADY_LEAST:.2f}", "-", None)
    worst, cell = min(known, key=lambda pair: pair[0].mean)
    below = [c for r, c in known if r.mean < STEADY_LEAST]
    told = f"least {interval(worst)}, {cell.executor} {cell.name}; "
    told += f"{len(below)} of {len(known)} below"
    return Row("steady", what, f"{STEADY_LEAST:.2f}", told, not below)


def _alternating(results: Results) -> Row:
    what = "against best static with our queues, alternating at 1.2, E2"
    found = {cell.times: cell for cell in _among(results) if _is(cell, "E2", "alternating")}
    ratio = results.ratio(found[1.2], DEFAULT, STATIC) if 1.2 in found else None
    return _ratio_row(
        "alternating", what, ALTERNATING_LEAST, ratio, _room(results, found.get(1.2), STATIC)
    )


def _against_vendor(results: Results) -> Row:
    what = "against vLLM's 256, 2048 with our queues, alternating at 1.2, E3"
    there = (c for c in _among(results) if _is(c, "E3", "alternating") and c.times == 1.2)
    cell = next(there, None)
    if cell is None:
        return _ratio_row("vendor", what, VENDOR_LEAST, None)
    fifo = interval(results.ratio(cell, DEFAULT, VLLM_FIFO))
    more = f"{_room(results, cell, VLLM)}; with FIFO {fifo}"
    return _ratio_row("vendor", what, VENDOR_LEAST, results.ratio(cell, DEFAULT, VLLM), more)


def _room(results: Results, cell: Cell | None, other: str) -> str:
    """How far an oracle comes against the same."""
    room = None if cell is None else results.ratio(cell, ORACLE, other)
    return "" if room is None else f"; the oracle {interval(room)}"


def _offline(offline: Results) -> list[Row]:
    what = f"offline tokens at {ONLINE_LEAST:.0%} online attainment, against best static"
    found = []
    for cell in _among(offline):
        mine, static = offline.get(cell, DEFAULT), offline.get(cell, STATIC)
        if mine is None or static is None:
            continue
        online, theirs = (
            statistics.fmean(map(online_attainment, one.outcomes)) for one in (mine, static)
        )
        ratio = paired(_offline_tokens(mine), _offline_tokens(static))
        holds = online >= ONLINE_LEAST and ratio is not None and ratio.mean >= OFFLINE_LEAST
        told = f"{interval(ratio)} ({online:.1%} online, best static {theirs:.1%})"
        found.append(
            Row("offline", f"{what}, {cell.executor}", f"{OFFLINE_LEAST:.2f}", told, holds)
        )
    return found or [Row("offline", what, f"{OFFLINE_LEAST:.2f}", "-", None)]


def _offline_tokens(figures: Figures) -> list[float]:
    return [one.tiers["offline"].tokens_per_s for one in figures.outcomes]


def _of_oracle(results: Results) -> Row:
    among = list(_among(results))
    # Where three seeds were played and where five: on the seeds that all cells have.
    ratio = results.pooled(among, DEFAULT, ORACLE)
    known = [(r, c) for c in among if (r := results.ratio(c, DEFAULT, ORACLE)) is not None]
    more = ""
    if known:
        worst, cell = min(known, key=lambda pair: pair[0].mean)
        more = f"; least {interval(worst)}, {cell.executor} {cell.name}"
    what = f"fraction of the oracle, {len(among)} cells of all workloads"
    return _ratio_row("oracle", what, ORACLE_LEAST, ratio, more)


def _settling(results: Results) -> Iterator[Row]:
    for cell in _among(results):
        if cell.workload != "step" or cell.executor == "E1":
            continue
        for at, (way, most_s) in enumerate((("up", UP_MOST_S), ("down", DOWN_MOST_S))):
            mine, static = (_settled(results, cell, name, at) for name in (DEFAULT, STATIC))
            known = [value for value in mine if value is not None]
            holds = len(known) == len(mine) and statistics.fmean(known) <= most_s if mine else None
            yield Row(
                f"settling-{way}",
                f"settling after the step {way}, {cell.executor} {cell.name}",
                f"{most_s:g} s",
                f"{_seconds(mine)}; best static {_seconds(static)}",
                holds,
            )


def _settled(results: Results, cell: Cell, name: str, at: int) -> list[float | None]:
    figures = results.get(cell, name)
    return [] if figures is None else [one.settling_s[at] for one in figures.outcomes]


def _seconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    never = len(values) - len(known)
    mean = f"{statistics.fmean(known):.0f} s" if known else "-"
    return mean + (f" ({never} of {len(values)} never)" if never else "")


def _reversals(results: Results) -> Row:
    what = "reversals of B by over 10 % a minute, every cell of steady traffic"
    told = [
        (statistics.fmean(one.reversals_per_min for one in figures.outcomes), cell)
        for cell in _among(results)
        if is_steady(cell) and (figures := results.get(cell, DEFAULT)) is not None
    ]
    if not told:
        return Row("reversals", what, f"{REVERSALS_MOST:g}", "-", None)
    most, cell = max(told, key=lambda pair: pair[0])
    figure = f"most {most:.2f}, {cell.executor} {cell.name}"
    return Row("reversals", what, f"{REVERSALS_MOST:g}", figure, most <= REVERSALS_MOST)


def _flood(results: Results) -> Iterator[Row]:
    for cell in _among(results):
        mine, static = results.get(cell, DEFAULT), results.get(cell, STATIC)
        if cell.workload == "flood" and cell.executor != "E1" and mine and static:
            paid = mine.attainment("paid")
            told = f"{paid:.2%}, worst seed {mine.worst('paid'):.2%}; best static "
            told += f"{static.attainment('paid'):.2%}"
            what = f"paid attainment in the free flood, {cell.executor}"
            yield Row("flood", what, f"{PAID_LEAST:.0%}", told, paid >= PAID_LEAST)


def _tick(tick: TickCost | None) -> Row:
    bound = f"mean {TICK_MEAN_MOST_MS:g} ms, P99 {TICK_P99_MOST_MS:g} ms"
    if tick is None:
        return Row("tick", "a tick, three tiers, E3 under load", bound, "-", None)
    figure = f"mean {tick.mean_ms:.2f} ms, P99 {tick.p99_ms:.2f} ms"
    holds = tick.mean_ms <= TICK_MEAN_MOST_MS and tick.p99_ms <= TICK_P99_MOST_MS
    return Row("tick", "a tick, three tiers, E3 under load", bound, figure, holds)


def _rule(results: Results, name: str) -> Row:
    ten = [cell for cell in _among(results) if is_of_the_ten(cell)]
    known = [r for c in ten if (r := results.ratio(c, DEFAULT, name)) is not None]
    pooled = results.pooled(ten, DEFAULT, name) if ten else None
    what = f"against {name}, {len(ten)} cells"
    bound = f"from {RULE_LEAST} on in {RULE_CELLS} of 10, and over 1 in the mean"
    if pooled is None:
        return Row("rules", what, bound, "-", None)
    good = sum((r.mean if r.low is None else r.low) >= RULE_LEAST for r in known)
    holds = good >= RULE_CELLS and pooled.mean > 1
    told = f"lower bound {RULE_LEAST} in {good} of {len(ten)}; mean {interval(pooled)}"
    return Row("rules", what, bound, told, holds)


def _is(cell: Cell, executor: str, workload: str) -> bool:
    return (cell.executor, cell.workload) == (executor, workload)
