"""Clients that leave, clients that read slowly, and streams with nothing to say for a while."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading

import pytest

from controller.request import Outcome
from executor.contract import TextModel
from gateway.text import TokenLanguage
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import Answer, Raw, serving

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test

A = 70  # some token with text
SMALL = 4096  # bytes that the kernel takes on either side


@pytest.fixture
def desk(text: TextModel) -> FakeDesk:
    return FakeDesk(text)


# --- clients that leave ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_before_the_first_token_cancels_every_choice(
    desk: FakeDesk, stream: bool
) -> None:
    async with serving(desk) as served:
        connection = await served.ask(stream=stream, n=2)
        requests = [await desk.offered.get() for _ in range(2)]
        await connection.leave()
        ends = [await desk.ended.get() for _ in range(2)]
    assert [end.request for end in ends] == requests
    assert [(end.outcome, end.reason) for end in ends] == [(Outcome.CANCELLED, "disconnect")] * 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disconnect_while_decoding_cancels_at_once(desk: FakeDesk, stream: bool) -> None:
    async with serving(desk) as served:
        connection = await served.ask(stream=stream)
        request = await desk.offered.get()
        desk.say(request.id, [A])
        if stream:
            await connection.head()
        await connection.leave()
        end = await desk.ended.get()
    assert (end.outcome, end.reason, end.request.tokens) == (Outcome.CANCELLED, "disconnect", [A])


async def test_a_disconnect_never_raises_into_the_one_who_brings_tokens(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        sink = desk.sinks[request.id]
        desk.say(request.id, [A])
        await connection.head()
        connection.writer.transport.abort()
        # The server has not noticed yet, then notices, then knows.
        while desk.ended.empty():
            sink.on_tokens([A], desk.clock)
            await asyncio.sleep(0)
        sink.on_tokens([A], desk.clock)
        end = await desk.ended.get()
    assert (end.outcome, end.reason) == (Outcome.CANCELLED, "disconnect")


async def test_a_disconnect_while_its_text_is_tokenised_gives_the_places_back(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> list[int]:
        begun.set()
        go_on.wait(10)
        return [A]

    monkeypatch.setattr(TokenLanguage, "encode", slow)
    async with serving(desk) as served:
        connection = await served.ask(user="x" * 5000)  # long enough for a thread
        await asyncio.to_thread(begun.wait, 10)
        await connection.leave()
        await desk.returned.get()
        go_on.set()
    assert desk.places == 0
    assert desk.offered.empty()


async def test_other_streams_go_on_when_one_client_leaves(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        leaving = await served.stream()
        first = await desk.offered.get()
        staying = await served.stream()
        second = await desk.offered.get()
        desk.say(second.id, [A])
        await leaving.leave()
        gone = await desk.ended.get()
        desk.say(second.id, [A])
        desk.finish(second.id)
        answer = await staying.answer()
        await staying.leave()
    assert gone.request is first
    assert answer.events()[-1] == "[DONE]"


# --- clients that read slowly ---------------------------------------------------------------


async def _congest(desk: FakeDesk, request_id: str, connection: Raw) -> tuple[int, int]:
    """Bring tokens, one a turn, until the stream keeps them back; answers how many came, and how
    many of them are kept."""
    sink = desk.sinks[request_id]
    connection.pause()
    for said in range(1, 200_000):
        desk.say(request_id, [A])
        await asyncio.sleep(0)
        kept = len(sink._late)  # type: ignore[attr-defined]  # there is no outward sign of it yet
        if kept == 5:
            return said, kept
    raise AssertionError("the stream never became congested")


async def test_the_tokens_of_a_slow_reader_coalesce_and_none_is_lost(
    desk: FakeDesk, text: TextModel
) -> None:
    letter = TokenLanguage(text).decode([A])
    async with serving(desk, send_buffer=SMALL) as served:
        connection = await served.stream(receive_buffer=SMALL)
        request = await desk.offered.get()
        desk.say(request.id, [A])
        await connection.head()
        said, kept = await _congest(desk, request.id, connection)
        for _ in range(1000):
            desk.say(request.id, [A])
        connection.resume()
        desk.finish(request.id)
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        await connection.leave()
    events = Answer(200, {}, body).events()
    assert events.pop() == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == letter * (1 + said + 1000)
    assert deltas[-2] == letter * (kept + 1000)  # one event, for all that was kept back


async def test_a_reader_that_takes_nothing_is_dropped(desk: FakeDesk) -> None:
    async with serving(desk, send_buffer=SMALL) as served:
        connection = await served.stream(receive_buffer=SMALL)
        request = await desk.offered.get()
        desk.say(request.id, [A])
        await connection.head()
        _, said = await _congest(desk, request.id, connection)
        sink = desk.sinks[request.id]
        while desk.ended.empty():
            sink.on_tokens([A], desk.clock)
            said += 1
        end = await desk.ended.get()
        await connection.leave()
    assert (end.outcome, end.reason) == (Outcome.CANCELLED, "slow_reader")
    assert said == 64 * 1024 + 1  # so many characters beyond what the transport holds


async def test_a_reader_that_does_not_take_the_end_is_dropped_in_time(desk: FakeDesk) -> None:
    async with serving(desk, send_buffer=SMALL, slow_reader_after_s=0.05) as served:
        connection = await served.stream(receive_buffer=SMALL)
        request = await desk.offered.get()
        desk.say(request.id, [A])
        await connection.head()
        await _congest(desk, request.id, connection)
        desk.finish(request.id)
        while served.connections():  # noqa: ASYNC110 - the server tells nobody about them
            await asyncio.sleep(0.001)
        connection.resume()
        received = b""
        with contextlib.suppress(ConnectionResetError):
            received = await connection.reader.read()
        await connection.leave()
    assert b"[DONE]" not in received


# --- streams that are silent ----------------------------------------------------------------


async def test_a_silent_stream_gets_comments_and_then_its_tokens(desk: FakeDesk) -> None:
    async with serving(desk, keep_alive_after_s=0.02) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        status, headers = await connection.head()
        assert (status, headers["content-type"]) == (200, "text/event-stream")
        assert await connection.chunk() == b": keep-alive\n\n"
        assert await connection.chunk() == b": keep-alive\n\n"
        desk.say(request.id, [A])
        desk.finish(request.id)
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        await connection.leave()
    events = [event for event in Answer(200, {}, body).events() if event != ": keep-alive"]
    assert json.loads(events[0])["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1] == "[DONE]"


async def test_a_first_token_without_text_after_a_comment_does_not_end_the_stream(
    desk: FakeDesk, text: TextModel
) -> None:
    bus = TokenLanguage(text).encode("🚂", special=False)
    assert len(bus) == 3
    async with serving(desk, keep_alive_after_s=0.02) as served:
        connection = await served.send("/v1/completions", {"prompt": "A", "stream": True})
        request = await desk.offered.get()
        await connection.head()
        assert await connection.chunk() == b": keep-alive\n\n"
        for token in bus:
            desk.say(request.id, [token])
        desk.finish(request.id, "length")
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        await connection.leave()
    events = [event for event in Answer(200, {}, body).events() if event != ": keep-alive"]
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert "".join(texts) == "🚂"
    assert events[-1] == "[DONE]"


async def test_a_request_that_expires_after_a_comment_ends_in_an_error_event(
    desk: FakeDesk,
) -> None:
    async with serving(desk, keep_alive_after_s=0.02) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        await connection.head()
        assert await connection.chunk() == b": keep-alive\n\n"
        desk.end(request.id, Outcome.EXPIRED, "start_by")
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        await connection.leave()
    *comments, last = Answer(200, {}, body).events()
    assert set(comments) <= {": keep-alive"}
    assert json.loads(last)["error"]["code"] == "deadline_exceeded"
