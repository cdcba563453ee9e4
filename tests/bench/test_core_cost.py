from __future__ import annotations

import pytest

from bench.core_cost import VARIANTS, Bench, Cost, Variant


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_measuring_leaves_the_queue_and_the_seats_as_they_were(variant: Variant) -> None:
    bench = Bench(variant, queued=300)
    cost = bench.cost(10)
    assert bench.batcher.queued() == 300
    assert bench.batcher.running() == variant.running + 16
    assert min(cost.reserve_us, cost.offer_us, cost.both_us, cost.poll_us) > 0


def test_both_bounds_have_to_be_kept() -> None:
    assert Cost(9.0, 4.9, 13.0, 149.0).holds()
    assert not Cost(1.0, 5.0, 6.0, 149.0).holds()
    assert not Cost(1.0, 4.9, 6.0, 150.0).holds()
