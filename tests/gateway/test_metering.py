"""What an operator reads in `/metrics` of how batches went, who gave way and who waits too long."""

from __future__ import annotations

import pytest

from controller.plan import Dispatch, Why
from controller.request import Outcome
from executor.contract import Key, Report, Returned
from gateway.metering import ENDS, Meter, build_instruments
from tests.gateway.desk_rig import Heard, Rig

ONE_SEAT = {"max_batch_size": 1, "max_batch_tokens": 64, "wait_timeout": "0s"}


def figures(exposition: bytes) -> dict[str, float]:
    """Every sample of an exposition, `name{label="value"}` to its figure."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in exposition.decode().splitlines()
        if not line.startswith("#")
    }


def shown(rig: Rig, name: str, label: str) -> float:
    return figures(rig.desk.metrics())[f"headway_{name}{{{label}}}"]


@pytest.fixture
def meter() -> Meter:
    """A meter of its own for events that a test makes up."""
    made = Meter()
    made.instruments = build_instruments(Rig().batcher, version="1", policies=[])
    return made


class TestBatches:
    def test_each_adds_to_why_how_many_how_deep_how_old_and_how_long_held(
        self, meter: Meter
    ) -> None:
        meter.batch(Dispatch("main", 3, Why.TIMEOUT, 3, 0.25, 0.005, None), 1.0)
        meter.batch(Dispatch("main", 4, Why.FULL, 40, 1.5, 0.0, None), 2.0)
        meter.batch(Dispatch("main", 1, Why.NO_GAIN, 1, 0.0, 0.0, None), 3.0)
        seen = figures(meter.instruments.render())
        went = {
            why: seen[f'headway_dispatches_total{{executor="main",reason="{why}"}}'] for why in Why
        }
        assert {why: count for why, count in went.items() if count} == {
            Why.TIMEOUT: 1,
            Why.FULL: 1,
            Why.NO_GAIN: 1,
        }
        sums = {
            name: seen[f'headway_dispatch_{name}_sum{{executor="main"}}']
            for name in ("batch_size", "queue_depth", "oldest_seconds", "hold_seconds")
        }
        assert sums == {
            "batch_size": 8.0,
            "queue_depth": 44.0,
            "oldest_seconds": 1.75,
            "hold_seconds": 0.005,
        }

    def test_padding_is_counted_in_buckets_that_add_up_and_only_where_there_can_be_some(
        self, meter: Meter
    ) -> None:
        for padding in (None, 0.0, 0.25, 0.5):
            meter.batch(Dispatch("main", 4, Why.FULL, 4, 0.0, 0.0, padding), 1.0)
        seen = figures(meter.instruments.render())
        name, label = "headway_dispatch_padding_ratio", 'executor="main"'
        assert (seen[f"{name}_count{{{label}}}"], seen[f"{name}_sum{{{label}}}"]) == (3.0, 0.75)
        within = [seen[f'{name}_bucket{{{label},le="{bound}"}}'] for bound in (0.2, 0.3, 0.5, 1.0)]
        assert within == [1.0, 2.0, 3.0, 3.0]


async def test_a_seat_given_up_for_others_and_taken_again_is_counted_and_a_fault_is_not_one() -> (
    None
):
    rig = Rig()
    await rig.ready()
    await rig.offer("a", Heard())
    for returned in (Returned("a", 1, "preempted"), Returned("a", 2, "error")):
        rig.dispatcher.on_report("main", 1, Report(epoch=0, returned=[returned]))
        await rig.turn()
    assert rig.wire.begun == ["a"] * 3
    assert shown(rig, "preemptions_total", 'tier="paid"') == 1.0
    assert shown(rig, "resumes_total", 'tier="paid"') == 2.0
    assert shown(rig, "queue_wait_seconds_count", 'tier="paid"') == 1.0


async def test_who_gave_a_seat_to_a_higher_tier_is_shown_with_its_place_and_counted() -> None:
    rig = Rig(limits=ONE_SEAT)
    await rig.ready()
    await rig.offer("low", Heard(), tier="offline")
    await rig.report({"low": [7]})
    await rig.offer("high", Heard())
    rig.clock.now += 0.9
    rig.dispatcher.pump()
    assert rig.wire.released == [Key("low", 1)]
    await rig.report({}, released=rig.wire.released)
    assert rig.wire.begun == ["low", "high"]
    seen = rig.desk.request("low") or {}
    assert (seen["state"], seen["preemptions"], seen["faults"]) == ("queued", 1, 0)
    assert (seen["generated_tokens"], seen["due_s"]) == (1, 600.0)
    assert shown(rig, "preemptions_total", 'tier="offline"') == 1.0
    await rig.report({"high": [7]}, finished=["high"])
    assert rig.wire.begun == ["low", "high", "low"]
    assert shown(rig, "resumes_total", 'tier="offline"') == 1.0


async def test_those_that_wait_beyond_their_target_are_shown_before_they_end() -> None:
    tiers = {"paid": {"priority": 1, "targets": {"ttft": "1s"}}}
    rig = Rig(tiers=tiers, limits=ONE_SEAT)
    await rig.ready()
    for name in "abc":
        await rig.offer(name, Heard())
    assert shown(rig, "queue_late_requests", 'tier="paid"') == 0.0
    rig.clock.now += 1.1
    assert shown(rig, "queue_late_requests", 'tier="paid"') == 2.0


async def test_what_a_tier_is_owed_of_its_share_is_shown() -> None:
    tiers = {"paid": {"priority": 1}, "free": {"priority": 0, "min_share": 0.5}}
    rig = Rig(tiers=tiers, limits=ONE_SEAT)
    await rig.ready()
    await rig.offer("a", Heard())
    await rig.offer("x", Heard(), tier="free", max_new_tokens=60)
    await rig.offer("b", Heard())
    await rig.report({"a": [1]}, finished=["a"])
    assert rig.wire.begun == ["a", "b"]
    owed = rig.batcher.scheduler.owed()["free"]
    assert owed > 0
    assert shown(rig, "owed_tokens", 'tier="free"') == owed
    assert shown(rig, "owed_tokens", 'tier="paid"') == 0.0


async def test_which_part_of_a_tier_is_turned_away_by_lot_is_shown() -> None:
    rig = Rig(tiers={"paid": {"priority": 1}, "free": {"priority": 0, "sheddable": True}})
    rig.batcher.admission.press({"paid": 0.25})
    assert shown(rig, "shed_ratio", 'tier="free"') == 0.25
    assert shown(rig, "shed_ratio", 'tier="paid"') == 0.0
    assert rig.desk.state()["tiers"]["free"]["shed_ratio"] == 0.25


def test_every_way_to_lose_a_place_has_a_series_before_it_happens(meter: Meter) -> None:
    seen = figures(meter.instruments.render())
    for outcome, reason in ENDS:
        assert (
            seen[
                f'headway_requests_ended_total{{outcome="{outcome}",reason="{reason}",tier="paid"}}'
            ]
            == 0.0
        )
    lost = {reason for outcome, reason in ENDS if outcome in (Outcome.REJECTED, Outcome.EXPIRED)}
    assert lost >= {"rate_limit_exceeded", "infeasible", "shed", "evicted", "late", "start_by"}
