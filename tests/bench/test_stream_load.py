"""The client that engines are measured with sees tokens and gaps, and lets no error slip by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from bench.engines import Target
from bench.stream_load import LoadError, chat, chat_body, load, session
from bench.upstream_tiers import Episode, episode, ratios, table


@asynccontextmanager
async def server(
    *events: dict[str, Any], status: int = 200
) -> AsyncIterator[tuple[str, list[Any]]]:
    """Answers every chat with these events; yields its address and the bodies that it got."""
    bodies: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.json())
        if status != 200:
            return web.json_response({"error": {"message": "full"}}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", bodies
    finally:
        await runner.cleanup()


def piece(text: str | None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


USAGE: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 7}}


async def test_tokens_are_those_of_usage_and_gaps_lie_between_pieces_of_text() -> None:
    events = piece(None), piece("a"), piece("b"), piece("c"), USAGE
    async with server(*events) as (url, _), session(url) as connections:
        found = await chat(connections, chat_body("m", "?", 7))
    assert found.tokens == 7
    assert len(found.gaps_s) == 2
    assert all(gap >= 0 for gap in found.gaps_s)


async def test_without_usage_each_piece_is_a_token() -> None:
    async with server(piece("a"), piece("b")) as (url, _), session(url) as connections:
        assert (await chat(connections, chat_body("m", "?", 7))).tokens == 2


async def test_as_many_requests_as_asked_for_are_sent_in_all() -> None:
    async with server(piece("a"), USAGE) as (url, bodies):
        found = await load(url, model="m", concurrency=3, requests=7, max_tokens=7)
    assert len(found.chats) == len(bodies) == 7
    assert found.tokens_per_s == 49 / found.seconds


@pytest.mark.parametrize(
    ("events", "status", "told"),
    [
        ([], 429, "429"),
        ([piece("a"), {"error": {"message": "the engine died"}}], 200, "the engine died"),
        ([USAGE], 200, "without text"),
    ],
)
async def test_an_answer_that_is_none_ends_the_measurement(
    events: list[dict[str, Any]], status: int, told: str
) -> None:
    async with server(*events, status=status) as (url, _):
        with pytest.raises(LoadError, match=told):
            await load(url, model="m", concurrency=2, requests=4, max_tokens=7)


async def test_the_paid_chat_comes_last_and_only_headway_is_told_who_is_who() -> None:
    async with server(piece("a"), USAGE) as (url, bodies):
        target = Target(url, "m")
        await episode(target, offline=3, tokens=7, taken=2, tiers=True)
        await episode(target, offline=3, tokens=7, taken=2, tiers=False)
    assert [body.get("service_tier") for body in bodies] == [
        *("flex", "flex", "flex", "priority"),
        *(None, None, None, None),
    ]


def test_ratios_are_by_round() -> None:
    alone, through = (
        [Episode(10.0, 20.0), Episode(8.0, 20.0)],
        [Episode(0.5, 22.0), Episode(0.8, 21.0)],
    )
    assert ratios(alone, through) == [0.05, 0.1]
    assert table(alone, through).splitlines()[-1] == (
        "| ratio | 0.075 (0.050 to 0.100) | 1.075 (1.050 to 1.100) |"
    )
