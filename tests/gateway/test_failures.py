"""What clients are told when a request cannot be served, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from controller.errors import (
    Draining,
    HeadwayError,
    Infeasible,
    InvalidRequest,
    NotReady,
    QueueFull,
    Shed,
)
from controller.request import Outcome
from executor.contract import TextModel
from gateway.text import TokenLanguage
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import QUESTION, serving

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test


@pytest.fixture
def desk(text: TextModel) -> FakeDesk:
    return FakeDesk(text)


def _shedding() -> HeadwayError:
    error = QueueFull("the queue of tier 'free' is full", retry_after_s=1.2)
    error.should_retry = False
    return error


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_queue_is_a_429_before_any_text_is_rendered_or_tokenised(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    worked: list[str] = []
    monkeypatch.setattr(TokenLanguage, "render", lambda *_: worked.append("render"))
    monkeypatch.setattr(TokenLanguage, "encode", lambda *_, **__: worked.append("encode"))
    desk.refuse = _shedding()
    async with serving(desk) as served, served.openai() as client:
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(model="tiny", messages=QUESTION, stream=stream)
    assert worked == []
    headers = refused.value.response.headers
    assert headers["retry-after"] == "2"
    assert headers["retry-after-ms"] == "1200"
    assert headers["x-should-retry"] == "false"
    assert headers["content-type"] == "application/json"
    assert headers["x-request-id"].startswith("req_")
    assert refused.value.body == {
        "message": "the queue of tier 'free' is full",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after", "retry_after_ms"),
    [
        (Infeasible("too late", retry_after_s=3.0), 429, "infeasible", "3", "3000"),
        (Shed("not this time", retry_after_s=12.3456), 429, "shed", "13", "12346"),
        (QueueFull("full"), 429, "rate_limit_exceeded", "1", "1000"),
        (QueueFull("full", retry_after_s=0.0), 429, "rate_limit_exceeded", "1", "1"),
        (Draining("on the way down"), 503, "draining", "1", "1000"),
        (NotReady("loading", retry_after_s=0.25), 503, "not_ready", "1", "250"),
    ],
)
async def test_no_room_says_when_to_come_back(
    desk: FakeDesk,
    error: HeadwayError,
    status: int,
    code: str,
    retry_after: str,
    retry_after_ms: str,
) -> None:
    desk.refuse = error
    async with serving(desk) as served:
        connection = await served.ask()
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == status
    assert answer.json()["error"]["code"] == code
    assert answer.headers["retry-after"] == retry_after
    assert answer.headers["retry-after-ms"] == retry_after_ms
    # A lot that is drawn again at once is no lot.
    assert answer.headers.get("x-should-retry") == ("false" if code == "shed" else None)


async def test_a_reservation_is_made_for_every_choice_and_the_bytes_of_the_body(
    desk: FakeDesk,
) -> None:
    body = json.dumps({"prompt": ["red", "blue"], "n": 2, "max_tokens": 10}).encode()
    async with serving(desk) as served:
        connection = await served.send("/v1/completions", body)
        for _ in range(4):
            request = await desk.offered.get()
            desk.finish(request.id)
        await connection.answer()
        await connection.leave()
    [permit] = desk.reserved
    assert (permit.tier, permit.requests, permit.size) == ("free", 4, len(body))
    assert permit.tokens == len(body) // 4 * 2 + 4 * 10


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "word " * 1100}]}, "messages"),
        ({"max_tokens": 1024}, "messages"),
        ({"messages": [{"role": "pirate", "content": "arr"}]}, "messages[0].role"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"logprobs": True}, "logprobs"),
    ],
)
async def test_what_fails_after_the_reservation_gives_it_back(
    desk: FakeDesk, fields: dict[str, Any], param: str
) -> None:
    async with serving(desk) as served:
        connection = await served.ask(**fields)
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 400
    assert answer.json()["error"]["param"] == param
    assert len(desk.permits) == 1
    assert desk.places == 0
    assert desk.offered.empty()


async def test_a_prompt_that_is_too_long_is_told_both_numbers(desk: FakeDesk) -> None:
    prompt = [7] * 1020
    async with serving(desk) as served, served.openai() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model="tiny", prompt=prompt, max_tokens=5)
    assert refused.value.code == "context_length_exceeded"
    assert "1024 tokens together" in str(refused.value)
    assert "1025 (1020 in the prompt, 5 to come)" in str(refused.value)


async def test_a_refused_offer_ends_the_choices_offered_before(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        desk.refuse_offer_after = 2
        desk.refuse_offer = InvalidRequest("no executor could ever hold it", param="n")
        connection = await served.ask(n=4)
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 400
    assert answer.json()["error"]["message"] == "no executor could ever hold it"
    assert [(end.outcome, end.reason) for end in desk.ends] == [
        (Outcome.CANCELLED, "sibling_failed")
    ] * 2
    assert desk.places == 0


async def test_before_the_model_is_loaded_it_is_a_503(desk: FakeDesk) -> None:
    desk.loading = NotReady("the model is still loading", retry_after_s=1.0)
    async with serving(desk) as served, served.openai() as client:
        with pytest.raises(openai.InternalServerError) as refused:
            await client.chat.completions.create(model="tiny", messages=QUESTION)
        models = [model.id async for model in await client.models.list()]
    assert refused.value.status_code == 503
    assert refused.value.code == "not_ready"
    assert desk.places == 0
    assert models == ["tiny"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("outcome", "reason", "status", "code"),
    [
        (Outcome.EXPIRED, "start_by", 429, "deadline_exceeded"),
        (Outcome.EXPIRED, "finish_by", 504, "deadline_exceeded"),
        (Outcome.EXPIRED, "late", 429, "deadline_exceeded"),
        (Outcome.REJECTED, "evicted", 429, "rate_limit_exceeded"),
        (Outcome.REJECTED, "shed", 429, "shed"),
        (Outcome.REJECTED, "infeasible", 429, "infeasible"),
        (Outcome.CANCELLED, "draining", 503, "draining"),
        (Outcome.CANCELLED, "admin", 500, "cancelled"),
        (Outcome.FAILED, "executor_failed", 500, "executor_failed"),
        (Outcome.FAILED, "does_not_fit", 400, "context_length_exceeded"),
    ],
)
async def test_an_end_before_the_first_token_is_a_status_of_its_own(
    desk: FakeDesk, stream: bool, outcome: Outcome, reason: str, status: int, code: str
) -> None:
    async with serving(desk) as served:
        connection = await served.ask(stream=stream)
        request = await desk.offered.get()
        desk.end(request.id, outcome, reason, detail="words for the public")
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["code"] == code
    assert "words for the public" in error["message"]
    assert answer.headers.get("retry-after") == ("1" if status in (429, 503) else None)


@pytest.mark.parametrize(
    ("outcome", "reason", "words"),
    [
        (Outcome.EXPIRED, "start_by", "the request waited until its deadline and was not begun"),
        (Outcome.EXPIRED, "late", "the request could no longer begin in time"),
        (Outcome.REJECTED, "evicted", "the request made room for others of a higher tier"),
        (
            Outcome.REJECTED,
            "shed",
            "the request was turned away because higher tiers are in need",
        ),
        (Outcome.REJECTED, "infeasible", "the request could not begin before its deadline"),
    ],
)
async def test_an_end_in_the_queue_has_words_where_the_core_gives_none(
    desk: FakeDesk, outcome: Outcome, reason: str, words: str
) -> None:
    async with serving(desk) as served:
        connection = await served.ask()
        request = await desk.offered.get()
        desk.end(request.id, outcome, reason)
        answer = await connection.answer()
        await connection.leave()
    assert answer.json()["error"]["message"] == words


@pytest.mark.parametrize(
    ("outcome", "reason"), [(Outcome.REJECTED, "evicted"), (Outcome.EXPIRED, "late")]
)
async def test_what_loses_its_place_after_a_keep_alive_is_told_in_the_stream(
    desk: FakeDesk, outcome: Outcome, reason: str
) -> None:
    async with serving(desk, keep_alive_after_s=0.01) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        status, _ = await connection.head()
        assert await connection.chunk() == b": keep-alive\n\n"
        desk.end(request.id, outcome, reason, detail="words for the public")
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        await connection.leave()
    assert status == 200
    last = body.decode().split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "words for the public"
    assert b"[DONE]" not in body


async def test_a_failure_after_the_first_token_is_an_event_and_never_a_clean_end(
    desk: FakeDesk,
) -> None:
    async with serving(desk) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        desk.say(request.id, [70])
        status, headers = await connection.head()
        desk.end(request.id, Outcome.FAILED, "executor_failed", detail="its executor died")
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        # The stream is over and the connection is not: a client has put it back for its next one.
        connection.writer.write(b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await connection.head())[0] == 200
        await connection.leave()
    assert (status, headers["content-type"]) == (200, "text/event-stream")
    assert b"[DONE]" not in body
    assert b'finish_reason":"' not in body
    last = body.decode().split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: ")) == {
        "error": {
            "message": "its executor died",
            "type": "server_error",
            "param": None,
            "code": "executor_failed",
        }
    }


async def test_the_official_client_raises_the_error_of_a_stream(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        pending = client.chat.completions.create(model="tiny", messages=QUESTION, stream=True)
        stream, _ = await asyncio.gather(pending, _say_then_fail(desk))
        with pytest.raises(openai.APIError, match="its executor died"):
            async for _chunk in stream:
                pass


async def _say_then_fail(desk: FakeDesk) -> None:
    request = await desk.offered.get()
    desk.say(request.id, [70])
    desk.end(request.id, Outcome.FAILED, "executor_failed", detail="its executor died")


@pytest.mark.parametrize("stream", [False, True])
async def test_when_one_choice_fails_the_others_are_cancelled(desk: FakeDesk, stream: bool) -> None:
    async with serving(desk) as served:
        connection = await served.ask(n=3, stream=stream)
        requests = [await desk.offered.get() for _ in range(3)]
        desk.end(requests[1].id, Outcome.FAILED, "executor_failed", detail="its executor died")
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 500
    assert [(end.request.id[-1], end.outcome) for end in desk.ends] == [
        ("1", Outcome.FAILED),
        ("0", Outcome.CANCELLED),
        ("2", Outcome.CANCELLED),
    ]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/embeddings", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/metrics", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods_are_json_errors(
    desk: FakeDesk, method: str, path: str, status: int, code: str
) -> None:
    async with serving(desk) as served:
        connection = await served.send(path, method=method)
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == status
    assert answer.json()["error"]["code"] == code
    assert ("allow" in answer.headers) == (status == 405)


async def test_a_body_beyond_the_bound_is_a_413(desk: FakeDesk) -> None:
    async with serving(desk, max_body_bytes=1000) as served:
        connection = await served.ask(user="x" * 1000)
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 413
    assert answer.json()["error"]["code"] == "payload_too_large"
    assert "1000 bytes" in answer.json()["error"]["message"]


async def test_an_unforeseen_error_is_a_500_that_tells_nothing_private(
    desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(desk, "reserve", broken)
    async with serving(desk) as served:
        connection = await served.ask()
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert answer.json()["error"]["code"] == "internal_error"


async def test_an_unknown_model_is_told_which_are_served(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-0", messages=QUESTION)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    assert desk.permits == []


@pytest.mark.parametrize(
    ("given", "echoed"),
    [("abc-123", True), ("with space", False), ("x" * 129, False), ("ümlaut", False)],
)
async def test_a_request_id_is_echoed_if_it_is_fit_for_a_header(
    desk: FakeDesk, given: str, echoed: bool
) -> None:
    async with serving(desk) as served:
        connection = await served.send(
            "/nowhere",
            method="GET",
            headers={"X-Request-Id": given, "traceparent": "00-0af7651916cd43dd8448eb211c80319c"},
        )
        answer = await connection.answer()
        await connection.leave()
    assert (answer.headers["x-request-id"] == given) == echoed
    assert answer.headers["x-request-id"].startswith("req_") != echoed
