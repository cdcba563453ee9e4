from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.request import Outcome
from controller.standing import LONGEST_PAUSE_S
from controller.tiers import Tier
from executor.contract import Report, Returned
from tests.controller.stage import Stage, model

PLAIN = (Tier("paid", 1),)


def two(*, size: int = 4) -> Stage:
    return Stage.build(executors=("sick", "well"), model=model(), size=size, tiers=PLAIN)


def fail(stage: Stage, executor: str = "sick") -> None:
    """The next step there fails: everybody is given back."""
    assert stage.ids(executor)
    stage.report(executor=executor, returned=stage.ids(executor))


def end_all(stage: Stage, executor: str = "well") -> None:
    names = stage.ids(executor)
    stage.report(executor=executor, tokens=[(name, 0, [1] * 10) for name in names], finished=names)


def sick_twice(stage: Stage) -> None:
    """Two failed steps in a row, at 0 and at 0.1 s; the other then did what had failed."""
    for at in (0.0, 0.1):
        stage.arrive()
        stage.poll(at)
        fail(stage)
    for _ in range(2):
        stage.poll()
        end_all(stage)


def test_who_failed_there_goes_elsewhere_and_others_are_tried() -> None:
    stage = two()
    first = stage.arrive()
    stage.poll(0.0)
    fail(stage)
    second = stage.arrive()
    stage.poll(0.1)
    assert (stage.ids("well"), stage.ids("sick")) == ([first.id], [second.id])


def test_while_it_is_in_doubt_who_failed_there_waits_for_the_other() -> None:
    stage = two(size=1)
    stage.arrive()
    busy = stage.arrive()
    stage.poll(0.0)
    assert stage.ids("well") == [busy.id]
    fail(stage)
    stage.poll(0.1)
    assert stage.ids("sick") == []
    end_all(stage)
    stage.poll(0.2)
    assert stage.ids("well") == ["r0"]


def test_after_two_failures_in_a_row_it_gets_nothing_for_a_second_then_one_request() -> None:
    stage = two()
    sick_twice(stage)
    for _ in range(6):
        stage.arrive()
    assert stage.batcher.standings.notes() == [
        "executor 'sick' failed 2 times in a row: others have its work, and it gets one request "
        "now and then"
    ]
    # Its pause counts from the second failure.
    assert stage.poll(0.2).wake_at == pytest.approx(1.1)
    assert (len(stage.ids("well")), stage.ids("sick")) == (4, [])
    stage.poll(1.1)
    assert stage.ids("sick") == ["r6"]
    stage.report(executor="sick", tokens=[("r6", 0, [1])])
    stage.poll(1.2)
    assert stage.ids("sick") == ["r6", "r7"]
    assert stage.batcher.standings.notes() == []


def test_its_pause_doubles_with_each_further_failure_up_to_a_minute() -> None:
    stage = two(size=1)
    sick_twice(stage)
    now, pauses = 0.1, []
    for _ in range(9):
        stage.arrive()
        stage.arrive()
        wake_at = stage.poll(now).wake_at
        assert wake_at is not None
        pauses.append(round(wake_at - now, 6))
        now = wake_at
        end_all(stage)
        stage.poll(now)
        # The other takes what waits; the probe is somebody who comes now.
        while not stage.ids("sick"):
            stage.arrive()
            stage.poll(now)
        fail(stage)
    assert pauses == [1, 2, 4, 8, 16, 32, *[LONGEST_PAUSE_S] * 3]


def test_one_token_is_enough_to_be_well_again() -> None:
    stage = two()
    for at in (0.0, 0.1, 0.2):
        stage.arrive()
        stage.poll(at)
        fail(stage)
        other = stage.arrive()
        stage.poll(at)
        assert stage.ids("sick") == [other.id]
        end_all(stage, "sick")
        end_all(stage)
    assert stage.batcher.standings.of["sick"].failures == 0


def test_the_only_one_is_never_taken_out() -> None:
    stage = Stage.build(model=model(), tiers=PLAIN)
    for at in (0.0, 0.1, 0.2, 0.3):
        stage.arrive()
        stage.poll(at)
        fail(stage, "e")
    stage.poll(0.4)
    assert stage.ids()


def test_it_is_used_while_the_other_is_away() -> None:
    stage = two()
    sick_twice(stage)
    stage.lose("well")
    for _ in range(3):
        stage.arrive()
    stage.poll(0.2)
    assert len(stage.ids("sick")) == 3


def test_a_process_that_is_back_proves_itself_with_one_request() -> None:
    stage = two(size=2)
    stage.arrive()
    stage.poll(0.0)
    stage.lose("sick")
    stage.poll(0.1)
    assert stage.ids("well") == ["r0"]
    end_all(stage)
    stage.now = 0.2
    stage.start("sick")
    for _ in range(4):
        stage.arrive()
    stage.poll(0.2)
    assert (len(stage.ids("well")), len(stage.ids("sick"))) == (2, 1)
    stage.report(executor="sick", tokens=[(stage.ids("sick")[0], 0, [1])])
    stage.poll(0.3)
    assert len(stage.ids("sick")) == 2


def test_a_request_that_can_never_run_says_nothing_about_the_executor() -> None:
    stage = two()
    for _ in range(3):
        stage.arrive()
        stage.poll()
        name = stage.ids("sick")[0]
        attempt = stage.running["sick"].pop(name).attempt
        back = [Returned(name, attempt, "error", fatal=True)]
        stage.batcher.on_report("sick", 1, Report(epoch=0, returned=back), stage.now)
    assert stage.batcher.standings.of["sick"].failures == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 4))
def test_beside_one_that_is_well_nobody_is_lost_to_one_that_always_fails(
    bursts: list[int], size: int
) -> None:
    stage, requests = two(size=size), []
    for burst in bursts:
        requests += [stage.arrive() for _ in range(burst)]
        stage.poll(stage.now + 0.3)
        if stage.ids("sick"):
            fail(stage)
        if stage.ids("well"):
            end_all(stage)
    for _ in range(200):
        stage.poll(stage.now + 0.3)
        if stage.ids("sick"):
            fail(stage)
        if stage.ids("well"):
            end_all(stage)
    assert [stage.outcome(one) for one in requests] == [(Outcome.FINISHED, "length")] * len(
        requests
    )
