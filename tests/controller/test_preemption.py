from __future__ import annotations

from dataclasses import replace

import pytest

from controller.request import Outcome, Request
from controller.tiers import Targets, Tier
from executor.contract import StepSample
from policies.contract import Limits
from tests.controller.stage import FREE, OFFLINE, PAID, Stage, capacity, model


def full_of(tier: str, count: int, **more: object) -> tuple[Stage, list[Request]]:
    """A stage whose seats all are taken by long work of one tier, a token of each out already."""
    options = {"model": model(), "size": count, **more}
    stage = Stage.build(**options)  # type: ignore[arg-type]  # options of Stage.build by name
    requests = [stage.arrive(tier, new=1000) for _ in range(count)]
    stage.poll(0.0)
    stage.report(tokens=[(request.id, 0, [7]) for request in requests])
    return stage, requests


def asked_back(stage: Stage) -> list[str]:
    return [key.request_id for key in stage.released["e"]]


def test_a_paid_request_at_a_full_batch_of_offline_work_is_the_next_dispatched() -> None:
    stage, offline = full_of("offline", 32)
    paid = stage.arrive("paid")
    stage.poll(0.1)
    (victim,) = asked_back(stage)
    assert paid.id not in stage.ids()
    stage.acknowledge()
    (dispatched,) = stage.poll().work["e"].submit
    assert dispatched.request_id == paid.id
    assert [r.id for r in offline if r.preemptions] == [victim]
    assert stage.outcome_counts() == {}


def test_it_waits_for_a_seat_that_becomes_free_in_time() -> None:
    stage = Stage.build(model=model(), size=2)
    short, _ = stage.arrive("offline", new=10), stage.arrive("offline", new=1000)
    stage.poll(0.0)
    paid = stage.arrive("paid")
    plan = stage.poll(0.0)
    # 10 tokens of 20 ms are 0.2 s; the paid one has to begin by 0.98 s.
    assert asked_back(stage) == []
    # Half of what is left, less the two steps of the handover: 0.98 - 0.04 - 0.2 / 0.5.
    assert plan.wake_at == pytest.approx(0.54)
    stage.report(tokens=[(short.id, 0, [1] * 10)], finished=[short.id])
    stage.poll(0.2)
    assert paid.id in stage.ids()


def test_a_seat_that_did_not_become_free_in_time_after_all_is_taken() -> None:
    stage = Stage.build(model=model(), size=1)
    stage.arrive("offline", new=10)
    stage.poll(0.0)
    stage.arrive("paid")
    assert stage.poll(0.0).wake_at == pytest.approx(0.54)
    stage.poll(0.55)
    assert asked_back(stage) == ["r0"]


def test_while_nothing_is_known_of_steps_nobody_is_made_to_wait() -> None:
    stage, _ = full_of("offline", 4, model=None)
    stage.arrive("paid")
    stage.poll(0.1)
    assert len(asked_back(stage)) == 1


def test_as_many_give_way_as_are_needed_and_no_more() -> None:
    stage, _ = full_of("offline", 8)
    for _ in range(3):
        stage.arrive("paid")
    stage.poll(0.1)
    assert len(asked_back(stage)) == 3
    stage.poll(0.11)
    assert len(asked_back(stage)) == 3


def test_after_the_limit_has_fallen_so_many_give_way_that_one_more_has_room() -> None:
    stage, _ = full_of("offline", 8)
    stage.batcher.set_limits("default", Limits(5, 1024, 0.0), 1)
    paid = [stage.arrive("paid") for _ in range(2)]
    stage.poll(0.1)
    # Three are too many as it is.
    assert len(asked_back(stage)) == 5
    stage.acknowledge()
    assert {one.request_id for one in stage.poll().work["e"].submit} == {one.id for one in paid}


def test_nobody_gives_way_where_all_who_could_would_not_make_room() -> None:
    stage = Stage.build(model=model(), size=6)
    requests = [stage.arrive("paid", new=1000) for _ in range(5)]
    requests.append(stage.arrive("offline", new=1000))
    stage.poll(0.0)
    stage.report(tokens=[(request.id, 0, [7]) for request in requests])
    stage.batcher.set_limits("default", Limits(4, 1024, 0.0), 1)
    stage.arrive("paid")
    stage.poll(0.1)
    assert asked_back(stage) == []


