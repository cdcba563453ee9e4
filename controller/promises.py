"""Whether a tier's targets can be met: by when a request must begin, and what can never be kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from controller.request import Request
from controller.tiers import Tier
from policies.contract import StepEstimate

# A second of waiting makes up for a second of work where the shortest goes first: a request waits
# for later ones no longer than it will itself take.
AGE_CREDIT = 1.0


class Need(NamedTuple):
    """Seconds that a request takes from its dispatch on: to its first token, and to its end."""

    first_s: float
    whole_s: float


NOTHING_KNOWN = Need(0.0, 0.0)
Judge = Callable[[Request], Need]


def appoint(request: Request, tier: Tier, need: Need) -> None:
    """Set the instant by which a request must begin, and its rank within the tier.

    A target that is shorter than what the request takes by itself could not be met whenever it
    began: `due` is minus infinity then, which is late, and no fault of its waiting.
    """
    targets, arrival = tier.targets, request.arrival
    slack_s = math.inf
    if (ttft_s := targets.ttft_s) is not None:
        slack_s = ttft_s - need.first_s
    if (e2e_s := targets.e2e_s) is not None:
        slack_s = min(slack_s, e2e_s - need.whole_s)
    request.first_s = need.first_s
    request.due = arrival + slack_s if slack_s > 0 else -math.inf
    if tier.order == "shortest":
        request.rank = need.whole_s + AGE_CREDIT * arrival
    elif tier.order == "fcfs" or request.due == math.inf:
        request.rank = arrival
    else:
        request.rank = request.due


def order_anew(request: Request, tier: Tier, need: Need) -> None:
    """Set the rank that a request has in another order of its tier; when it is due stays as it was
    promised."""
    due, first_s = request.due, request.first_s
    appoint(request, tier, need)
    request.due, request.first_s = due, first_s
    if tier.order == "edf":
        request.rank = due if due < math.inf else request.arrival


def unreachable(tiers: Iterable[Tier], estimate: StepEstimate | None) -> list[str]:
    """Promises that the executor could not keep for a single request on an idle machine, in words;
    empty while nothing is known of it."""
    if estimate is None or not estimate.samples:
        return []
    step_s = estimate.predict(1, 0)
    told = []
    for tier in tiers:
        for metric, target_s in tier.targets.named().items():
            if target_s < step_s:
                told.append(
                    f"tier '{tier.name}' is promised {metric} {target_s * 1e3:.3g} ms, but a step "
                    f"takes {step_s * 1e3:.3g} ms at least: no limits can keep that"
                )
    return told
