"""What a run came to: who was served as promised, how long it took, and how the limits moved.

Everything is measured from the intended arrival. A drop, a reject, a time-out is a miss.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import msgspec

from bench.arrivals import Workload
from bench.fairness import among_keys, jain
from bench.journal import Fate, Journal, Move
from controller.tiers import Tier

# Of a run's beginning nothing is counted: queues and policies start from nothing.
WARM_UP_S = 60.0
SETTLED_WINDOW_S = 5.0
SETTLED_FOR_S = 30.0


class Spread(msgspec.Struct, frozen=True):
    """A distribution in seconds: its size, median and 99th percentile (nearest rank)."""

    samples: int
    p50: float
    p99: float


class TierOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One tier. `offered` counts what is decided, `met` what met every target.

    `goodput` is in requests a second. `keys` asked, and `key_fairness` is Jain's index over them of
    the tokens, prompts included, of what met its targets, each relative to its max-min fair part.
    `missed` counts by reason: `ttft`, `itl`, `e2e`, or the outcome and reason of what was not
    finished. `undecided` was cut off by the end of the run.
    """

    offered: int
    met: int
    attainment: float | None
    goodput: float
    tokens_per_s: float
    ttft: Spread | None
    itl: Spread | None
    e2e: Spread | None
    missed: dict[str, int]
    undecided: int
    longest_starvation_s: float
    keys: int
    key_fairness: float | None


class Limit(msgspec.Struct, frozen=True):
    """Limits in force from an instant on."""

    time_s: float
    group: str
    max_batch_size: int
    max_batch_tokens: int
    wait_timeout_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `mean_batch` is rows in a step, `busy` the part of the time in steps, `fairness`
    Jain's index of attainment over the tiers.

    `settling_s`: for each change of traffic, seconds until every 5 s window meets its targets for
    30 s, None: never before the next. `reversals_per_min` counts turns of B by over 10 %.
    `met_by_phase`: how many of those that arrived between two changes met every target.
    """

    window_s: float
    attainment: float | None
    goodput: float
    requests_per_s: float
    tokens_per_s: float
    busy: float
    mean_batch: float | None
    fairness: float | None
    reversals_per_min: float
    settling_s: list[float | None]
    tiers: dict[str, TierOutcome]
    limits: list[Limit]
    met_by_phase: list[int] = []


def reckon(
    journal: Journal, workload: Workload, tiers: Mapping[str, Tier], *, ended_s: float
) -> Outcome:
    """The outcome of a run that ended at `ended_s`."""
    since = min(WARM_UP_S, workload.duration_s / 10)
    window_s = workload.duration_s - since
    counted = [fate for fate in journal.fates if fate.arrival_s >= since]
    # What arrived before and ran on has its tokens in the window, as what runs on after it has not.
    done = [f for f in journal.fates if since <= f.ended_s < workload.duration_s]
    starved = journal.longest_starvation_s()
    made = {
        name: _tier(
            [fate for fate in counted if fate.tier == name],
            [fate for fate in done if fate.tier == name],
            tier,
            window_s=window_s,
            starved_s=starved.get(name, 0.0),
        )
        for name, tier in tiers.items()
    }
    offered, met = sum(t.offered for t in made.values()), sum(t.met for t in made.values())
    finished = sum(fate.outcome == "finished" for fate in done)
    return Outcome(
        window_s=window_s,
        attainment=met / offered if offered else None,
        goodput=met / window_s,
        requests_per_s=finished / window_s,
        tokens_per_s=sum(fate.tokens for fate in done) / window_s,
        busy=_busy(journal, ended_s),
        mean_batch=journal.rows / journal.steps if journal.steps else None,
        fairness=jain([t.met / t.offered for t in made.values() if t.offered]),
        reversals_per_min=_reversals(journal.moves, since) / (window_s / 60),
        settling_s=_settling(journal.fates, workload, tiers),
        tiers=made,
        limits=[
            Limit(m.time_s, m.group, m.max_batch_size, m.max_batch_tokens, m.wait_timeout_s)
            for m in journal.moves
        ],
        met_by_phase=_by_phase(counted, workload, tiers),
    )


def _by_phase(fates: Sequence[Fate], workload: Workload, tiers: Mapping[str, Tier]) -> list[int]:
    met = [0] * (len(workload.changes) + 1)
    for fate in fates:
        met[bisect_right(workload.changes, fate.arrival_s)] += (
            verdict(fate, tiers[fate.tier]) == "met"
        )
    return met


def verdict(fate: Fate, tier: Tier) -> str | None:
    """`met`, or what was missed first; None: the run ended before it was decided."""
    targets, first = tier.targets, fate.first_s
    until_first = (fate.ended_s if first is None else first) - fate.arrival_s
    if fate.outcome not in ("finished", "open"):
        return f"{fate.outcome}: {fate.reason}"
    if targets.ttft_s is not None and until_first > targets.ttft_s:
        return "ttft"
    if targets.e2e_s is not None and fate.ended_s - fate.arrival_s > targets.e2e_s:
        return "e2e"
    if fate.outcome == "open":
        return None
    itl = _itl(fate)
    return "itl" if targets.itl_s is not None and itl is not None and itl > targets.itl_s else "met"


def _itl(fate: Fate) -> float | None:
    """The request's mean inter-token latency; None for a single token."""
    if fate.first_s is None or fate.last_s is None or fate.tokens < 2:
        return None
    return (fate.last_s - fate.first_s) / (fate.tokens - 1)


