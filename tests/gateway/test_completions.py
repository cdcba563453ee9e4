"""Answers as the official client reads them: whole and streamed, chats and texts."""

from __future__ import annotations

import json

import openai
import pytest

from controller.request import Outcome, Request
from executor.contract import TextModel
from gateway.text import TokenLanguage
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import QUESTION, serving
from tests.gateway.tiny_text import SPECIAL

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test

ANSWER = "Paris, naturally. 你好 🙂"
EOS = SPECIAL.index("<|im_end|>")


@pytest.fixture
def language(text: TextModel) -> TokenLanguage:
    return TokenLanguage(text)


@pytest.fixture
def desk(text: TextModel, language: TokenLanguage) -> FakeDesk:
    """Answers every request with the same words and an end-of-sequence token."""
    ids = [*language.encode(ANSWER, special=False), EOS]
    return FakeDesk(text, reply=lambda _: ids)


async def test_a_chat_is_answered_whole(desk: FakeDesk, language: TokenLanguage) -> None:
    async with serving(desk) as served, served.openai() as client:
        raw = await client.chat.completions.with_raw_response.create(
            model="tiny", messages=QUESTION, extra_headers={"x-request-id": "mine-1"}
        )
        answer = raw.parse()
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.id.startswith("chatcmpl-")
    assert answer.service_tier == "default"
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "stop")
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    prompt = language.encode(language.render(QUESTION), special=False)
    generated = len(language.encode(ANSWER, special=False)) + 1
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == generated
    assert answer.usage.total_tokens == len(prompt) + generated
    assert raw.headers["x-request-id"] == "mine-1"


