"""From a running daemon an operator can tell why each batch went, and what it found waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from tests.e2e.client import by
from tests.e2e.conftest import Start
from tests.e2e.daemon import STEADY, settings

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
MAIN = frozenset({("executor", "main")})


async def test_of_every_batch_why_how_deep_how_old_how_long_held_and_how_padded(
    start: Start,
) -> None:
    """One that is held alone, one that fills up behind it, and the rest at once."""
    limits = {"max_batch_size": 3, "max_batch_tokens": 2048, "wait_timeout": "50ms"}
    executors = [STEADY | {"runs_to_completion": True}]
    # Held whether or not company is likely, so that the test knows for how long.
    control = {"policy": {"type": "static"}, "interval": "50ms", "hold": "fixed"}
    config = settings(limits=limits, executors=executors, control=control)
    daemon = start(config).listening()
    async with daemon.client() as client:
        await client.ready()
        first = asyncio.create_task(client.ask(tokens=100))
        await client.until(lambda state: state["requests"]["running"] == 1, "the first that runs")
        others = [asyncio.create_task(client.ask(tokens=tokens)) for tokens in (2, 4, 8)]
        await client.until(lambda state: state["requests"]["queued"] == 3, "three that wait")
        assert [(await task).ended for task in (first, *others)] == ["done"] * 4
        seen = await client.metrics()
    assert +by(seen, "headway_dispatches_total", "reason") == Counter(timeout=1, full=1)
    assert _sum(seen, "batch_size") == _sum(seen, "queue_depth") == 1 + 3
    # The first was held for all of W; the others waited for the executor, which is no hold.
    assert 0.05 <= _sum(seen, "hold_seconds") < 0.2
    assert _sum(seen, "oldest_seconds") > 0.05
    # Alone nothing is wasted; of three rows for 8 steps, 2 + 4 + 8 are of use.
    assert _sum(seen, "padding_ratio") == pytest.approx(1 - 14 / 24)
    assert seen["headway_dispatch_padding_ratio_count", MAIN] == 2


def _sum(samples: Samples, name: str) -> float:
    return samples[f"headway_dispatch_{name}_sum", MAIN]