def _tier(
    fates: Sequence[Fate],
    done: Sequence[Fate],
    tier: Tier,
    *,
    window_s: float,
    starved_s: float,
) -> TierOutcome:
    verdicts = [verdict(fate, tier) for fate in fates]
    told = Counter(verdicts)
    undecided, met = told.pop(None, 0), told.pop("met", 0)
    served, wanted = Counter[int](), Counter[int]()
    for fate, one in zip(fates, verdicts, strict=True):
        if one is not None:
            wanted[fate.key] += fate.prompt + fate.wanted
            served[fate.key] += fate.prompt + fate.tokens if one == "met" else 0
    offered = len(fates) - undecided
    finished = [fate for fate in fates if fate.outcome == "finished"]
    return TierOutcome(
        offered=offered,
        met=met,
        attainment=met / offered if offered else None,
        goodput=met / window_s,
        tokens_per_s=sum(fate.tokens for fate in done) / window_s,
        ttft=_spread([f.first_s - f.arrival_s for f in fates if f.first_s is not None]),
        itl=_spread([itl for fate in finished if (itl := _itl(fate)) is not None]),
        e2e=_spread([fate.ended_s - fate.arrival_s for fate in finished]),
        missed={str(why): count for why, count in sorted(told.items(), key=str)},
        undecided=undecided,
        longest_starvation_s=starved_s,
        keys=len(wanted),
        key_fairness=among_keys(served, wanted),
    )


def quantile(values: Sequence[float], fraction: float) -> float:
    """The value of nearest rank: the least one that this fraction does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-round(fraction * 1e6) * len(ordered) // 1_000_000) - 1)]


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    return Spread(len(values), quantile(values, 0.5), quantile(values, 0.99))


def _busy(journal: Journal, ended_s: float) -> float:
    """The mean over executors."""
    whole_s = ended_s * len(journal.executors)
    return min(1.0, journal.busy_s / whole_s) if whole_s else 0.0


def _reversals(moves: Sequence[Move], since: float, *, least: float = 0.1) -> int:
    """Turns of B in the first group's moves after `since`, each by more than 10 %."""
    mine = [move for move in moves if move.group == moves[0].group]
    before = [move.max_batch_size for move in mine if move.time_s < since][-1:]
    sizes = before + [move.max_batch_size for move in mine if move.time_s >= since]
    turns, trend = 0, 0
    high = low = sizes[0] if sizes else 0
    for size in sizes:
        high, low = max(high, size), min(low, size)
        if trend <= 0 and size > low * (1 + least):
            turns, trend, high = turns + (trend < 0), 1, size
        elif trend >= 0 and size < high * (1 - least):
            turns, trend, low = turns + (trend > 0), -1, size
    return turns


def _settling(
    fates: Sequence[Fate], workload: Workload, tiers: Mapping[str, Tier]
) -> list[float | None]:
    """For each change of traffic, seconds until the targets are met and stay so."""
    if not workload.changes:
        return []
    windows: dict[tuple[int, str], list[bool]] = {}
    for fate in fates:
        if (told := verdict(fate, tiers[fate.tier])) is not None:
            key = (int(fate.arrival_s // SETTLED_WINDOW_S), fate.tier)
            windows.setdefault(key, []).append(told == "met")
    bad = sorted(
        {
            index
            for (index, name), met in windows.items()
            if sum(met) < tiers[name].targets.attainment * len(met)
        }
    )
    found: list[float | None] = []
    for begin, end in pairwise((*workload.changes, workload.duration_s)):
        start = begin
        for index in bad:
            if index * SETTLED_WINDOW_S >= start + SETTLED_FOR_S:
                break
            if (index + 1) * SETTLED_WINDOW_S > start:
                start = (index + 1) * SETTLED_WINDOW_S
        found.append(start - begin if start + SETTLED_FOR_S <= end else None)
    return found
