"""Several executors under one queue: the configuration that ships, a death, and a sick one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from typing import Any

from executor.contract import Fault
from tests.e2e.client import conserved
from tests.e2e.conftest import Start
from tests.e2e.daemon import ROOT, STEADY, settings
from tests.e2e.inside import inside

QUICK = ("--set", "executors.0.restart.first_delay=50ms")


def all_ready(state: Mapping[str, Any]) -> bool:
    return all(executor["state"] == "ready" for executor in state["executors"].values())


async def test_what_ships_serves_on_all_and_goes_on_when_one_dies(start: Start) -> None:
    daemon = start(ROOT / "configs" / "two-gpus-simulated.yaml", flags=QUICK).listening()
    async with daemon.client() as client:
        state = await client.until(all_ready, "all executors")
        assert list(state["executors"]) == ["gpu-0", "gpu-1", "old"]
        sizes = {name: g["limits"]["max_batch_size"] for name, g in state["groups"].items()}
        assert sizes == {"default": 32, "old": 8}
        tasks = [asyncio.create_task(client.ask(tokens=20)) for _ in range(80)]
        state = await client.until(lambda state: state["requests"]["running"] >= 60, "load")
        assert all(executor["running"] for executor in state["executors"].values())
        os.kill(state["executors"]["gpu-0"]["pid"], signal.SIGKILL)
        await client.until(
            lambda state: state["executors"]["gpu-0"]["restarts"] == 1 and all_ready(state),
            "a new worker",
        )
        assert {(await task).ended for task in tasks} == {"done"}
        # It is back, and gets work again.
        tasks = [asyncio.create_task(client.ask(tokens=20)) for _ in range(80)]
        await client.until(lambda state: state["executors"]["gpu-0"]["running"] > 1, "its work")
        assert {(await task).ended for task in tasks} == {"done"}
        assert conserved(await client.state())


async def test_an_executor_whose_steps_fail_is_taken_out_and_nobody_is_lost() -> None:
    pair = [STEADY | {"name": name} for name in ("sick", "well")]
    limits = {"max_batch_size": 8, "max_batch_tokens": 2048, "wait_timeout": "0s"}
    async with inside(settings(executors=pair, limits=limits)) as (parts, client):
        sick = parts.dispatcher.batcher.standings.of["sick"]
        tasks = [asyncio.create_task(client.ask(tokens=20)) for _ in range(40)]

        def fails_again(state: Mapping[str, Any]) -> bool:
            parts.processes["sick"].fault(Fault("fail"))
            return bool(state["executors"]["sick"]["failures"] >= 2)

        await client.until(fails_again, "two failed steps in a row")
        assert {(await task).ended for task in tasks} == {"done"}
        # When its pause is over it is tried with one of more than the other has seats for.
        while sick.failures:
            answers = await asyncio.gather(*(client.ask(tokens=5) for _ in range(12)))
            assert {answer.ended for answer in answers} == {"done"}
        samples = await client.metrics()
        key = ("headway_executor_failures", frozenset({("executor", "sick")}))
        assert samples[key] == 0
