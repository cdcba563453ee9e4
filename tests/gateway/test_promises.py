"""What no limits can keep is told to the operator, once in the log, and nobody is shed for it."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from executor.contract import Ready, StepSample, TextModel
from tests.gateway.desk_rig import CAPACITY, Heard, Rig

TIERS = {
    "paid": {"priority": 1, "targets": {"ttft": "1s", "itl": "50ms"}},
    "free": {"priority": 0, "targets": {"itl": "200ms"}},
}


@pytest.fixture
def rig() -> Rig:
    rig = Rig(tiers=TIERS)
    rig.parts.ticker.tick()
    return rig


async def ready(rig: Rig, *, step_s: float) -> None:
    """An executor whose warm-up took so long a step, whatever was in it."""
    samples = [StepSample(step_s, rows, rows, 64 * rows, 0, 0) for rows in (1, 2, 4, 8)] * 8
    rig.incarnations["main"] += 1
    told = Ready(capacity=CAPACITY, text=TextModel(kind="bytes"), warmup=samples)
    rig.dispatcher.on_ready("main", rig.incarnations["main"], told)
    await rig.turn()


def warnings(rig: Rig) -> list[str]:
    found: list[str] = rig.desk.readiness()[1]["warnings"]
    return found


def told(logs: list[Any]) -> list[tuple[str, str]]:
    return [(entry["executor"], entry["why"]) for entry in logs if "promise" in entry["event"]]


async def test_before_anything_is_known_nothing_is_said(rig: Rig) -> None:
    assert warnings(rig) == []


async def test_what_can_be_kept_is_not_warned_of(rig: Rig) -> None:
    with capture_logs() as logs:
        await ready(rig, step_s=0.03)
        rig.parts.ticker.tick()
    assert (warnings(rig), told(logs)) == ([], [])


async def test_a_target_below_a_single_step_is_shown_and_logged_once_and_nobody_is_shed(
    rig: Rig,
) -> None:
    with capture_logs() as logs:
        await ready(rig, step_s=0.08)
        for _ in range(3):
            rig.parts.ticker.tick()
    (shown,) = warnings(rig)
    assert shown.startswith("executor 'main': tier 'paid' is promised itl 50 ms, but a step takes")
    assert told(logs) == [("main", shown.removeprefix("executor 'main': "))]
    assert rig.desk.readiness()[0]
    assert rig.desk.state()["readiness"]["warnings"] == [shown]
    await rig.offer("a", Heard())
    assert rig.wire.begun == ["a"]


async def test_another_promise_that_breaks_later_is_told_too(rig: Rig) -> None:
    with capture_logs() as logs:
        await ready(rig, step_s=0.08)
        rig.parts.ticker.tick()
        for _ in range(40):
            await ready(rig, step_s=0.9)
        rig.parts.ticker.tick()
        rig.parts.ticker.tick()
    tiers = [why.split(" is promised")[0] for _, why in told(logs)]
    assert tiers == ["tier 'paid'", "tier 'free'"]
    assert len(warnings(rig)) == 2
