"""What a daemon has learnt, the next one knows."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.client import Client, until
from tests.e2e.conftest import Start
from tests.e2e.daemon import settings


async def newest(client: Client) -> dict[str, Any]:
    """The newest decision."""
    _, told = await client.get("/admin/decisions?count=1")
    found: dict[str, Any] = told["decisions"][0]
    return found


def has_model(decision: dict[str, Any]) -> bool:
    return decision["signals"]["model"] is not None


async def test_a_restart_begins_with_the_limits_and_the_model_of_before(
    start: Start, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    control = {"policy": {"type": "threshold"}, "interval": "50ms", "state_file": str(state)}
    config = settings(control=control)
    first = start(config).listening()
    async with first.client() as client:
        await client.ready()
        assert (await client.ask(tokens=30)).ended == "done"
    first.signal(signal.SIGTERM)
    assert await first.exit_code() == 0
    kept = json.loads(state.read_text())
    steps = kept["executors"]["main"]["sums"]["samples"]
    assert steps >= 30
    # As if the policy had found these.
    kept["groups"]["default"]["limits"]["max_batch_size"] = 11
    state.write_text(json.dumps(kept))
    second = start(config).listening()
    async with second.client() as client:
        shown = (await client.ready())["groups"]["default"]
        assert shown["limits"]["max_batch_size"] == 11
        told = await until(partial(newest, client), has_model, "a tick with a step model")
        # What each measured before it was ready comes on top: all but the 30 steps of the answer.
        assert told["signals"]["model"]["samples"] == steps + (steps - 30)
    second.signal(signal.SIGKILL)
    await second.exit_code()
    state.write_bytes(b"\x00" * 100)
    third = start(config).listening()
    async with third.client() as client:
        shown = (await client.ready())["groups"]["default"]
        assert shown["limits"]["max_batch_size"] == 16
    told_of = [r for r in third.log() if r["event"] == "state not used"]
    assert [r["level"] for r in told_of] == ["warning"]
