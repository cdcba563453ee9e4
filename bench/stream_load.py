"""Closed loop of streamed chats on an OpenAI endpoint: what each piece of text came with, and when.

The same client for an engine and for Headway before it: what it costs itself, it costs both.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from typing import Any

import aiohttp

from bench.openai_load import QUESTIONS

_TIMEOUT_S = 600.0


class LoadError(Exception):
    """A request was not answered as it should have been; the message says how."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One streamed answer: `tokens` by the server's `usage` or, without it, its pieces.

    `first_s` from sending to the first piece of text, `gaps_s` between pieces.
    """

    tokens: int
    first_s: float
    gaps_s: list[float]


@dataclass(slots=True)
class Loaded:
    """What one run of load brought; `seconds` from its first request to its last answer."""

    chats: list[Chat] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens over wall time."""
        return sum(chat.tokens for chat in self.chats) / self.seconds

    @property
    def gaps_s(self) -> list[float]:
        """The gaps of all streams."""
        return [gap for chat in self.chats for gap in chat.gaps_s]


async def load(url: str, *, model: str, concurrency: int, requests: int, max_tokens: int) -> Loaded:
    """Send `requests` chats, `concurrency` at a time. Raises LoadError at the first that fails."""
    result = Loaded()
    questions = cycle(QUESTIONS)
    bodies = (chat_body(model, next(questions), max_tokens) for _ in range(requests))
    async with session(url) as connections:
        begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(_client(connections, bodies, result))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        result.seconds = time.perf_counter() - begun
    return result


def session(url: str) -> aiohttp.ClientSession:
    """As many connections to a server as are asked for, a new one for each request.

    llama.cpp's server closes a connection after a stream, though it says that it will keep it.
    """
    return aiohttp.ClientSession(
        url,
        timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
    )


def chat_body(model: str, question: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """A streamed chat, greedy, that reports its usage."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }


async def chat(
    connections: aiohttp.ClientSession,
    body: dict[str, Any],
    *,
    on_first: Callable[[], None] = lambda: None,
) -> Chat:
    """One chat to its end; `on_first` is called at its first piece. Raises LoadError."""
    begun = time.perf_counter()
    times: list[float] = []
    tokens = None
    async with connections.post("/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise LoadError(f"{response.status}: {(await response.text())[:500]}")
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise LoadError(str(event["error"]))
            if any(choice["delta"].get("content") for choice in event["choices"]):
                times.append(time.perf_counter())
                if len(times) == 1:
                    on_first()
            if usage := event.get("usage"):
                tokens = usage["completion_tokens"]
    if not times:
        raise LoadError("an answer without text")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Chat(len(times) if tokens is None else tokens, times[0] - begun, gaps)


async def _client(
    connections: aiohttp.ClientSession, bodies: Iterator[dict[str, Any]], result: Loaded
) -> None:
    for body in bodies:
        result.chats.append(await chat(connections, body))