async def test_a_stream_has_role_text_reason_and_usage_in_this_order(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        stream = await client.chat.completions.create(
            model="tiny",
            messages=QUESTION,
            stream=True,
            service_tier="priority",
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    first, *middle, last, usage = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in middle) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in middle] == [None] * len(middle)
    assert last.choices[0].finish_reason == "stop"
    assert usage.choices == []
    assert usage.usage is not None
    assert usage.usage.completion_tokens == len(desk.ends[0].request.tokens)
    assert {chunk.service_tier for chunk in chunks} == {"priority"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_a_stream_ends_with_done_and_asks_proxies_not_to_keep_it(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        connection = await served.stream()
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.events()[-1] == "[DONE]"
    assert "usage" not in json.loads(answer.events()[0])


async def test_a_connection_carries_one_stream_after_another(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        for _ in range(3):
            stream = await client.completions.create(
                model="tiny", prompt="The capital", stream=True, max_tokens=64
            )
            text = "".join([chunk.choices[0].text async for chunk in stream])
            assert text == ANSWER


async def test_http_1_0_gets_a_stream_without_chunks(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        connection = await served.send(
            "/v1/chat/completions", {"messages": QUESTION, "stream": True}, version="1.0"
        )
        answer = await connection.answer()
        await connection.leave()
    assert "transfer-encoding" not in answer.headers
    assert answer.events()[-1] == "[DONE]"


async def test_a_stop_string_that_spans_tokens_ends_the_text_before_it(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        whole = await client.chat.completions.create(
            model="tiny", messages=QUESTION, stop=["nowhere", "s, nat"]
        )
        stream = await client.chat.completions.create(
            model="tiny", messages=QUESTION, stop="s, nat", stream=True
        )
        streamed = [chunk.choices[0] async for chunk in stream]
    assert whole.choices[0].message.content == "Pari"
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(choice.delta.content or "" for choice in streamed) == "Pari"
    assert streamed[-1].finish_reason == "stop"
    assert [(end.outcome, end.reason) for end in desk.ends] == [(Outcome.FINISHED, "stop")] * 2
    # What was generated up to the stop string is what is counted, and no more is generated.
    assert whole.usage is not None
    assert whole.usage.completion_tokens == len(desk.ends[0].request.tokens)


async def test_tokens_after_a_stop_string_are_neither_text_nor_counted(
    text: TextModel, language: TokenLanguage
) -> None:
    desk = FakeDesk(text)
    async with serving(desk) as served:
        connection = await served.ask(stop="!")
        request = await desk.offered.get()
        sink = desk.sinks[request.id]
        ids = language.encode("so!", special=False)
        desk.say(request.id, ids)
        sink.on_tokens(language.encode(" more", special=False), 101.0)
        answer = (await connection.answer()).json()
        await connection.leave()
    assert answer["choices"][0]["message"]["content"] == "so"
    assert answer["usage"]["completion_tokens"] == len(ids)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_at_the_very_end_is_the_reason(
    text: TextModel, language: TokenLanguage, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    desk = FakeDesk(text)
    monkeypatch.setattr(desk, "cancel", lambda *_: False)  # the step was its last one anyway
    async with serving(desk) as served:
        connection = await served.ask(stop="!", stream=stream)
        request = await desk.offered.get()
        desk.say(request.id, language.encode("so!", special=False))
        desk.finish(request.id, "length")
        answer = await connection.answer()
        await connection.leave()
    last = json.loads(answer.events()[-2]) if stream else answer.json()
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_max_tokens_ends_a_completion_for_its_length(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        answer = await client.completions.create(model="tiny", prompt="The", max_tokens=2)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2


async def test_n_makes_n_requests_with_seeds_in_a_row(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        answer = await client.chat.completions.create(
            model="tiny", messages=QUESTION, n=3, seed=2**63 - 2
        )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {choice.message.content for choice in answer.choices} == {ANSWER}
    requests = [end.request for end in desk.ends]
    assert [request.sampling.seed for request in requests] == [2**63 - 2, 2**63 - 1, 0]
    assert [request.id for request in requests] == [f"{answer.id}-{index}" for index in range(3)]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(requests[0].prompt)
    assert answer.usage.completion_tokens == 3 * len(requests[0].tokens)


async def test_n_streams_share_one_connection(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        stream = await client.chat.completions.create(
            model="tiny", messages=QUESTION, n=2, stream=True
        )
        texts: list[str] = ["", ""]
        reasons: list[str | None] = [None, None]
        async for chunk in stream:
            [choice] = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [ANSWER, ANSWER]
    assert reasons == ["stop", "stop"]


async def test_a_list_of_prompts_has_n_choices_for_each(
    text: TextModel, language: TokenLanguage
) -> None:
    def echo(request: Request) -> list[int]:
        return list(request.prompt[1:])  # without the token in front of every text

    desk = FakeDesk(text, reply=echo)
    async with serving(desk) as served, served.openai() as client:
        answer = await client.completions.create(model="tiny", prompt=["red", "blue"], n=2)
    assert [(choice.index, choice.text) for choice in answer.choices] == [
        (0, "red"),
        (1, "red"),
        (2, "blue"),
        (3, "blue"),
    ]
    prompts = [language.encode(word, special=True) for word in ("red", "blue")]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(len(prompt) for prompt in prompts)


async def test_a_prompt_of_token_ids_is_taken_as_it_is(desk: FakeDesk) -> None:
    async with serving(desk) as served, served.openai() as client:
        await client.completions.create(model="tiny", prompt=[5, 6, 7])
        await client.completions.create(model="tiny", prompt=[[5, 6], [7]])
    assert [end.request.prompt for end in desk.ends] == [[5, 6, 7], [5, 6], [7]]


async def test_without_max_tokens_a_chat_may_fill_the_window_and_a_text_has_16(
    desk: FakeDesk,
) -> None:
    async with serving(desk, expected_new_tokens=100) as served, served.openai() as client:
        await client.chat.completions.create(model="tiny", messages=QUESTION)
        await client.completions.create(model="tiny", prompt="The")
    chat, completion = (end.request for end in desk.ends)
    assert chat.max_new_tokens == 1024 - len(chat.prompt)
    assert chat.expected_new_tokens == 100
    assert completion.max_new_tokens == 16
    assert completion.expected_new_tokens is None


async def test_a_request_carries_its_tier_client_and_deadlines(desk: FakeDesk) -> None:
    async with serving(desk) as served:
        for tier in ("default", "priority"):
            connection = await served.ask(service_tier=tier)
            await connection.answer()
            await connection.leave()
    free, paid = (end.request for end in desk.ends)
    assert (free.tier, free.client, free.arrival) == ("free", "anonymous", 100.0)
    assert (free.start_by, free.finish_by) == (160.0, None)
    assert (paid.tier, paid.start_by, paid.finish_by) == ("paid", None, 700.0)


async def test_half_a_character_is_never_sent(text: TextModel, language: TokenLanguage) -> None:
    desk = FakeDesk(text)
    bus = language.encode("🚂", special=False)
    assert len(bus) == 3
    async with serving(desk) as served:
        connection = await served.stream()
        request = await desk.offered.get()
        for token in bus:
            desk.say(request.id, [token])
        desk.say(request.id, bus[:2])
        desk.finish(request.id, "length")
        answer = await connection.answer()
        await connection.leave()
    contents = [json.loads(event)["choices"][0]["delta"] for event in answer.events()[:-1]]
    assert [delta.get("content") for delta in contents] == ["", "🚂", "\ufffd", None]


async def test_models_are_listed_with_their_window(desk: FakeDesk) -> None:
    async with serving(desk, models=("tiny", "org/tiny-2")) as served, served.openai() as client:
        models = [model.to_dict() async for model in await client.models.list()]
        one = await client.models.retrieve("org/tiny-2")
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("huge")
    assert models[0] == {
        "id": "tiny",
        "object": "model",
        "created": 1700000000,
        "owned_by": "headway",
        "max_model_len": 1024,
    }
    assert one.id == "org/tiny-2"
    assert missing.value.code == "model_not_found"
    assert "tiny or org/tiny-2" in str(missing.value)
