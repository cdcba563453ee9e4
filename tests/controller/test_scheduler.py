from __future__ import annotations

from collections import Counter

from controller.tiers import Tier
from tests.controller.stage import Stage


def serve(stage: Stage, rounds: int, *, keep: dict[str, int]) -> Counter[str]:
    """Keep `keep` requests of each tier waiting, run one at a time; who was served how often."""
    served: Counter[str] = Counter()
    for _ in range(rounds):
        for tier, depth in keep.items():
            while len(stage.batcher.queues[tier]) < depth:
                stage.arrive(tier)
        stage.poll(stage.now + 0.01)
        (name,) = stage.ids()
        served[stage.batcher.book.requests[name].tier] += 1
        stage.report(tokens=[(name, 0, [1] * 10)], finished=[name])
    return served


def test_the_highest_tier_goes_first() -> None:
    stage = Stage.build(size=1)
    for tier in ("offline", "free", "paid", "paid"):
        stage.arrive(tier)
    order = []
    for _ in range(4):
        stage.poll(0.0)
        order += stage.ids()
        stage.finish(stage.ids()[0])
    assert order == ["r2", "r3", "r1", "r0"]


def test_a_guaranteed_share_is_kept_under_a_flood_of_the_highest_tier() -> None:
    tiers = (Tier("paid", 2), Tier("free", 1, min_share=0.2), Tier("offline", 0, min_share=0.1))
    stage = Stage.build(size=1, tiers=tiers)
    served = serve(stage, 1000, keep={"paid": 3, "free": 3, "offline": 3})
    # A share is earned before it is spent, so each is one request behind.
    assert served == {"paid": 702, "free": 199, "offline": 99}


def test_a_share_that_nobody_wants_is_lent_and_not_saved_up() -> None:
    tiers = (Tier("paid", 2), Tier("free", 1, min_share=0.5))
    stage = Stage.build(size=1, tiers=tiers)
    assert serve(stage, 100, keep={"paid": 3}) == {"paid": 100}
    assert serve(stage, 100, keep={"paid": 3, "free": 3}) == {"paid": 51, "free": 49}


def test_what_a_tier_took_while_nobody_else_wanted_it_costs_it_nothing_later() -> None:
    tiers = (Tier("paid", 2), Tier("free", 1, min_share=0.5))
    stage = Stage.build(size=1, tiers=tiers)
    assert serve(stage, 1000, keep={"free": 3}) == {"free": 1000}
    assert serve(stage, 100, keep={"paid": 3, "free": 3}) == {"paid": 51, "free": 49}


def test_a_share_counts_what_was_used_and_not_what_was_asked_for() -> None:
    tiers = (Tier("paid", 2), Tier("free", 1, min_share=0.5))
    stage = Stage.build(size=1, tiers=tiers, ready=None)
    used: Counter[str] = Counter()
    for _ in range(400):
        # Free asks for 90 tokens and stops after 10, paid uses all it asks for.
        while len(stage.batcher.queues["free"]) < 2:
            stage.arrive("free", new=90)
        while len(stage.batcher.queues["paid"]) < 2:
            stage.arrive("paid", new=10)
        stage.poll(stage.now + 0.01)
        (name,) = stage.ids()
        used[stage.batcher.book.requests[name].tier] += 20
        stage.report(tokens=[(name, 0, [1] * 10)], finished=[name])
    assert abs(used["free"] / used.total() - 0.5) < 0.02


def test_a_tier_that_waited_beyond_its_bound_gets_one_seat_and_then_waits_again() -> None:
    tiers = (Tier("paid", 2), Tier("free", 1, max_starvation_s=30.0))
    stage = Stage.build(size=1, tiers=tiers)
    stage.now = 100.0
    stage.arrive("free")
    stage.arrive("free")
    turns = []
    for second in range(100, 171, 10):
        stage.arrive("paid")
        stage.poll(float(second))
        (name,) = stage.ids()
        turns.append((second, stage.batcher.book.requests[name].tier))
        stage.finish(name)
    assert [second for second, tier in turns if tier == "free"] == [130, 160]


def test_a_running_tier_that_gets_tokens_is_not_starved() -> None:
    tiers = (Tier("paid", 2), Tier("free", 1, max_starvation_s=30.0))
    stage = Stage.build(size=2, tiers=tiers)
    stage.arrive("free", new=1000)
    stage.poll(0.0)
    for _ in range(3):
        stage.arrive("free")
    for second in range(1, 100):
        stage.arrive("paid")
        stage.poll(float(second))
        paid = [name for name in stage.ids() if name != "r0"]
        assert [stage.batcher.book.requests[name].tier for name in paid] == ["paid"] or second == 1
        stage.report(tokens=[("r0", second - 1, [1])], finished=paid)
