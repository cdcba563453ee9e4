"""How outcomes are shown: a table for people, all figures as JSON, limits over time in a plot."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from bench.campaign import paired
from bench.outcome import Outcome, Spread, TierOutcome

Results = Mapping[str, Sequence[Outcome]]


def table(results: Results) -> str:
    """One block on the whole, one for each tier; figures are means over the seeds.

    Ratios are against the first policy, paired by seed, with their 95 % intervals.
    """
    labels = list(results)
    blocks = [_block("all tiers", labels, _whole(results))]
    tiers = next(iter(results.values()))[0].tiers
    blocks += [_block(name, labels, _of_tier(results, name)) for name in tiers]
    return "\n\n".join(blocks)


def _whole(results: Results) -> dict[str, list[str]]:
    first = [outcome.goodput for outcome in next(iter(results.values()))]
    rows: dict[str, list[str]] = {
        "goodput, req/s": _each(results, lambda o: o.goodput),
        "  against the first": [
            _ratio([outcome.goodput for outcome in outcomes], first)
            for outcomes in results.values()
        ],
        "attainment": _each(results, lambda o: o.attainment, "{:.1%}"),
        "requests/s": _each(results, lambda o: o.requests_per_s),
        "tokens/s": _each(results, lambda o: o.tokens_per_s, "{:.0f}"),
        "busy": _each(results, lambda o: o.busy, "{:.0%}"),
        "rows in a step": _each(results, lambda o: o.mean_batch, "{:.1f}"),
        "fairness (Jain)": _each(results, lambda o: o.fairness),
        "reversals/min": _each(results, lambda o: o.reversals_per_min, "{:.1f}"),
        "B at the end": _each(results, lambda o: o.limits[-1].max_batch_size, "{:.0f}"),
        "B, least to most": [_range(outcomes) for outcomes in results.values()],
    }
    if any(outcome.settling_s for outcomes in results.values() for outcome in outcomes):
        rows["settling, s"] = [_settling(outcomes) for outcomes in results.values()]
    return rows


def _of_tier(results: Results, name: str) -> dict[str, list[str]]:
    def spread(pick: Callable[[TierOutcome], Spread | None]) -> list[str]:
        return [
            f"{_mean([s.p50 for s in found])} / {_mean([s.p99 for s in found])}"
            if (found := [s for o in outcomes if (s := pick(o.tiers[name])) is not None])
            else "-"
            for outcomes in results.values()
        ]

    rows = {
        "goodput, req/s": _each(results, lambda o: o.tiers[name].goodput),
        "attainment": _each(results, lambda o: o.tiers[name].attainment, "{:.1%}"),
        "TTFT p50 / p99, s": spread(lambda tier: tier.ttft),
        "ITL p50 / p99, s": spread(lambda tier: tier.itl),
        "E2E p50 / p99, s": spread(lambda tier: tier.e2e),
        "tokens/s": _each(results, lambda o: o.tiers[name].tokens_per_s, "{:.0f}"),
        "missed": [_missed([o.tiers[name] for o in outcomes]) for outcomes in results.values()],
        "undecided": _each(results, lambda o: o.tiers[name].undecided, "{:.0f}"),
        "longest starvation, s": _each(
            results, lambda o: o.tiers[name].longest_starvation_s, "{:.1f}"
        ),
    }
    if any(o.tiers[name].keys > 1 for outcomes in results.values() for o in outcomes):
        rows["fairness over keys"] = _each(results, lambda o: o.tiers[name].key_fairness)
    return rows


def _each(
    results: Results, pick: Callable[[Outcome], float | None], shown: str = "{:.3f}"
) -> list[str]:
    return [_mean([pick(outcome) for outcome in outcomes], shown) for outcomes in results.values()]


def _mean(values: Sequence[float | None], shown: str = "{:.3f}") -> str:
    known = [value for value in values if value is not None]
    return shown.format(statistics.fmean(known)) if known else "-"


def _ratio(values: Sequence[float], base: Sequence[float]) -> str:
    ratio = paired(values, base)
    if ratio is None:
        return "-"
    if ratio.low is None:
        return f"{ratio.mean:.3f}"
    return f"{ratio.mean:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _range(outcomes: Sequence[Outcome]) -> str:
    sizes = [limit.max_batch_size for outcome in outcomes for limit in outcome.limits]
    return f"{min(sizes)} to {max(sizes)}"


def _settling(outcomes: Sequence[Outcome]) -> str:
    """Mean seconds after each change; in how many runs it never came to rest."""
    shown = []
    for times in zip(*(outcome.settling_s for outcome in outcomes), strict=True):
        never = sum(time is None for time in times)
        shown.append(_mean(times, "{:.0f}") + (f" ({never} never)" if never else ""))
    return ", ".join(shown)


def _missed(tiers: Sequence[TierOutcome]) -> str:
    total: Counter[str] = Counter()
    for tier in tiers:
        total.update(tier.missed)
    told = [f"{why} {count / len(tiers):.0f}" for why, count in total.most_common()]
    return ", ".join(told) or "none"


def _block(title: str, labels: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    head = max(len(title), *(len(name) for name in rows))
    columns = [
        max(len(label), *(len(cells[index]) for cells in rows.values()))
        for index, label in enumerate(labels)
    ]
    lines = [[title.ljust(head), *(x.rjust(w) for x, w in zip(labels, columns, strict=True))]]
    lines += [
        [name.ljust(head), *(cell.rjust(width) for cell, width in zip(cells, columns, strict=True))]
        for name, cells in rows.items()
    ]
    lines.insert(1, ["-" * head, *("-" * width for width in columns)])
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def as_json(results: Results, about: Mapping[str, object]) -> bytes:
    """Everything, the same bytes for the same runs."""
    return msgspec.json.format(
        msgspec.json.encode({"about": about, "results": results}, order="sorted"), indent=1
    )


def plot(results: Results, path: Path) -> None:
    """B over time for each policy (its first seed), into a picture. Needs matplotlib."""
    # Imported here: it is an extra of the installation, and slow.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.2 * len(results)), layout="constrained")
    axes = figure.subplots(len(results), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (label, outcomes) in zip(axes, results.items(), strict=True):
        limits = outcomes[0].limits
        times = [limit.time_s for limit in limits]
        axis.step(times, [limit.max_batch_size for limit in limits], where="post")
        axis.set_ylabel("B")
        axis.set_ylim(bottom=0)
        axis.set_title(f"{label}: goodput {outcomes[0].goodput:.3f}/s", fontsize="small")
    axes[-1].set_xlabel("s")
    figure.savefig(path)
