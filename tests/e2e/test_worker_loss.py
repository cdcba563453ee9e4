"""The worker is killed or stands still: requests wait, streams go on, and `/readyz` says so."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.client import POLL_S, Answer, Client, conserved
from tests.e2e.daemon import STEADY, Daemon, settings

REQUESTS = 40
TOKENS = 40


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder: Path = tmp_path_factory.mktemp("daemon")
    with Daemon(
        folder, settings(executors=[STEADY | {"a": "6ms", "stall_after": "500ms"}])
    ) as started:
        yield started.listening()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with daemon.client() as client:
        await client.ready()
        yield client


class Load:
    """Forty completions at once, every other one streamed; sixteen of them run, the others wait."""

    def __init__(self, client: Client) -> None:
        self.begun = asyncio.Event()
        self._pieces = 0
        self.answers = [
            asyncio.create_task(
                client.ask(tokens=TOKENS, seed=index, stream=index % 2 == 0, on_text=self._on_text)
            )
            for index in range(REQUESTS)
        ]

    def _on_text(self, text: str) -> None:
        self._pieces += 1
        if self._pieces >= REQUESTS:
            self.begun.set()

    async def all(self) -> list[Answer]:
        return await asyncio.gather(*self.answers)


class Probe:
    """A load balancer that asks `/readyz` without a pause, and what it was told, changes only."""

    def __init__(self, client: Client) -> None:
        self.told: list[tuple[int, float, list[str]]] = []
        self._client = client
        self._task = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        while True:
            status, body = await self._client.get("/readyz")
            if not self.told or self.told[-1][0] != status:
                self.told.append((status, time.monotonic(), body["reasons"]))
            await asyncio.sleep(POLL_S)

    async def stop(self) -> list[int]:
        self._task.cancel()
        await asyncio.wait({self._task})
        assert self._task.cancelled()
        return [status for status, _, _ in self.told]


async def undisturbed(client: Client) -> list[str]:
    return [answer.text for answer in await Load(client).all()]


async def pid(client: Client) -> int:
    return int((await client.state())["executors"]["main"]["pid"])


@pytest.mark.parametrize(
    ("number", "within_s", "reason"),
    [
        (signal.SIGKILL, 0.3, "killed: by signal 9 (Killed)"),
        # It is given up after half a second without a step, found at the next tick.
        (signal.SIGSTOP, 1.5, "stalled: 0."),
    ],
)
async def test_a_worker_lost_under_load_loses_nothing(
    daemon: Daemon, client: Client, number: signal.Signals, within_s: float, reason: str
) -> None:
    expected = await undisturbed(client)
    before, old = await client.state(), await pid(client)
    load, probe = Load(client), Probe(client)
    await load.begun.wait()
    struck = time.monotonic()
    os.kill(old, number)
    answers = await load.all()
    assert await probe.stop() == [200, 503, 200]
    (_, lost_at, reasons), (_, back_at, _) = probe.told[1:]
    assert struck < lost_at < struck + within_s
    assert lost_at < back_at
    assert len(reasons) == 1
    assert reasons[0].startswith(f"no executor is ready (main: {reason}")

    assert [answer.ended for answer in answers] == ["done"] * REQUESTS
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert [answer.text for answer in answers] == expected

    after = await client.state()
    assert await pid(client) != old
    assert conserved(after)
    ended = {name: after["requests"][name] - before["requests"][name] for name in after["requests"]}
    assert {name for name, count in ended.items() if count} == {"offered", "finished"}
    assert ended["finished"] == REQUESTS
    restarts = after["executors"]["main"]["restarts"]
    assert restarts == before["executors"]["main"]["restarts"] + 1
    key = ("headway_worker_restarts_total", frozenset({("executor", "main")}))
    assert (await client.metrics())[key] == restarts
    lost = [record for record in daemon.log() if record["event"] == "executor lost"]
    assert lost[-1]["reason"].startswith(reason)
    assert len(lost) == restarts
