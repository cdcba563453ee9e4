"""What a tier's own policy sees: the signals as if the tier were alone on its seats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from controller.ledger import ExecutorSeats
from controller.records import StepTotals
from controller.tiers import Tier, seat_cap
from policies.contract import Applied, ExecutorSignals, Signals, StepEstimate


def alone(
    signals: Signals,
    tier: Tier,
    members: Sequence[tuple[ExecutorSeats, StepTotals]],
    *,
    last: Applied | None,
) -> Signals:
    """The signals of a group, narrowed to one tier.

    Of each executor the figures about sequences (running, free seats, batch, fill, how often the
    limit was reached) are the tier's, its seats being the limit; steps, times, memory and device
    are everybody's. The step model speaks of so many sequences of the tier beside the others that
    run. `members` are in the order of `signals.executors`; `last` is the tier's.
    """
    executors = tuple(
        _narrowed(shown, tier, seats, totals=totals)
        for shown, (seats, totals) in zip(signals.executors, members, strict=True)
    )
    pairs = zip(signals.executors, executors, strict=True)
    others = max(
        ((whole.mean_batch or 0.0) - (mine.mean_batch or 0.0) for whole, mine in pairs), default=0.0
    )
    contexts = [e.mean_context for e in executors if e.mean_context is not None]
    return replace(
        signals,
        tiers=tuple(shown for shown in signals.tiers if shown.name == tier.name),
        executors=executors,
        model=_beside(signals.model, max(0.0, others), context=max(contexts, default=0.0)),
        last=last,
    )


def _narrowed(
    shown: ExecutorSignals, tier: Tier, seats: ExecutorSeats, *, totals: StepTotals
) -> ExecutorSignals:
    cap = seat_cap(tier, seats.limits)
    most = seats.size_limit if cap is None else min(cap, seats.size_limit)
    running, n = seats.by_tier.get(tier.name, 0), totals.steps
    mine = totals.of_tier.get(tier.name) if n else None
    return replace(
        shown,
        running=running,
        free_seats=max(0, min(shown.free_seats, most - running)),
        mean_batch=mine.taken / n if mine else None,
        fill=mine.fill / n if mine else None,
        size_bound=mine.bound / n if mine else None,
    )


def _beside(model: StepEstimate | None, others: float, *, context: float) -> StepEstimate | None:
    """The same steps, told by the sequences that are added to `others`, of this context each."""
    if model is None:
        return None
    return replace(
        model,
        a=model.predict(others, others * context),
        knee=max(0, model.knee - round(others)),
    )
