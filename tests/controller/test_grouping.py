from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.grouping import padding
from controller.tiers import Targets, Tier
from tests.controller.stage import Stage, capacity, model

WHOLE = capacity(runs_to_completion=True, splits_prefill=False)
PLAIN = (Tier("paid", 1),)


def stage_of(lengths: list[int], *, size: int, **options: object) -> Stage:
    stage = Stage.build(size=size, ready=WHOLE, tiers=PLAIN, **options)  # type: ignore[arg-type]  # by name
    for index, length in enumerate(lengths):
        stage.now = index * 1e-3
        stage.arrive(prompt=5, new=length, name=f"{length}/{index}")
    return stage


def batch(stage: Stage) -> list[int]:
    """The lengths that went together; they are done at once."""
    stage.poll()
    names = stage.ids()
    stage.finish(*names)
    return sorted(int(name.split("/")[0]) for name in names)


def test_mates_are_of_about_the_same_length() -> None:
    stage = stage_of([100, 10, 10, 100, 10, 100], size=3)
    assert batch(stage) == [100, 100, 100]
    assert batch(stage) == [10, 10, 10]
    assert [dispatch.padding for dispatch in stage.dispatches] == [0.0, 0.0]


def test_the_first_is_whoever_is_next_so_that_the_odd_one_goes() -> None:
    stage = stage_of([10, 500] + [10] * 20, size=4)
    assert batch(stage) == [10, 10, 10, 10]
    assert batch(stage) == [10, 10, 10, 500]
    assert stage.dispatches[1].padding == pytest.approx(1 - 530 / 2000)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=60), st.integers(1, 8))
def test_nobody_is_passed_over_for_longer_than_those_before_it(
    lengths: list[int], size: int
) -> None:
    stage = stage_of(lengths, size=size)
    order: list[str] = []
    for turn in range(len(lengths)):
        if not stage.batcher.queued():
            break
        stage.poll()
        names = stage.ids()
        # The oldest that waits is always among them: place p goes in the first p + 1 batches.
        assert min(names, key=lambda n: int(n.split("/")[1])) not in order
        oldest = min(
            (int(r.id.split("/")[1]) for r in stage.batcher.book.requests.values()), default=0
        )
        assert oldest in [int(name.split("/")[1]) for name in names]
        assert oldest >= turn
        order += names
        stage.finish(*names)
    assert len(order) == len(lengths)


def test_whoever_could_not_wait_for_the_next_batch_goes_with_this_one() -> None:
    tiers = (Tier("paid", 1, Targets(ttft_s=5.0)),)
    stage = Stage.build(size=2, ready=WHOLE, tiers=tiers, model=model(a=0.1))
    stage.arrive(new=50, name="50/0")
    stage.arrive(new=2, name="2/1")
    stage.arrive(new=50, name="50/2")
    stage.poll()
    # The batch lasts 5.1 s: the short one would be late after it, whoever is more alike.
    assert stage.ids() == ["50/0", "2/1"]


def test_where_all_can_go_nobody_is_chosen() -> None:
    stage = stage_of([100, 10, 50], size=4)
    assert batch(stage) == [10, 50, 100]


def test_padding_is_the_part_of_the_rows_beyond_their_ends() -> None:
    assert padding([10, 10]) == 0.0
    assert padding([10, 5, 5, 0]) == 0.5
    assert padding([0]) == 0.0


def test_batches_that_do_not_run_to_completion_have_no_padding() -> None:
    stage = Stage.build()
    stage.arrive()
    stage.poll()
    assert [dispatch.padding for dispatch in stage.dispatches] == [None]
