"""How long a batch waits for company, by what was learnt of those who come."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.hold import HoldRule
from controller.plan import Why
from controller.request import Outcome
from controller.tiers import Targets, Tier
from policies.contract import Limits, StepEstimate
from tests.controller.stage import Stage, capacity

TIER = Tier("all", 0)
# 80 ms a batch, and 2 ms for each member.
MODEL = StepEstimate(0.080, 0.0, 0.002, 0.002, 95, 0.0, 0.0, 0.0, 100, True)
# Eight within 4.5 ms.
BURST = (0.0, 0.0005, 0.001, 0.0015, 0.0025, 0.003, 0.004, 0.0045)


def stage_of(
    *,
    wait_s: float = 0.050,
    size: int = 64,
    tier: Tier = TIER,
    hold: HoldRule = "join_gain",
    model: StepEstimate | None = MODEL,
) -> Stage:
    return Stage.build(
        tiers=(tier,),
        size=size,
        wait_s=wait_s,
        ready=capacity(runs_to_completion=True),
        hold=hold,
        model=model,
    )


def play(stage: Stage, arrivals: Iterable[float], *, until: float = 0.0) -> list[tuple[int, float]]:
    """Let requests come at these instants, and batches take what the model says, to the end of all.

    Who is answered before `until` comes again 3 ms later, one every half millisecond. Answers the
    size and the instant of each dispatch.
    """
    coming = sorted(arrivals)
    found: list[tuple[int, float]] = []
    end = wake = math.inf
    while True:
        now = min(coming[0] if coming else math.inf, end, wake)
        if now == math.inf:
            return found
        stage.now = now
        if now == end:
            members = stage.ids()
            stage.finish(*members)
            if now < until:
                back = [now + 0.003 + 0.0005 * index for index in range(len(members))]
                coming = sorted([*coming, *back])
            end = math.inf
        while coming and coming[0] <= now:
            coming.pop(0)
            stage.arrive("all")
        plan = stage.poll()
        wake = math.inf if plan.wake_at is None else plan.wake_at
        for dispatch in plan.dispatches:
            found.append((dispatch.size, now))
            end = now + MODEL.a + MODEL.c * dispatch.size


def bursts(count: int, *, every_s: float = 1.0) -> list[float]:
    return [every_s * (1 + index) + offset for index in range(count) for offset in BURST]


class TestUrgency:
    """Whatever the rule, nobody is held beyond what he can bear."""

    def test_a_hold_ends_before_the_most_urgent_has_to_begin(self) -> None:
        stage = stage_of(tier=Tier("all", 0, Targets(ttft_s=0.2)), wait_s=10.0, hold="fixed")
        request = stage.arrive("all")
        assert request.due == pytest.approx(0.118)
        assert stage.poll().wake_at == pytest.approx(0.113)
        stage.poll(0.113)
        assert (stage.dispatches[-1].why, stage.dispatches[-1].held_s) == (Why.URGENT, 0.113)

    def test_a_target_that_cannot_be_met_hurries_nobody(self) -> None:
        stage = stage_of(tier=Tier("all", 0, Targets(ttft_s=0.05)), wait_s=10.0, hold="fixed")
        stage.arrive("all")
        assert stage.poll().wake_at == 10.0

    def test_who_would_expire_meanwhile_is_not_held_at_all(self) -> None:
        stage = stage_of(wait_s=0.1, hold="fixed")
        request = stage.arrive("all", start_by=0.09)
        stage.poll()
        assert stage.ids() == [request.id]
        assert stage.dispatches[-1].why is Why.URGENT
        stage.finish(request.id)
        stage.poll(0.09)
        assert stage.outcome(request)[0] is Outcome.FINISHED

    def test_one_who_cannot_wait_ends_the_hold_of_the_others(self) -> None:
        stage = stage_of(wait_s=0.1, hold="fixed")
        stage.arrive("all")
        assert stage.poll().wake_at == 0.1
        stage.now = 0.02
        stage.arrive("all", start_by=0.05)
        stage.poll()
        assert (stage.dispatches[-1].size, stage.dispatches[-1].why) == (2, Why.URGENT)
        assert stage.dispatches[-1].held_s == 0.02


class TestBursts:
    def test_the_first_of_a_burst_waits_for_the_rest_once_two_bursts_were_seen(self) -> None:
        stage = stage_of()
        sizes = [size for size, _ in play(stage, bursts(5))]
        assert sizes == [1, 7, 1, 7, 8, 8, 8]
        # Company was seen until the point at 5 ms, and none after it.
        last = stage.dispatches[-1]
        assert (last.why, round(last.held_s, 9)) == (Why.NO_GAIN, 0.005)

    def test_nothing_has_to_be_held_to_be_learnt(self) -> None:
        stage = stage_of(wait_s=0.0)
        assert [size for size, _ in play(stage, bursts(5))] == [1, 7] * 5
        stage.batcher.set_limits("default", Limits(64, 8192, 0.050), 1)
        assert [size for size, _ in play(stage, [6 + offset for offset in BURST])] == [8]

    def test_a_single_request_long_after_the_bursts_goes_at_once(self) -> None:
        stage = stage_of()
        play(stage, bursts(20))
        assert play(stage, [30.0]) == [(1, 30.0)]
        assert (stage.dispatches[-1].why, stage.dispatches[-1].held_s) == (Why.NO_GAIN, 0.0)

    def test_after_the_first_that_stayed_alone_nobody_waits_any_more(self) -> None:
        stage = stage_of()
        play(stage, bursts(20))
        play(stage, [21.0, 22.0, 23.0, 24.0])
        held = [dispatch.held_s for dispatch in stage.dispatches[-4:]]
        assert held == [pytest.approx(0.005), 0.0, 0.0, 0.0]

    def test_one_burst_delays_nobody_after_it(self) -> None:
        stage = stage_of()
        lone = [float(second) for second in range(2, 30)]
        play(stage, [1 + offset for offset in BURST] + lone)
        assert [dispatch.held_s for dispatch in stage.dispatches] == [0.0] * 30

    def test_requests_that_come_one_by_one_are_never_held(self) -> None:
        stage = stage_of()
        play(stage, [0.35 * index for index in range(200)])
        assert {dispatch.held_s for dispatch in stage.dispatches} == {0.0}

    def test_no_hold_is_longer_than_allowed(self) -> None:
        stage = stage_of(wait_s=0.002)
        play(stage, bursts(5))
        last = stage.dispatches[-2]
        assert (last.size, last.why, round(last.held_s, 9)) == (4, Why.TIMEOUT, 0.002)

    def test_a_full_batch_waits_for_nobody(self) -> None:
        stage = stage_of(size=4)
        play(stage, bursts(5))
        held = [(dispatch.size, dispatch.why) for dispatch in stage.dispatches[-2:]]
        assert held == [(4, Why.FULL), (4, Why.FULL)]
        assert stage.dispatches[-2].held_s == pytest.approx(0.0015)

    def test_without_a_model_nothing_is_held(self) -> None:
        stage = stage_of(model=None)
        assert [size for size, _ in play(stage, bursts(5))] == [1, 7] * 5


class TestContinuous:
    """25 ms a step; a token of a prompt takes 0.1 ms more."""

    def stage(self, *, before: int) -> Stage:
        """A stage on which so many bursts were seen, each member gone before the next burst."""
        model = dataclasses.replace(MODEL, a=0.025, c=0.0, c_above=0.0, d=0.0001)
        stage = Stage.build(tiers=(TIER,), size=64, wait_s=0.050, hold="join_gain", model=model)
        for second in range(before):
            for offset in BURST:
                stage.now = 1.0 + second + offset
                stage.arrive("all")
                stage.poll()
            stage.now = 1.9 + second
            stage.poll()
            stage.finish(*stage.ids())
            stage.poll()
        stage.now = 1.0 + before
        return stage

    def test_short_prompts_wait_to_be_prefilled_together(self) -> None:
        stage = self.stage(before=5)
        stage.arrive("all", prompt=10)
        assert stage.poll().wake_at == pytest.approx(6.005)

    def test_long_prompts_would_make_each_other_wait(self) -> None:
        stage = self.stage(before=5)
        stage.arrive("all", prompt=400)
        stage.poll()
        assert stage.dispatches[-1].why is Why.NO_GAIN
        assert stage.running["e"]


class TestComingBack:
    """Clients who come again soon after their answer."""

    def test_a_batch_waits_for_the_members_of_the_one_before(self) -> None:
        stage = stage_of()
        sizes = [size for size, _ in play(stage, [0.0, *[0.01] * 5], until=0.9)]
        assert sizes == [1, 5, 1, 6, 5, 6, 6, 6, 6, 6]
        # Complete, it goes: all are there 5.5 ms after the last batch, the first after 3 ms.
        last = stage.dispatches[-1]
        assert (last.why, round(last.held_s, 9)) == (Why.NO_GAIN, 0.0025)

    def test_a_single_client_is_never_held(self) -> None:
        stage = stage_of()
        play(stage, [0.0], until=10.0)
        assert len(stage.dispatches) > 100
        assert {dispatch.held_s for dispatch in stage.dispatches} == {0.0}


@given(
    st.lists(st.floats(0.0, 0.3), min_size=1, max_size=60),
    st.sampled_from([0.0, 0.001, 0.010, 0.050]),
    st.integers(2, 16),
)
def test_nobody_is_held_longer_than_w_and_no_batch_is_larger_than_b(
    gaps: list[float], wait_s: float, size: int
) -> None:
    stage = stage_of(wait_s=wait_s, size=size)
    at, times = 0.0, []
    for gap in gaps:
        at += gap
        times.append(at)
    sizes = [size for size, _ in play(stage, times)]
    assert sum(sizes) == len(times)
    assert max(sizes) <= size
    assert all(dispatch.held_s <= wait_s + 1e-9 for dispatch in stage.dispatches)
    assert all(ended.request.hold_s <= wait_s + 1e-9 for ended in stage.ended)
