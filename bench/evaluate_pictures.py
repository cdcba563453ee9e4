"""Which pictures docs/evaluation.md shows, and where their limits and loads come from."""

from __future__ import annotations

from pathlib import Path

from bench.evaluate_cells import Cell
from bench.evaluate_field import DEFAULT, VLLM, named
from bench.evaluate_plots import around_change, curve
from bench.evaluate_run import Evaluation
from bench.evaluation import REPORTED, sides
from policies.registry import TYPES

_AROUND = {
    "policies-step.svg": Cell("E3", "step", 1.0, 1.0),
    "policies-flood.svg": Cell("E3", "flood", 0.7, 1.0),
}
# More than can be served in time, so that every size is reached.
_CURVE = ("policies-curve.svg", Cell("E2", "steady", 1.3, 1.0))
_ON_CURVE = (DEFAULT, "threshold", "aimd", "sla_search", "hill_climb")
_SEEDS = REPORTED[:3]


def draw(evaluation: Evaluation, folder: Path) -> None:
    """All pictures. What the evaluation has played before is not played again."""
    *_, queues = sides(evaluation.config)
    cells = {file: _scaled(one, evaluation.scale) for file, one in _AROUND.items()}
    curved, cell = _CURVE
    shown = _scaled(cell, evaluation.scale)
    evaluation.find_units([*cells.values(), shown])
    search = evaluation.hindsight()
    for file, one in cells.items():
        setting = evaluation.settings(one)
        static = search.static(setting, queues)
        around_change(setting, queues, static, folder / file, seeds=_SEEDS)
    setting = evaluation.settings(shown)
    contenders = [named(one, one) for one in _ON_CURVE if one in TYPES]
    contenders.append(named(VLLM, "static:B=256,T=2048,W=0"))
    contenders.append(search.static(setting, queues))
    played = evaluation.play([setting.case(queues, one, _SEEDS[0]) for one in contenders])
    points = {one.label: outcome for one, outcome in zip(contenders, played, strict=True)}
    curve(setting, queues, evaluation.play, folder / curved, policies=points)


def _scaled(cell: Cell, scale: float) -> Cell:
    return Cell(cell.executor, cell.workload, cell.times, cell.stretch * scale)
