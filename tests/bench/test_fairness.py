from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.case import Case, Contender, play
from bench.fairness import among_keys, fair_parts, jain
from bench.outcome import Outcome
from bench.presets import executor_of
from bench.table import table
from bench.workloads import FREE_KEYS, WORKLOADS, Scene
from controller.config import Config
from tests.bench.test_outcome import fate, outcome

E3 = executor_of("E3")


def played(contender: str) -> Outcome:
    made = Contender.parse(contender)
    return play(Case(Config(), {"main": E3}, "greedy-key", made, seed=1))


def test_jains_index_is_one_for_equals_and_a_part_of_one_for_all_to_one() -> None:
    assert jain([3.0, 3.0, 3.0]) == 1.0
    assert jain([5.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([0.0, 0.0]) is None


def test_a_fair_part_is_what_is_wanted_or_what_the_others_leave_in_equal_parts() -> None:
    assert fair_parts(10.0, {0: 100.0, 1: 2.0, 2: 50.0}) == {1: 2.0, 2: 4.0, 0: 4.0}
    assert fair_parts(10.0, {0: 3.0, 1: 2.0}) == {0: 3.0, 1: 2.0}


@given(st.dictionaries(st.integers(0, 9), st.floats(0, 1e6), min_size=1), st.floats(0, 1e7))
def test_fair_parts_are_within_what_is_wanted_and_share_all_that_is_there(
    wanted: dict[int, float], total: float
) -> None:
    parts = fair_parts(total, wanted)
    assert set(parts) == set(wanted)
    assert all(0 <= part <= wanted[key] for key, part in parts.items())
    assert sum(parts.values()) == pytest.approx(min(total, sum(wanted.values())))


def test_who_asks_for_less_and_gets_it_is_served_as_fairly_as_who_asks_for_more() -> None:
    assert among_keys({0: 2.0, 1: 8.0}, {0: 2.0, 1: 100.0}) == 1.0
    # Both get a tenth of what they want; fair would have been 10 and 90: a tenth, and 1.1 of that.
    assert among_keys({0: 1.0, 1: 99.0}, {0: 10.0, 1: 990.0}) == pytest.approx(1.2**2 / 2.44)
    assert among_keys({}, {0: 10.0}) is None


def test_a_tiers_keys_are_told_apart_by_what_met_its_targets() -> None:
    alone = outcome(fate(), fate()).tiers["paid"]
    assert (alone.keys, alone.key_fairness) == (1, 1.0)
    # Each wants ten prompt tokens; those of the second key come too late.
    made = outcome(fate(key=1), fate(key=2, first=2.0, last=2.5)).tiers["paid"]
    assert (made.keys, made.key_fairness) == (2, 0.5)


def test_a_greedy_key_is_one_of_nine_and_asks_for_most() -> None:
    calm, greedy = (WORKLOADS[n].make(Scene(E3, 0.5, 1)) for n in ("steady", "greedy-key"))
    free = [arrival for arrival in greedy.arrivals if arrival.tier == "free"]
    wanted = [sum(a.prompt + a.output for a in free if a.key == key) for key in range(9)]
    assert wanted[FREE_KEYS] > sum(wanted[:FREE_KEYS])
    assert min(wanted) > 0
    assert {arrival.key for arrival in greedy.arrivals if arrival.tier != "free"} == {0}
    mine = [arrival for arrival in free if arrival.key == FREE_KEYS]
    assert greedy.changes == (120.0, 480.0)
    assert 120.0 <= mine[0].time_s < mine[-1].time_s < 480.0
    others = {(a.time_s, a.prompt, a.output) for a in greedy.arrivals if a not in mine}
    assert others == {(a.time_s, a.prompt, a.output) for a in calm.arrivals}


def test_our_queues_keep_a_greedy_key_to_its_part_and_one_queue_for_all_does_not() -> None:
    fifo, ours = played("static:B=32,T=1024,queue=fifo"), played("static:B=32,T=1024")
    unfair, fair = (one.tiers["free"].key_fairness for one in (fifo, ours))
    assert unfair is not None
    assert fair is not None
    assert unfair < 0.9 < 0.95 < fair
    text = table({"fifo": [fifo], "ours": [ours]})
    # The other tiers have one key each, and nothing to tell.
    assert text.count("fairness over keys") == 1
