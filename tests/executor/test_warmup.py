"""The first step of each size may be fifty times slower: nobody pays for it, nor does it count."""

from __future__ import annotations

from executor.contract import Capacity
from executor.paged import PagedBatch
from executor.warmup import warm_up


class Cold(PagedBatch):
    """A batch whose first step of each size takes half a second, and any other 10 ms."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int]] = []

    def rounded(self, tokens: int) -> int:
        return tokens

    def probe(self, sequences: int, *, context: int, queries: int) -> float:
        shape = (sequences, context, queries)
        self.seen.append(shape)
        return 0.5 if self.seen.count(shape) == 1 else 0.01


def test_every_size_is_stepped_through_before_ready_and_its_first_step_is_not_measured() -> None:
    batch = Cold()
    capacity = Capacity(
        model="m",
        device="cpu",
        max_seqs=4,
        max_step_tokens=2048,
        kv_tokens=100_000,
        max_context_tokens=8192,
    )
    told: list[float | None] = []
    samples = warm_up(
        batch, capacity, sizes=(1, 2, 4, 8), progress=lambda stage, part: told.append(part)
    )
    assert [sample.duration_s for sample in samples] == [0.01] * 8
    assert {sample.sequences for sample in samples} == {1, 2, 4}
    # Eight would be more than there are seats.
    assert {shape[0] for shape in batch.seen} == {1, 2, 4}
    assert len(told) == len(samples)
