"""The whole way: clients, the daemon, and llama.cpp's server with a real model behind it."""

from __future__ import annotations

import asyncio
import json
import time

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.engine_process import Server
from bench.stream_load import chat_body, load
from tests.e2e.client import Client, conserved, until
from tests.e2e.daemon import Daemon
from tests.engines.conftest import SEATS

# A real model computes: on a machine that does other things as well it takes its time.
pytestmark = pytest.mark.timeout(240)
# Long enough that no test sees its end, and within what a seat of the engine holds.
ENDLESS = 900
PROMPT = "One, two, three, four,"


async def pieces(url: str, body: object) -> list[str]:
    """The texts of a streamed chat, as they came."""
    texts = []
    async with (
        aiohttp.ClientSession(url) as session,
        session.post("/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                texts += [choice["delta"].get("content") for choice in choices]
    return [text for text in texts if text]


async def processing(engine: Server) -> int:
    """How many seats of the engine are taken, by its own word."""
    async with aiohttp.ClientSession(engine.url) as session, session.get("/metrics") as response:
        text = await response.text()
    (sample,) = (
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "llamacpp:requests_processing"
    )
    return int(sample.value)


async def begin(client: Client, **more: object) -> aiohttp.ClientResponse:
    """A stream without an end, of which the first text has come."""
    body = {"prompt": PROMPT, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True, **more}
    response = await client.session.post("/v1/completions", json=body)
    assert response.status == 200, await response.text()
    while not (line := await response.content.readline()).startswith(b"data: "):
        assert line, "it ended before it began"
    return response


async def test_a_chat_is_streamed_through_as_the_engine_writes_it(
    engine: Server, front: Daemon
) -> None:
    body = chat_body(engine.model, "What is the capital of France?", 12)
    async with front.client() as client:
        await client.ready()
    # The first leaves its prompt in the engine's cache, so that the others have the same start.
    await pieces(engine.url, body)
    direct = await pieces(engine.url, body)
    assert len(direct) == 12
    assert await pieces(front.address, body) == direct


async def test_every_token_of_many_chats_at_once_comes_through(
    engine: Server, front: Daemon
) -> None:
    async with front.client() as client:
        await client.ready()
    many = {"concurrency": 2 * SEATS, "requests": 6 * SEATS, "max_tokens": 8}
    found = await load(front.address, model=engine.model, **many)
    assert [chat.tokens for chat in found.chats] == [8] * 6 * SEATS
    assert [len(chat.gaps_s) for chat in found.chats] == [7] * 6 * SEATS


async def test_a_client_that_leaves_frees_the_engines_seat_within_a_second(
    engine: Server, front: Daemon
) -> None:
    async with front.client() as client:
        await client.ready()
        response = await begin(client)
        assert await processing(engine) == 1
        response.close()
        left = time.monotonic()
        await until(lambda: processing(engine), lambda count: count == 0, "a free seat")
        assert time.monotonic() - left < 1.0
        state = await client.until(lambda state: not state["requests"]["running"], "nobody to run")
        assert conserved(state)


async def test_the_next_who_waits_gets_the_seat_of_one_who_left(
    engine: Server, front: Daemon
) -> None:
    async with front.client() as client:
        await client.ready()
        seated = [await begin(client) for _ in range(SEATS)]
        waiting = asyncio.create_task(client.ask(PROMPT, tokens=2))
        await client.until(lambda state: state["requests"]["queued"] == 1, "one who waits")
        assert await processing(engine) == SEATS
        seated.pop().close()
        left = time.monotonic()
        assert (await waiting).ended == "done"
        assert time.monotonic() - left < 5.0
        assert not any(response.content.at_eof() for response in seated)
        for response in seated:
            response.close()
        await until(lambda: processing(engine), lambda count: count == 0, "free seats")


async def test_what_has_not_streamed_outlives_a_killed_engine_and_what_has_says_so(
    engine: Server, front: Daemon
) -> None:
    async with front.client() as client:
        await client.ready()
        begun = asyncio.Semaphore(0)
        streamed = [
            asyncio.create_task(
                client.ask(
                    PROMPT,
                    tokens=ENDLESS,
                    stream=True,
                    ignore_eos=True,
                    on_text=lambda text: begun.release(),
                )
            )
            for _ in range(2)
        ]
        # Of an answer that comes as a whole nobody has seen anything yet.
        whole = asyncio.create_task(client.ask(PROMPT, tokens=64, ignore_eos=True))
        for _ in range(8 * len(streamed)):
            await begun.acquire()
        # The engine has it, and reads for longer than it lives.
        reading = asyncio.create_task(
            client.ask(PROMPT * 40, tokens=4, stream=True, ignore_eos=True)
        )
        await client.until(lambda state: state["requests"]["running"] == SEATS, "a full engine")
        waiting = [
            asyncio.create_task(client.ask(PROMPT, tokens=4, stream=stream, ignore_eos=True))
            for stream in (True, False, True)
        ]
        await client.until(lambda state: state["requests"]["queued"] == 3, "three who wait")
        assert not whole.done()
        engine.kill()
        for answer in await asyncio.gather(*streamed):
            assert (answer.ended, bool(answer.text)) == ("error", True)
        await client.until(lambda state: not state["ready"], "the engine's absence to be known")
        assert [task.result() for task in (whole, reading, *waiting) if task.done()] == []
        await asyncio.to_thread(engine.start)
        for answer in await asyncio.gather(whole, reading, *waiting):
            assert (answer.ended, answer.finish_reason) == ("done", "length")
        assert whole.result().record["usage"]["completion_tokens"] == 64
        assert (await client.ask(PROMPT, tokens=4)).ended == "done"
        assert conserved(await client.state())
