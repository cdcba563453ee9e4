"""How the evaluation of the queues is told: Markdown tables, and whether each bound holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.campaign import Ratio
from bench.evaluation import Figures

BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"
TIERS = ("paid", "free", "offline")


@dataclass(frozen=True, slots=True)
class Section:
    """A table with its words, and what was to hold: (holds, in words)."""

    title: str
    about: str
    table: str
    verdicts: Sequence[tuple[bool, str]] = ()

    def markdown(self) -> str:
        """All of it."""
        told = [f"* {'holds' if holds else '**does not hold**'}: {w}" for holds, w in self.verdicts]
        parts = [f"### {self.title}", self.about, self.table, "\n".join(told)]
        return "\n\n".join(part for part in parts if part)


def grid(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def compared(figures: Sequence[Figures]) -> str:
    """Sides on the same traffic: limits, goodput, ratios to each FIFO, attainment, why missed."""
    bases = [one for one in figures if one.side.fifo]
    rows = [
        (
            one.side.name,
            limits_of(one),
            f"{one.goodput():.3f}",
            *(interval(one.against(base)) for base in bases),
            " / ".join(f"{one.attainment(tier):.1%}" for tier in TIERS),
            f"{one.turned_away('paid')}",
            f"paid {reasons(one, 'paid')}; free {reasons(one, 'free')}",
        )
        for one in figures
    ]
    titles = (
        "side",
        "B, T",
        "goodput, req/s",
        *(f"against {base.side.name}" for base in bases),
        "attainment, paid / free / offline",
        "paid turned away",
        "missed",
    )
    return grid(titles, rows)


def flooded(pairs: Sequence[tuple[str, float, Figures, Figures]]) -> str:
    """Rows of (executor, load, without the flood, with it)."""
    rows = [
        (
            executor,
            f"{load:g}",
            limits_of(flood),
            f"{calm.attainment('paid'):.2%}",
            f"{flood.attainment('paid'):.2%}",
            f"{flood.worst('paid'):.2%}",
            reasons(flood, "paid"),
            f"{flood.attainment('free'):.1%}",
        )
        for executor, load, calm, flood in pairs
    ]
    titles = (
        "executor",
        "load",
        "B, T",
        "paid without the flood",
        "paid",
        "worst seed",
        "paid missed",
        "free",
    )
    return grid(titles, rows)


def starved(rows: Sequence[tuple[str, str, float, Figures]]) -> str:
    """Rows of (executor, workload, load, figures): the longest time without progress."""
    told = [
        (
            executor,
            workload,
            f"{load:.2f}",
            limits_of(one),
            *(f"{one.starved_s(tier):.1f} s" for tier in TIERS),
        )
        for executor, workload, load, one in rows
    ]
    return grid(("executor", "workload", "load", "B, T", *TIERS), told)


def limits_of(figures: Figures) -> str:
    """B and T."""
    return f"{figures.contender.size}, {figures.contender.tokens}"


def interval(ratio: Ratio | None) -> str:
    """A ratio with its 95 % interval."""
    if ratio is None:
        return "-"
    if ratio.low is None:
        return f"{ratio.mean:.3f}"
    return f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def reasons(figures: Figures, tier: str) -> str:
    """What a tier missed, as parts of what it offered."""
    found = figures.missed(tier).items()
    return ", ".join(f"{why} {part:.1%}" for why, part in found if part >= 0.0005) or "nothing"


def spliced(page: str, tables: str, marks: tuple[str, str] = (BEGIN, END)) -> str:
    """The page with these tables between the marks. Raises ValueError where it has none."""
    first, last = marks
    before, begin, rest = page.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end):
        raise ValueError(f"the page should have the lines {first} and {last}")
    return f"{before}{first}\n\n{tables}\n\n{last}{after}"
