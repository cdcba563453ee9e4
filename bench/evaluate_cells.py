"""Where policies are judged: executors, workloads, loads, and how many seeds each is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from bench.evaluation import REPORTED, Setting

EXECUTORS = ("E1", "E2", "E3")
# The seeds of the ten cells: those that are reported everywhere, and as many more.
CONTESTED = (*REPORTED, *range(6, 11))
STEADY = ("steady", "chat", "closed")
MOVING = (
    "step",
    "bursts-2",
    "bursts-9",
    "diurnal",
    "code",
    "alternating",
    "flood",
    "long-prompts",
)
# Nothing is served to 90 % where whole batches run to their ends: a second to the first token is
# less than a batch takes. There the unit is 0.7 of what the executor could serve if never idle.
UNSERVED = 0.7
# The load of closed clients is theirs per seat, relative to nothing.
_ABSOLUTE = ("closed",)
# Whose lengths the unit is found with; everything else is chat.
_UNITS: Mapping[str, str] = MappingProxyType({"code": "code", "alternating": "alternating"})
_STEADY_UNIT = "steady"
# Steady chat as well: the default policy alone is played on both.
_TWICE = "chat"
# What a part of the contenders is compared at, on every executor: one load of each workload.
_ONE_LOAD: Mapping[str, float] = MappingProxyType({"steady": 1.0, "step": 1.0, "alternating": 1.2})


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload on an executor, `times` the load that is its unit there, and how long it lasts."""

    executor: str
    workload: str
    times: float
    stretch: float

    @property
    def name(self) -> str:
        """As tables show it, without the executor."""
        return f"{self.workload} {self.times:g}"

    def unit(self) -> str | None:
        """The workload whose served load is the unit; None: loads are absolute."""
        if self.workload in _ABSOLUTE:
            return None
        return _UNITS.get(self.workload, _STEADY_UNIT)

    def setting(self, units: Mapping[tuple[str, str], float]) -> Setting:
        """The cell with its load, `units` being the served loads by executor and workload."""
        unit = self.unit()
        served = 1.0 if unit is None else units[self.executor, unit]
        return Setting(self.executor, self.workload, self.times * served, self.stretch)

    def seeds(self) -> Sequence[int]:
        """On how many seeds the main contenders meet: fewer where nobody can meet the targets."""
        return REPORTED[:3] if self.executor == "E1" else REPORTED

    def contested(self) -> Sequence[int]:
        """On how many seeds the default policy meets the rules of others: in the ten cells on twice
        as many, since a bound of 2 % is asked of intervals there."""
        return CONTESTED if is_of_the_ten(self) else self.seeds()

    def surveyed(self) -> bool:
        """Whether every policy is played here."""
        return self.workload != _TWICE and self.times == _ONE_LOAD.get(self.workload, self.times)

    def few(self) -> Sequence[int]:
        """On how many seeds contenders are played whom nothing is held against."""
        return self.seeds()[: len(self.seeds()) // 2]

    def foreseen(self) -> Cell:
        """Where the best limits are looked for: nobody foresees faults."""
        return replace(self, workload="steady") if self.workload == "faults" else self


# Workload, load, and its length relative to the named one (10 to 48 minutes).
_PLAN: Sequence[tuple[str, float, float]] = (
    ("steady", 0.5, 1.0),
    ("steady", 0.8, 1.0),
    ("steady", 1.0, 1.0),
    ("steady", 1.3, 1.0),
    ("chat", 0.9, 0.5),
    ("closed", 1.0, 0.5),
    ("step", 0.75, 1.0),
    ("step", 1.0, 1.0),
    ("bursts-2", 0.9, 0.5),
    ("bursts-9", 0.8, 0.5),
    ("diurnal", 1.1, 0.5),
    ("code", 1.0, 0.5),
    ("alternating", 1.0, 0.5),
    ("alternating", 1.2, 0.5),
    ("flood", 0.7, 1.0),
    ("long-prompts", 0.7, 0.5),
    ("faults", 0.7, 1.0),
)
# A day of online traffic at this part of the unit over an endless offline backlog.
_BACKLOG = ("backlog", 0.7, 0.5)
_TEN: Sequence[tuple[str, str, float]] = (
    ("E2", "steady", 1.0),
    ("E2", "step", 1.0),
    ("E2", "bursts-9", 0.8),
    ("E2", "diurnal", 1.1),
    ("E2", "alternating", 1.2),
    ("E3", "steady", 1.0),
    ("E3", "bursts-2", 0.9),
    ("E3", "code", 1.0),
    ("E3", "alternating", 1.2),
    ("E3", "long-prompts", 0.7),
)


def cells(executors: Sequence[str] = EXECUTORS, *, scale: float = 1.0) -> list[Cell]:
    """Every cell; `scale` makes all of them shorter or longer."""
    return [
        Cell(executor, workload, times, stretch * scale)
        for executor in executors
        for workload, times, stretch in _PLAN
    ]


def backlogs(executors: Sequence[str] = EXECUTORS, *, scale: float = 1.0) -> list[Cell]:
    """Where offline tokens are counted: nothing online is in time where batches run to their ends,
    so not there."""
    workload, times, stretch = _BACKLOG
    return [
        Cell(executor, workload, times, stretch * scale)
        for executor in executors
        if executor != "E1"
    ]


def is_of_the_ten(cell: Cell) -> bool:
    """Whether the rules of others are held against the default policy here."""
    return (cell.executor, cell.workload, cell.times) in _TEN


def is_steady(cell: Cell) -> bool:
    """Whether traffic stays what it is."""
    return cell.workload in STEADY


def is_moving(cell: Cell) -> bool:
    """Whether traffic changes, in rate or in lengths."""
    return cell.workload in MOVING
