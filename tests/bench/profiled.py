"""What a profile says it is of, where a test made it itself, and steps for one."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from bench.profile_report import About
from executor.contract import Capacity, StepSample

CAPACITY = Capacity(
    model="it's tiny",
    device="cpu",
    max_seqs=16,
    max_step_tokens=512,
    kv_tokens=4096,
    max_context_tokens=1024,
)
ABOUT = About("main", "continuous", CAPACITY, datetime(2026, 1, 2, 3, 4, tzinfo=UTC), 6.0)


def decode(rows: int, duration_s: float) -> tuple[int, StepSample]:
    """A step of so many rows at a context of 100, with the prompt length of its probe."""
    return 100, StepSample(duration_s, rows, rows, rows * 100, 0, 0)


def slower(sample: StepSample) -> StepSample:
    """The same, or twice as long at two sizes that a fit is not shown."""
    twice = 2.0 if sample.sequences in (2, 4) else 1.0
    return msgspec.structs.replace(sample, duration_s=twice * sample.duration_s)
