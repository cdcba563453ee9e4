"""Our queues against first in, first out: makes the tables of docs/evaluation.md.

`python -m bench.evaluate_queues [--write]`
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.campaign import Cache, cores, default_cache
from bench.case import Contender
from bench.evaluate_progress import Runs
from bench.evaluation import (
    OVERLOAD,
    REPORTED,
    Figures,
    Play,
    Searcher,
    Setting,
    Side,
    at_most,
    report,
    sides,
)
from bench.evaluation_text import Section, compared, flooded, interval, spliced, starved
from controller.config import Config
from controller.config_load import load as load_config

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "evaluation.yaml"
PAGE = ROOT / "docs" / "evaluation.md"

RATIO_LEAST, PAID_LEAST, STARVED_MOST_S = 1.15, 0.99, 60.0
# Of the workload's 40 minutes: five of chat, five of code, twice.
STRETCH = 0.5
# Where promising limits are looked for before it is known which load is served.
_MIDDLE_LOAD = 0.6
_FLOOD_LOAD = 0.6
_ONLINE_LOAD = 0.89
_STARVING_SEEDS = REPORTED[:3]
# One in a hundred is what is asked for: of 400 paid requests in a run, four.
_FLOOD_SEEDS = range(1, 21)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All that is asked, of a configuration. `stretch`: see `bench.workloads.Scene`."""

    play: Play
    config: Config
    executors: Sequence[str] = ("E2", "E3")
    stretch: float = STRETCH
    chosen: dict[str, tuple[Side, Contender]] = field(default_factory=dict, init=False)

    def sections(self) -> Iterator[Section]:
        """Every table, as it is ready."""
        for executor in self.executors:
            yield from self.overload(executor)
        yield self.flood(["E1", *self.executors])
        yield self.starvation()

    def overload(self, executor: str) -> Iterator[Section]:
        """Chat and code alternating, at more than the best static still serves; and at more than
        the best static with FIFO still serves."""
        fifo, expiring, last, drop = sides(self.config)
        middle = Setting(executor, "alternating", _MIDDLE_LOAD, self.stretch)
        for unit, compete, longer in (
            (drop, (fifo, expiring, last, drop), True),
            (fifo, (fifo, expiring, drop), False),
        ):
            search = Searcher(self.play)
            served = search.served(middle, unit)
            setting = replace(middle, load=OVERLOAD * served)
            chosen = [(side, search.best(setting, side).contender) for side in compete]
            self.chosen[executor] = self.chosen.get(executor, chosen[-1])
            for stretch in (self.stretch, 2 * self.stretch)[: 1 + longer]:
                there = replace(setting, stretch=stretch)
                figures = report(there, chosen, self.play)
                highest = at_most(there, self.config)
                bound = highest / (figures[0].attainment() or math.nan)
                yield Section(
                    f"{executor}, load {there.load:.2f}, {40 * stretch:g} minutes",
                    f"{OVERLOAD} times the {served:.2f} of which the best static limits with "
                    f"*{unit.name}* still serve 90 % within target. Alone on the executor, "
                    f"{highest:.1%} of the requests would be in time: {bound:.2f} times "
                    f"*{fifo.name}*, more than anybody can come to.",
                    compared(figures),
                    [_ratio_holds(one, figures[0]) for one in figures if not one.side.fifo],
                )

    def flood(self, executors: Sequence[str]) -> Section:
        """Tenfold free traffic for a minute over chat, with the limits that are best for the chat:
        nobody knows of a flood before it comes."""
        side = sides(self.config)[-1]
        rows, verdicts = [], []
        for executor in executors:
            calm = Setting(executor, "steady", _FLOOD_LOAD, 1.0)
            chosen = [(side, Searcher(self.play).best(calm, side).contender)]
            (before,) = report(calm, chosen, self.play, seeds=_FLOOD_SEEDS)
            flooded_ = replace(calm, workload="flood")
            (flood,) = report(flooded_, chosen, self.play, seeds=_FLOOD_SEEDS)
            rows.append((executor, calm.load, before, flood))
            paid = flood.attainment("paid")
            if executor in self.executors:
                words = f"paid attainment {paid:.2%} on {executor}, at least {PAID_LEAST:.0%}"
                verdicts.append((paid >= PAID_LEAST, words))
        about = (
            f"Chat, ten minutes, {len(_FLOOD_SEEDS)} seeds; limits are the best for it without "
            "a flood. E1, which runs whole batches to their ends, is there for information."
        )
        return Section("Tenfold free traffic for a minute", about, flooded(rows), verdicts)

    def starvation(self) -> Section:
        """Whether lower tiers move on, below saturation, with the limits of the overload."""
        rows, verdicts = [], []
        for executor in self.executors:
            for workload in ("backlog", "alternating"):
                setting = Setting(executor, workload, _ONLINE_LOAD, self.stretch)
                chosen = [self.chosen[executor]]
                (one,) = report(setting, chosen, self.play, seeds=_STARVING_SEEDS)
                rows.append((executor, workload, setting.load, one))
                worst = max(one.starved_s("free"), one.starved_s("offline"))
                words = (
                    f"{worst:.1f} s without progress on {executor}, {workload}; "
                    f"under {STARVED_MOST_S:.0f} s"
                )
                verdicts.append((worst < STARVED_MOST_S, words))
        about = "Over all seeds; while somebody of the tier waited."
        return Section("Longest time without progress", about, starved(rows), verdicts)


def _ratio_holds(one: Figures, fifo: Figures) -> tuple[bool, str]:
    ratio = one.against(fifo)
    words = f"*{one.side.name}* {interval(ratio)} times *{fifo.side.name}*, at least {RATIO_LEAST}"
    return ratio is not None and ratio.mean >= RATIO_LEAST, words


def main() -> None:
    """Print the tables, and write them into the page where that is asked."""
    parser = argparse.ArgumentParser(prog="bench.evaluate_queues", description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into the page")
    parser.add_argument("--executor", action="append", choices=["E2", "E3"])
    parser.add_argument("--stretch", type=float, default=STRETCH)
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--no-cache", action="store_true", help="play everything again")
    args = parser.parse_args()
    config = load_config(CONFIG, env={})
    told = []
    with Runs(Cache(None if args.no_cache else default_cache()), args.jobs) as runs:
        evaluation = Evaluation(runs, config, args.executor or ("E2", "E3"), args.stretch)
        for section in evaluation.sections():
            told.append(section.markdown())
            print(f"\n{told[-1]}\n", flush=True)
    spent = os.times()
    print(
        f"{runs.count} runs in {runs.lasted_s():.0f} s, {args.jobs} at once; CPU "
        f"{spent.user + spent.children_user:.0f} s"
    )
    if args.write:
        page = spliced(PAGE.read_text(encoding="utf-8"), "\n\n".join(told))
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
