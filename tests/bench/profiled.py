"""What a profile says it is of, where a test made it itself."""

from __future__ import annotations

from datetime import UTC, datetime

from bench.profile_report import About
from executor.contract import Capacity

CAPACITY = Capacity(
    model="it's tiny",
    device="cpu",
    max_seqs=16,
    max_step_tokens=512,
    kv_tokens=4096,
    max_context_tokens=1024,
)
ABOUT = About("main", "continuous", CAPACITY, datetime(2026, 1, 2, 3, 4, tzinfo=UTC), 6.0)
