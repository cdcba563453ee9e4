"""A real model whose batches run to completion, behind the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import by, conserved
from tests.e2e.conftest import Start
from tests.e2e.daemon import settings
from tests.tiny_model import build

# Two processes import torch first.
pytestmark = pytest.mark.timeout(180)

PADDED: dict[str, Any] = {
    "kind": "padded",
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "max_seqs": 4,
    "max_step_tokens": 512,
    "warmup_sizes": [1],
}


async def test_batches_follow_each_other_and_who_goes_away_leaves_the_rest_as_it_was(
    start: Start, tmp_path: Path
) -> None:
    config = settings(
        limits={"max_batch_size": 3, "max_batch_tokens": 512, "wait_timeout": "0s"},
        envelope={"max_batch_size": [1, 4], "max_batch_tokens": [64, 512]},
        executors=[PADDED | {"model": str(build(tmp_path / "tiny"))}],
    )
    daemon = start(config).listening()
    rules: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    async with daemon.client() as client:
        # A real model takes its time to load where others use the machine.
        await client.ready(patience_s=120.0)
        alone = await client.ask("how are you", tokens=40, **rules)
        assert alone.record["usage"]["completion_tokens"] == 40
        begun = asyncio.Event()
        # So long that everything else is over before it would be.
        gone = asyncio.create_task(
            client.ask(
                "hello there",
                tokens=900,
                stream=True,
                on_text=lambda text: begun.set(),
                **rules,
            )
        )
        await begun.wait()
        prompts = ("how are you", "the quick brown fox jumps over the lazy dog", "Paris")
        tasks = [asyncio.create_task(client.ask(text, tokens=40, **rules)) for text in prompts]
        state = await client.until(lambda state: state["requests"]["queued"] == 3, "three to wait")
        assert state["requests"]["running"] == 1
        gone.cancel()
        beside = [await task for task in tasks]
        assert [answer.finish_reason for answer in beside] == ["length"] * 3
        assert beside[0].text == alone.text
        state = await client.state()
        assert (state["requests"]["finished"], state["requests"]["cancelled"]) == (4, 1)
        assert conserved(state)
        seen = await client.metrics()
    # One by itself, one by itself that goes away, and three at once that had to wait for it.
    assert sum(by(seen, "headway_dispatches_total", "reason").values()) == 3