@pytest.mark.parametrize("tier", ["paid", "free"])
def test_equal_priority_never_preempts_equal(tier: str) -> None:
    stage, _ = full_of(tier, 4)
    stage.arrive(tier)
    for now in (1.0, 1.5, 2.0, 9.0):
        stage.poll(now)
    assert asked_back(stage) == []


def test_the_lowest_tier_gives_way_first_and_in_it_who_loses_least() -> None:
    stage = Stage.build(model=model(), size=4)
    free = stage.arrive("free", prompt=5, new=1000)
    long = stage.arrive("offline", prompt=500, new=1000)
    short = stage.arrive("offline", prompt=50, new=1000)
    paid = stage.arrive("paid", new=1000)
    stage.poll(0.0)
    stage.report(tokens=[(r.id, 0, [1]) for r in (free, long, short, paid)])
    for _ in range(4):
        stage.arrive("paid")
    stage.poll(0.1)
    assert asked_back(stage) == [short.id, long.id, free.id]


def test_what_was_preempted_keeps_its_arrival_its_tokens_and_its_place() -> None:
    stage, (victim,) = full_of("offline", 1)
    later = [stage.arrive("offline") for _ in range(2)]
    paid = stage.arrive("paid")
    stage.poll(0.1)
    # A token that was on its way counts.
    stage.report(tokens=[(victim.id, 1, [8])])
    stage.acknowledge()
    stage.poll()
    assert (victim.arrival, victim.tokens, victim.faults) == (0.0, [7, 8], 0)
    stage.report(tokens=[(paid.id, 0, [1] * 10)], finished=[paid.id])
    (again,) = stage.poll(2.0).work["e"].submit
    assert (again.request_id, again.attempt, again.prompt_length) == (victim.id, 2, 10)
    assert again.tokens == [1] * 10 + [7, 8]
    assert again.max_new_tokens == 998
    assert [one.attempt for one in later] == [0, 0]


def test_an_end_that_races_the_preemption_is_the_end() -> None:
    stage, (victim,) = full_of("offline", 1)
    paid = stage.arrive("paid")
    stage.poll(0.1)
    stage.report(tokens=[(victim.id, 1, [8])], finished=[victim.id], reason="stop")
    stage.poll()
    assert stage.outcome(victim) == (Outcome.FINISHED, "stop")
    assert stage.ids() == [paid.id]
    # The executor acknowledges what is over: nothing comes of it.
    stage.acknowledge()
    stage.poll()
    assert stage.ids() == [paid.id]


def test_one_that_is_cancelled_on_its_way_back_ends_and_is_released_once() -> None:
    stage, (victim,) = full_of("offline", 1)
    paid = stage.arrive("paid")
    stage.poll(0.1)
    stage.batcher.cancel(victim.id, 0.1, Outcome.CANCELLED, "disconnect")
    stage.poll()
    assert asked_back(stage) == [victim.id]
    stage.acknowledge()
    stage.poll()
    assert stage.outcome(victim) == (Outcome.CANCELLED, "disconnect")
    assert stage.ids() == [paid.id]


def test_a_victim_gives_way_three_times_and_not_before_it_has_settled() -> None:
    stage, (victim,) = full_of("offline", 1)
    has = 1
    for turn in range(4):
        stage.now = now = 10.0 * (turn + 1)
        stage.arrive("paid", name=f"p{turn}")
        stage.poll(now)
        if turn:
            # It has 31 tokens since it came back: one more before it may be sent away again.
            assert asked_back(stage) == []
            stage.report(tokens=[(victim.id, has, [7])])
            has += 1
            stage.poll(now + 0.3)
        if turn == 3:
            break
        assert asked_back(stage) == [victim.id]
        stage.acknowledge()
        stage.poll()
        stage.report(tokens=[(f"p{turn}", 0, [1])], finished=[f"p{turn}"])
        stage.poll()
        stage.report(tokens=[(victim.id, has, [7] * 31)])
        has += 31
    assert asked_back(stage) == []
    assert victim.preemptions == 3


def test_a_tier_keeps_its_share_of_the_seats() -> None:
    tiers = (PAID, FREE, replace(OFFLINE, min_share=0.25))
    stage, _ = full_of("offline", 8, tiers=tiers)
    for _ in range(8):
        stage.arrive("paid")
    stage.poll(0.1)
    assert len(asked_back(stage)) == 6


