"""Whoever asks a daemon over HTTP: its users, its operator, its load balancer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")
# No step of a test waits longer than this for another process; it is a bound, not a pause.
PATIENCE_S = 20.0
POLL_S = 0.005
_ENDS = ("finished", "rejected", "expired", "cancelled", "failed")


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
        return await self._put("/admin/limits", body)

    async def put_policy(self, **body: Any) -> tuple[int, Any]:
        """Put a policy in force by hand."""
        return await self._put("/admin/policy", body)

    async def _put(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self.session.put(path, json=body, headers=_bearer(self.token)) as response:
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

    async def until(
        self,
        condition: Callable[[dict[str, Any]], bool],
        what: str,
        *,
        patience_s: float = PATIENCE_S,
    ) -> dict[str, Any]:
        """Ask for the state until it is as wanted; fails naming `what` was waited for."""
        return await until(self.state, condition, what, patience_s=patience_s)

    async def ready(self, *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait until it can do work; answers the state."""
        what = "an executor that is ready"
        return await self.until(lambda state: bool(state["ready"]), what, patience_s=patience_s)


async def until(
    ask: Callable[[], Awaitable[T]],
    condition: Callable[[T], bool],
    what: str,
    *,
    patience_s: float = PATIENCE_S,
) -> T:
    """Ask again and again until the answer is as wanted; fails naming `what` was waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        answer = await ask()
        if condition(answer):
            return answer
        assert time.monotonic() < deadline, f"waited in vain for {what}: {answer}"
        await asyncio.sleep(POLL_S)


def by(
    samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float], name: str, label: str
) -> Counter[str]:
    """The samples of a metric, summed up by one of its labels."""
    sums: Counter[str] = Counter()
    for (sample, labels), value in samples.items():
        if sample == name:
            sums[dict(labels)[label]] += int(value)
    return sums


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
