from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from controller.request import Outcome, Request
from controller.tiers import Targets, Tier
from controller.triage import TURNS, given_up
from executor.contract import Sampling
from tests.controller.stage import PAID, Stage, model

JOBS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=7)


def waiting(jobs: list[tuple[int, int]]) -> list[Request]:
    """Requests that take so long and whose first token is wanted by then, earliest due first."""
    made = []
    for place, (takes, wanted_by) in enumerate(jobs):
        request = Request(
            id=f"r{place}",
            tier="paid",
            client="c",
            prompt=[1],
            max_new_tokens=1,
            sampling=Sampling(),
            arrival=0.0,
            arrived_at=0.0,
        )
        request.first_s, request.due = takes / TURNS, wanted_by - takes / TURNS
        request.place = place
        made.append(request)
    return sorted(made, key=lambda one: (one.due + one.first_s, one.place))


def all_in_time(requests: tuple[Request, ...]) -> bool:
    at = 0.0
    for request in requests:
        at += TURNS * request.first_s
        if at > request.due + request.first_s:
            return False
    return True


@given(JOBS)
def test_as_many_begin_in_time_as_possibly_can(jobs: list[tuple[int, int]]) -> None:
    requests = waiting(jobs)
    lost = given_up(requests, 0.0, speed=1)
    kept = tuple(request for request in requests if request not in lost)
    assert all_in_time(kept)
    most = max(
        count
        for count in range(len(requests) + 1)
        if any(all_in_time(chosen) for chosen in itertools.combinations(requests, count))
    )
    assert len(kept) == most


def test_the_longest_is_given_up_for_those_behind_it() -> None:
    stage = Stage.build(size=1, tiers=(PAID,), model=model(a=0.01, d=0.001))
    stage.arrive("paid", new=1000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])])
    long = stage.arrive("paid", prompt=400)
    short = [stage.arrive("paid", prompt=50) for _ in range(5)]
    stage.poll(0.1)
    assert stage.batcher.queues["paid"].firsts(6) == [*short, long]
    # It is behind them, not lost: when they are gone it is its turn.
    for request in short:
        stage.batcher.cancel(request.id, 0.1, Outcome.CANCELLED, "x")
    assert stage.batcher.queues["paid"].head() is long


def test_where_a_tier_drops_the_late_it_is_dropped_only_when_its_time_has_come() -> None:
    tiers = (PAID, Tier("free", 1, Targets(ttft_s=1.0), late="drop"))
    stage = Stage.build(size=1, tiers=tiers, model=model(a=0.01, d=0.001))
    stage.arrive("paid", new=1000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])])
    long = stage.arrive("free", prompt=400)
    for _ in range(5):
        stage.arrive("free", prompt=50)
    stage.poll(0.1)
    assert stage.batcher.queues["free"].late(0.1) == 1
    stage.poll(0.58)
    assert long.outcome is None
    stage.poll(0.6)
    assert stage.outcome(long) == (Outcome.EXPIRED, "late")


def test_while_there_is_time_for_all_nobody_is_given_up() -> None:
    stage = Stage.build(size=1, tiers=(PAID,), model=model(a=0.01, d=0.001))
    stage.arrive("paid", new=1000)
    stage.poll(0.0)
    for size in (300, 50, 50):
        stage.arrive("paid", prompt=size)
    stage.poll(0.1)
    assert stage.batcher.queues["paid"].late(0.1) == 0


def test_one_that_has_begun_keeps_its_place() -> None:
    stage = Stage.build(size=1, tiers=(PAID,), model=model(a=0.01, d=0.001))
    begun = stage.arrive("paid", prompt=400, new=1000)
    stage.poll(0.0)
    stage.report(tokens=[("r0", 0, [1])])
    for _ in range(8):
        stage.arrive("paid", prompt=50)
    stage.lose(back_at=0.2)
    stage.poll(0.1)
    assert stage.batcher.queues["paid"].head() is begun
    assert not stage.batcher.queues["paid"].is_last(begun)