def test_for_memory_the_fewest_give_way_that_make_room() -> None:
    stage = Stage.build(model=model(), size=8, ready=capacity(kv_tokens=1000))
    sizes = (100, 150, 300, 300)
    offline = [stage.arrive("offline", prompt=size, new=20) for size in sizes]
    stage.poll(0.0)
    stage.report(tokens=[(r.id, 0, [1]) for r in offline])
    # 19 more steps, 0.38 s: too long for one that has to begin by 0.2 s.
    stage.batcher.queues["paid"].tier = replace(PAID, targets=Targets(ttft_s=0.22))
    paid = stage.arrive("paid", prompt=250, new=20)
    stage.poll(0.1)
    assert asked_back(stage) == [offline[0].id, offline[1].id]
    stage.acknowledge()
    stage.poll()
    assert paid.id in stage.ids()


def test_where_even_all_of_them_would_not_make_room_nobody_gives_way() -> None:
    stage = Stage.build(model=model(), size=8, ready=capacity(kv_tokens=1000))
    stage.arrive("paid", prompt=600, new=1, name="big")
    stage.arrive("offline", prompt=100, new=200)
    stage.poll(0.0)
    stage.arrive("paid", prompt=500, new=100)
    stage.poll(0.9)
    assert asked_back(stage) == []


def test_lower_tiers_give_way_where_the_step_would_break_the_pace_of_a_higher_one() -> None:
    # 20 ms and 2 ms a row: 41 rows are more than 100 ms.
    stage, offline = full_of("offline", 48, model=model(c=0.002), size=64)
    stage.arrive("paid", new=100)
    stage.poll(0.0)
    # 49 rows are 118 ms; 40 are 100 ms.
    assert len(asked_back(stage)) == 9
    stage.acknowledge()
    stage.poll()
    # Nobody comes back who would bring it there again.
    assert len(stage.ids()) == 40
    assert sum(r.preemptions for r in offline) == 9


@pytest.mark.parametrize(
    "kind",
    [
        capacity(can_preempt=False),
        capacity(can_resume=False),
        capacity(runs_to_completion=True),
    ],
    ids=["cannot-preempt", "cannot-resume", "runs-to-completion"],
)
def test_an_executor_that_cannot_is_not_asked_to(kind: object) -> None:
    stage, _ = full_of("offline", 4, ready=kind)
    stage.arrive("paid")
    stage.poll(0.1)
    assert asked_back(stage) == []


def test_who_is_late_already_takes_nobody_s_seat() -> None:
    stage, _ = full_of("offline", 4)
    stage.arrive("paid")
    stage.poll(1.5)
    assert asked_back(stage) == []


def test_offline_work_backs_off_within_a_second_of_a_paid_burst() -> None:
    """In virtual time: steps of 50 ms, each acknowledging what it was told before."""
    stage, offline = full_of("offline", 16, model=model(a=0.05))
    has = dict.fromkeys([r.id for r in offline], 1)
    burst = [stage.arrive("paid", new=200) for _ in range(16)]
    now = 0.0
    while any(request.times.dispatched is None for request in burst):
        stage.poll(now)
        keys, stage.released["e"] = stage.released["e"], []
        going = [name for name in stage.ids() if name not in {key.request_id for key in keys}]
        now += 0.05
        stage.now = now
        for name in going:
            has.setdefault(name, 0)
        stage.report(
            tokens=[(name, has[name], [7]) for name in going],
            released=keys,
            sample=StepSample(0.05, len(going), len(going), 0, 0, 0),
        )
        for name in going:
            has[name] += 1
        assert now < 1.0
    # The step under way, then the one that lets them go.
    assert now <= 0.1
    # When the burst is over, the offline work goes on where it was.
    stage.report(tokens=[(r.id, 1, [1]) for r in burst if len(r.tokens)], finished=[])
    for request in burst:
        stage.batcher.cancel(request.id, now, Outcome.CANCELLED, "disconnect")
    stage.poll(now)
    stage.acknowledge()
    again = stage.poll(now).work["e"].submit
    assert sorted(s.request_id for s in again) == sorted(r.id for r in offline)
    assert {len(s.tokens) for s in again} == {10 + 1}


def test_tiers_without_a_time_to_first_token_send_nobody_away() -> None:
    tiers = (Tier("paid", 2), OFFLINE)
    stage, _ = full_of("offline", 4, tiers=tiers)
    stage.arrive("paid")
    stage.poll(100.0)
    assert asked_back(stage) == []
