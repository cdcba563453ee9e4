"""Fairness between the clients of a tier: the one that was served least goes next."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.errors import QueueFull
from controller.tiers import Tier
from tests.controller.stage import OFFLINE, PAID, Stage, model


def served(stage: Stage, rounds: int) -> list[str]:
    """Whose requests went, one at a time, each done before the next."""
    order = []
    for _ in range(rounds):
        stage.poll()
        (name,) = stage.ids()
        request = stage.batcher.book.requests[name]
        order.append(request.client)
        count = request.max_new_tokens
        stage.report(tokens=[(name, 0, [1] * count)], finished=[name])
    return order


def test_one_request_of_another_key_is_not_behind_a_heap_of_long_jobs() -> None:
    stage = Stage.build(size=1)
    for _ in range(1000):
        stage.arrive("free", new=500, client="greedy")
    stage.arrive("free", client="modest")
    assert served(stage, 2) == ["greedy", "modest"]


def test_in_a_full_queue_the_newest_of_the_key_with_most_makes_room() -> None:
    stage = Stage.build(size=1, tiers=(Tier("free", 1, max_queue_requests=4),))
    greedy = [stage.arrive("free", client="greedy") for _ in range(4)]
    stage.arrive("free", client="modest")
    assert [request.reason for request in greedy] == ["", "", "", "evicted"]
    stage.arrive("free", client="modest")
    # Two each now: nobody has more than its part.
    for client in ("greedy", "modest"):
        with pytest.raises(QueueFull):
            stage.arrive("free", client=client)


def test_keys_are_served_alike_by_tokens_and_not_by_requests() -> None:
    stage = Stage.build(size=1)
    for _ in range(200):
        stage.arrive("free", prompt=10, new=100, client="long")
        stage.arrive("free", prompt=10, new=10, client="short")
    # 10 + 2 * 100 against 10 + 2 * 10: seven short ones for a long one.
    assert Counter(served(stage, 160)) == {"short": 140, "long": 20}


def test_a_key_that_stayed_away_has_not_saved_up() -> None:
    stage = Stage.build(size=1)
    for _ in range(50):
        stage.arrive("free", client="a")
    served(stage, 30)
    for _ in range(50):
        stage.arrive("free", client="b")
    assert Counter(served(stage, 20)) == {"a": 10, "b": 10}


def test_what_a_request_did_not_use_is_not_charged() -> None:
    stage = Stage.build(size=1)
    for _ in range(100):
        stage.arrive("free", new=1000, client="cautious")
        stage.arrive("free", new=10, client="exact")
    order = []
    for _ in range(60):
        stage.poll()
        (name,) = stage.ids()
        order.append(stage.batcher.book.requests[name].client)
        stage.report(tokens=[(name, 0, [1] * 10)], finished=[name], reason="stop")
    assert Counter(order) == {"cautious": 30, "exact": 30}


def test_what_is_computed_again_after_a_preemption_is_not_the_client_s_doing() -> None:
    stage = Stage.build(size=1, tiers=(PAID, OFFLINE), model=model())
    victim = stage.arrive("offline", new=1000, client="victim")
    stage.poll()
    stage.report(tokens=[(victim.id, 0, [1] * 100)])
    stage.arrive("paid", new=1000)
    stage.poll(0.1)
    stage.acknowledge()
    assert stage.batcher.queues["offline"].lines.counters() == {"victim": 10 + 2 * 100}


def test_order_inside_a_key_is_the_tier_s() -> None:
    stage = Stage.build(size=1, tiers=(Tier("free", 1, order="shortest"),), model=model(a=1.0))
    long = stage.arrive("free", new=50)
    short = stage.arrive("free", new=5)
    assert stage.batcher.queues["free"].firsts(2) == [short, long]


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 50)), min_size=1, max_size=60))
def test_no_key_that_waits_is_ever_more_than_one_request_behind(
    asked: list[tuple[str, int]],
) -> None:
    """The bound of Sheng et al.: counters of keys that wait differ by one request at most."""
    stage = Stage.build(size=1)
    for client, new in asked:
        stage.arrive("free", new=new, client=client)
    lines = stage.batcher.queues["free"].lines
    most = max(10 + 2 * new for _, new in asked)
    waiting = Counter(client for client, _ in asked)
    for _ in range(len(asked)):
        (client,) = served(stage, 1)
        waiting[client] -= 1
        still = [count for key, count in lines.counters().items() if waiting[key]]
        if still:
            assert max(still) - min(still) <= most
