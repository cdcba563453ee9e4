"""The first signal drains within its bound, the second one ends at once."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from functools import partial

import openai
import pytest

from tests.e2e.client import Answer, Client, until
from tests.e2e.conftest import Start
from tests.e2e.daemon import STEADY, settings

RUNNING = 16


def _note(begun: set[int], index: int, _text: str) -> None:
    begun.add(index)


async def loaded(client: Client, *, tokens: int) -> list[asyncio.Task[Answer]]:
    """24 completions, of which 16 run and 8 wait; the even ones are streams, and have begun."""
    begun: set[int] = set()
    tasks = [
        asyncio.create_task(
            client.ask(
                tokens=tokens,
                seed=index,
                stream=index % 2 == 0,
                on_text=partial(_note, begun, index),
            )
        )
        for index in range(24)
    ]

    async def look() -> tuple[int, int]:
        return (await client.state())["requests"]["running"], len(begun)

    await until(look, lambda seen: seen == (RUNNING, RUNNING // 2), "sixteen that run")
    return tasks


async def draining(client: Client) -> None:
    await until(lambda: client.get("/readyz"), lambda answer: answer[0] == 503, "unready")


async def test_a_termination_under_load_lets_everybody_finish_and_takes_nobody_new(
    start: Start,
) -> None:
    daemon = start(settings()).listening()
    async with daemon.client() as client:
        await client.ready()
        tasks = await loaded(client, tokens=80)
        # As a service manager or `timeout` does it: everybody in the group gets the signal.
        os.kill((await client.state())["executors"]["main"]["pid"], signal.SIGTERM)
        daemon.signal(signal.SIGTERM)
        await draining(client)
        _, told = await client.get("/readyz")
        assert told["reasons"] == ["draining: nothing new is taken"]
        assert (await client.get("/healthz"))[0] == 200
        async with openai.AsyncOpenAI(
            base_url=f"{daemon.address}/v1", api_key="-", max_retries=0
        ) as sdk:
            with pytest.raises(openai.InternalServerError) as caught:
                await sdk.completions.create(model="sim", prompt="hi")
        assert (caught.value.status_code, caught.value.code) == (503, "draining")
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.response.headers["retry-after-ms"] == "1000"
        answers = await asyncio.gather(*tasks)
    assert [answer.ended for answer in answers] == ["done"] * 24
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert await daemon.exit_code() == 0


async def test_what_a_drain_cannot_wait_for_ends_in_an_error_frame(start: Start) -> None:
    daemon = start(settings(server={"drain_timeout": "500ms"})).listening()
    async with daemon.client() as client:
        await client.ready()
        tasks = await loaded(client, tokens=4000)
        daemon.signal(signal.SIGTERM)
        signalled = time.monotonic()
        answers = await asyncio.gather(*tasks)
        assert await daemon.exit_code() == 0
    assert 0.5 <= time.monotonic() - signalled < 2.5
    assert [answer.ended for answer in answers] == ["error"] * 24
    assert {answer.error["code"] for answer in answers} == {"draining"}
    assert {answer.finish_reason for answer in answers} == {None}
    statuses = [answer.status for answer in answers]
    assert statuses[:RUNNING] == [200, 503] * (RUNNING // 2)
    # Those that waited had sent nothing: they are told by a status, streams too.
    assert statuses[RUNNING:] == [503] * 8


async def test_a_second_signal_ends_at_once_and_cuts_no_stream_without_a_word(
    start: Start,
) -> None:
    daemon = start(settings(server={"drain_timeout": "10m"})).listening()
    async with daemon.client() as client:
        await client.ready()
        tasks = await loaded(client, tokens=4000)
        daemon.signal(signal.SIGINT)
        await draining(client)
        signalled = time.monotonic()
        daemon.signal(signal.SIGINT)
        answers = await asyncio.gather(*tasks)
        assert await daemon.exit_code() == 0
    assert time.monotonic() - signalled < 2.0
    assert [answer.ended for answer in answers] == ["error"] * 24


async def test_a_client_that_does_not_read_does_not_hold_up_the_end(start: Start) -> None:
    executor = STEADY | {"a": "0s", "max_context_tokens": 50_001, "kv_tokens": 1_000_000}
    server = {"drain_timeout": "100ms", "stream_buffer": "1GiB"}
    daemon = start(settings(executors=[executor], server=server)).listening()
    body = b'{"prompt": "x", "stream": true, "max_tokens": 50000, "n": 16}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with daemon.client() as client:
        await client.ready()
        with socket.create_connection(daemon.endpoint) as deaf:
            deaf.sendall(head + body)
            # About 200 bytes a token: far more than the kernel keeps for a socket.
            await client.until(lambda s: (s["executors"]["main"]["kv"] or 0) > 0.08, "a flood")
            daemon.signal(signal.SIGTERM)
            signalled = time.monotonic()
            assert await daemon.exit_code() == 0
            assert time.monotonic() - signalled < 4.0
