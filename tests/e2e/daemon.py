"""The daemon as a process: started on any free port, asked over HTTP, ended by its pid."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
HEADWAY = str(Path(sys.executable).with_name("headway"))
# No step of a test waits longer than this for another process; it is a bound, not a pause.
PATIENCE_S = 20.0
POLL_S = 0.005
_ADDRESS = re.compile(r"listens on (http://\S+)")
_ENDS = ("finished", "rejected", "expired", "cancelled", "failed")

# An executor whose steps take 10 ms whatever they hold, restarted at once.
STEADY: dict[str, Any] = {
    "kind": "simulated",
    "model": "sim",
    "max_seqs": 64,
    "a": "10ms",
    "restart": {"first_delay": "50ms"},
}


def settings(**sections: Any) -> dict[str, Any]:
    """A small configuration; sections given replace those here, executors are merged into one."""
    return {
        "auth": {"default_tier": "paid"},
        "limits": {"max_batch_size": 16, "max_batch_tokens": 2048, "wait_timeout": "0s"},
        "control": {"policy": {"type": "static"}, "interval": "50ms"},
        "executors": [STEADY],
    } | sections


@dataclass
class Answer:
    """What came of one completion. `ended` says how: `done` (complete), `error` (told so), or
    `cut` (the connection closed without a word). `error` is the body's error object."""

    status: int
    headers: Mapping[str, str]
    ended: str
    text: str = ""
    finish_reason: str | None = None
    error: dict[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)


class Client:
    """Asks one daemon, as its users, its load balancer and, with `token`, its operator would."""

    def __init__(self, session: aiohttp.ClientSession, *, token: str = "") -> None:
        self.session = session
        self.token = token

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON of a path."""
        async with self.session.get(path, headers=_bearer(self.token)) as response:
            return response.status, await response.json()

    async def put_limits(self, **body: Any) -> tuple[int, Any]:
        """Set limits by hand."""
        headers = _bearer(self.token)
        async with self.session.put("/admin/limits", json=body, headers=headers) as response:
            return response.status, await response.json()

    async def state(self) -> dict[str, Any]:
        """`/admin/state`."""
        state: dict[str, Any] = (await self.get("/admin/state"))[1]
        return state

    async def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample of `/metrics`, by name and labels."""
        async with self.session.get("/metrics") as response:
            text = await response.text()
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def ask(
        self,
        prompt: str = "hello",
        *,
        tokens: int = 5,
        stream: bool = False,
        key: str = "",
        on_text: Callable[[str], None] = lambda text: None,
        **more: Any,
    ) -> Answer:
        """One completion to its end; `on_text` is called with each piece of a stream."""
        body = {"prompt": prompt, "max_tokens": tokens, "stream": stream, **more}
        async with self.session.post("/v1/completions", json=body, headers=_bearer(key)) as got:
            if got.content_type != "text/event-stream":
                record = await got.json()
                if got.status != 200:
                    return Answer(got.status, got.headers, "error", error=record["error"])
                (choice,) = record["choices"]
                return Answer(
                    got.status,
                    got.headers,
                    "done",
                    choice["text"],
                    choice["finish_reason"],
                    {},
                    record,
                )
            answer = Answer(got.status, got.headers, "cut")
            try:
                async for line in got.content:
                    _take(answer, line, on_text)
            except aiohttp.ClientPayloadError:
                assert answer.ended == "error", "a connection was cut without an error frame"
            return answer

    async def until(self, condition: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Ask for the state until it is as wanted; fails naming `what` was waited for."""
        return await until(self.state, condition, what)

    async def ready(self) -> dict[str, Any]:
        """Wait until it can do work; answers the state."""
        return await self.until(lambda state: bool(state["ready"]), "an executor that is ready")


async def until(ask: Callable[[], Awaitable[T]], condition: Callable[[T], bool], what: str) -> T:
    """Ask again and again until the answer is as wanted; fails naming `what` was waited for."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = await ask()
        if condition(answer):
            return answer
        assert time.monotonic() < deadline, f"waited in vain for {what}: {answer}"
        await asyncio.sleep(POLL_S)


class Daemon:
    """`headway serve` on a file, in a process of its own."""

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any] | Path,
        *,
        environ: Mapping[str, str] | None = None,
        flags: tuple[str, ...] = (),
    ) -> None:
        if isinstance(config, Path):
            path = config
        else:
            path = folder / "headway.yaml"
            path.write_text(yaml.safe_dump(dict(config)))
        self.log_file = folder / "stderr"
        self.started = time.monotonic()
        with self.log_file.open("wb") as stderr:
            self.process = subprocess.Popen(
                [HEADWAY, "serve", "-c", str(path), "--port", "0", *flags],
                cwd=folder,
                env={**os.environ, **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self.address = ""

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def listening(self) -> Daemon:
        """Wait until it has said where it listens."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := _ADDRESS.search(line.decode()):
                self.address = found[1]
                return self
        raise AssertionError(f"it ended before it listened:\n{self.log_text()}")

    @property
    def endpoint(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        return host, int(port)

    @asynccontextmanager
    async def client(self, *, token: str = "") -> AsyncIterator[Client]:
        """Somebody who asks, over as many connections as it takes."""
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(self.address, connector=connector) as session:
            yield Client(session, token=token)

    def signal(self, number: signal.Signals) -> None:
        """Send the daemon (and nobody else) a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for its end."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def log_text(self) -> str:
        """What it wrote to stderr so far."""
        return self.log_file.read_text()

    def log(self) -> list[dict[str, Any]]:
        """The records of its log, which is JSON where stderr is no terminal."""
        lines = self.log_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


def conserved(state: Mapping[str, Any]) -> bool:
    """offered = finished + rejected + expired + cancelled + failed + queued + running."""
    requests = state["requests"]
    parts = sum(requests[name] for name in (*_ENDS, "queued", "running"))
    return bool(requests["offered"] == parts)


def _take(answer: Answer, line: bytes, on_text: Callable[[str], None]) -> None:
    if not line.startswith(b"data: "):
        return
    data = line.removeprefix(b"data: ").strip()
    if data == b"[DONE]":
        answer.ended = "done"
        return
    record = json.loads(data)
    if "error" in record:
        answer.ended, answer.error = "error", record["error"]
        return
    answer.record = record
    for choice in record["choices"]:
        answer.text += choice["text"]
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        on_text(choice["text"])


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}
