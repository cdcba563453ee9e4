"""Whether a daemon keeps its memory and descriptors over many requests of every kind.

`python -m bench.flat` starts `headway serve` with a simulated executor, sends it 20,000 requests
(answered whole, streamed, left by their clients, refused, turned away), looks at the daemon and at
its worker whenever all is quiet after a part of them, and exits 1 where one of them has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import psutil
import yaml

from bench.agreement import READY_TRIES, daemon

REQUESTS, AT_ONCE = 20_000, 32
# Looked at after these parts: by the first, what is bounded is full.
PARTS = (0.2, 0.6, 1.0)
# What one that leaks keeps of a request is more than this; less is how an allocator breathes.
BYTES_A_REQUEST = 128
# Pages come in arenas of 256 KiB and more, whatever the number of requests.
SLACK_BYTES = 2 * 2**20
QUIET_S = 20.0
# A step takes no longer than its messages do. What is kept of decisions is a setting, and would
# take five minutes to fill.
CONFIG: Mapping[str, Any] = MappingProxyType(
    {
        "auth": {"default_tier": "paid"},
        "tiers": {
            "paid": {"priority": 1, "service_tier": "priority"},
            "offline": {"priority": 0, "service_tier": "flex", "max_queue_requests": 16},
        },
        "limits": {"max_batch_size": 16, "max_batch_tokens": 2048},
        "envelope": {"max_batch_size": [1, 16]},
        "control": {"policy": {"type": "slo"}, "history": 20},
        "executors": [{"kind": "simulated", "model": "sim", "a": "500us"}],
    }
)


@dataclass(frozen=True, slots=True)
class Look:
    """What the daemon and its worker hold after so many requests, in bytes and descriptors."""

    requests: int
    daemon_bytes: int
    daemon_files: int
    worker_bytes: int
    worker_files: int


@dataclass(frozen=True, slots=True)
class Found:
    """The looks, and how the requests ended as the daemon counts them."""

    looks: tuple[Look, ...]
    ends: Mapping[str, int]

    def grown(self) -> list[str]:
        """What grew from the first look to the last by more than it may, in words."""
        first, last = self.looks[0], self.looks[-1]
        may = SLACK_BYTES + BYTES_A_REQUEST * (last.requests - first.requests)
        told = []
        for whose in ("daemon", "worker"):
            more = getattr(last, f"{whose}_bytes") - getattr(first, f"{whose}_bytes")
            if more > may:
                told.append(f"the {whose} grew by {more / 2**20:.1f} MiB, {may / 2**20:.1f} may be")
            opened = getattr(last, f"{whose}_files") - getattr(first, f"{whose}_files")
            if opened > 0:
                told.append(f"the {whose} has {opened} more descriptors open")
        return told


async def measured(requests: int, parts: Sequence[float] = PARTS) -> Found:
    """Send so many requests to a daemon, and look at it after each part of them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headway.yaml"
        path.write_text(yaml.safe_dump(dict(CONFIG)), encoding="utf-8")
        with daemon(path) as url:
            looks, sent = [], 0
            for part in parts:
                # Connections of its own, so that none is open when it is looked at.
                async with aiohttp.ClientSession(
                    url, connector=aiohttp.TCPConnector(limit=0)
                ) as session:
                    worker = await _worker(session)
                    until = round(part * requests)
                    await _send(session, sent, until)
                    sent = until
                    ends = await _quiet(session)
                looks.append(await _look(url, sent, worker))
            return Found(tuple(looks), ends)


async def _worker(session: aiohttp.ClientSession) -> int:
    """The pid of the worker, once it is ready."""
    for _ in range(READY_TRIES):
        state = await _state(session)
        if state["ready"]:
            (executor,) = state["executors"].values()
            return int(executor["pid"])
        await asyncio.sleep(0.1)
    raise RuntimeError("the daemon has no executor that is ready")


async def _state(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/admin/state") as response:
        state: dict[str, Any] = await response.json()
        return state


async def _send(session: aiohttp.ClientSession, first: int, until: int) -> None:
    numbers = iter(range(first, until))

    async def one() -> None:
        for number in numbers:
            await _ask(session, number)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one())


async def _ask(session: aiohttp.ClientSession, number: int) -> None:
    """Of ten requests four are answered whole, three are streamed, one is left by its client after
    its first token, one wants more than fits, and one takes so many places that others like it are
    turned away."""
    kind = number % 10
    body: dict[str, Any] = {
        "prompt": f"request {number} of many: " + "x" * (number % 97),
        "max_tokens": 4 + number % 13,
        "stream": 4 <= kind <= 7,
        "user": f"user {number}",
    }
    if kind == 7:
        body["max_tokens"] = 4000
    elif kind == 8:
        body["max_tokens"] = 100_000
    elif kind == 9:
        body |= {"n": 16, "service_tier": "flex"}
    wanted = {8: (400,), 9: (200, 429)}.get(kind, (200,))
    async with session.post("/v1/completions", json=body) as response:
        if response.status not in wanted:
            told = (await response.text())[:200]
            raise RuntimeError(f"request {number} got {response.status}, not {wanted}: {told}")
        if kind == 7:
            # Its client does not read on: the connection is closed.
            await response.content.readline()
            response.close()
        else:
            await response.read()


async def _quiet(session: aiohttp.ClientSession) -> Mapping[str, int]:
    """Wait until nobody waits or runs; answers how all ended."""
    deadline = time.monotonic() + QUIET_S
    while True:
        requests: Counter[str] = Counter((await _state(session))["requests"])
        if not requests["queued"] and not requests["running"]:
            return requests
        if time.monotonic() > deadline:
            raise RuntimeError(f"requests that do not end: {dict(requests)}")
        await asyncio.sleep(0.02)


async def _look(url: str, requests: int, worker: int) -> Look:
    """Look once the daemon has closed what its clients have."""
    its_worker = psutil.Process(worker)
    process = its_worker.parent()
    assert process is not None
    deadline = time.monotonic() + QUIET_S
    while any(c.status == psutil.CONN_ESTABLISHED for c in process.net_connections("tcp")):
        if time.monotonic() > deadline:
            raise RuntimeError("the daemon keeps connections that its clients have closed")
        await asyncio.sleep(0.02)
    return Look(
        requests,
        process.memory_info().rss,
        process.num_fds(),
        its_worker.memory_info().rss,
        its_worker.num_fds(),
    )


def table(found: Found) -> str:
    """The looks in text."""
    lines = [
        "| requests | daemon, MiB | descriptors | worker, MiB | descriptors |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {look.requests} | {look.daemon_bytes / 2**20:.1f} | {look.daemon_files} | "
        f"{look.worker_bytes / 2**20:.1f} | {look.worker_files} |"
        for look in found.looks
    ]
    ends = ", ".join(f"{name} {count}" for name, count in found.ends.items() if count)
    return "\n".join([*lines, ends])


def main() -> None:
    """Send, look, print; exit 1 where something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    args = parser.parse_args()
    begun = time.monotonic()
    found = asyncio.run(measured(args.requests))
    print(table(found))
    grown = found.grown()
    print("\n".join(grown) or f"flat, in {time.monotonic() - begun:.0f} s")
    raise SystemExit(bool(grown))


if __name__ == "__main__":
    main()
