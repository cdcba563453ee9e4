"""Closed-loop load on an OpenAI endpoint: so many clients at once, tokens counted from `usage`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import aiohttp

QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain what a hash table is to a child.",
    "Name three rivers in South America and one fact about each.",
    "How do I boil an egg so that the yolk stays soft?",
    "Summarise the story of Romeo and Juliet in two sentences.",
    "What is the difference between weather and climate?",
    "Give me a packing list for a week in the mountains.",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """One request: its HTTP status, tokens of its completion, and seconds it took."""

    status: int
    tokens: int
    seconds: float


@dataclass(slots=True)
class Round:
    """What one round of load brought. `seconds` is wall time from first to last."""

    answers: list[Answer] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens over wall time."""
        return sum(answer.tokens for answer in self.answers) / self.seconds

    @property
    def failures(self) -> int:
        """Requests that were not answered with 200."""
        return sum(answer.status != 200 for answer in self.answers)


async def run_round(
    base_url: str,
    *,
    model: str,
    concurrency: int,
    requests: int,
    max_tokens: int,
    tiers: Sequence[str] = (),
) -> Round:
    """Send `requests` chat requests, `concurrency` at a time, and wait for the last answer."""
    result = Round()
    work = iter(range(requests))
    questions, service_tiers = cycle(QUESTIONS), cycle(tiers or (None,))
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base_url, timeout=timeout, connector=connector) as session:
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(
                    _client(
                        session,
                        _bodies(work, questions, service_tiers, model=model, tokens=max_tokens),
                        result,
                    )
                )
        result.seconds = time.perf_counter() - begun
    return result


def _bodies(
    work: Iterator[int],
    questions: Iterator[str],
    tiers: Iterator[str | None],
    *,
    model: str,
    tokens: int,
) -> Iterator[dict[str, Any]]:
    for _ in work:
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": next(questions)}],
            "max_tokens": tokens,
            "temperature": 0,
        }
        if (tier := next(tiers)) is not None:
            body["service_tier"] = tier
        yield body


async def _client(
    session: aiohttp.ClientSession, bodies: Iterator[dict[str, Any]], result: Round
) -> None:
    for body in bodies:
        begun = time.perf_counter()
        async with session.post("/v1/chat/completions", json=body) as response:
            answer = await response.json()
            tokens = answer["usage"]["completion_tokens"] if response.status == 200 else 0
        result.answers.append(Answer(response.status, tokens, time.perf_counter() - begun))
