"""Log-probabilities and echoed prompts, whole and streamed, as the official client reads them."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest
from openai.types import CompletionChoice
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from executor.contract import Feature, Logprobs, TextModel, TokenLogprob
from gateway.text import TokenLanguage
from tests.gateway.fake_desk import CAPACITY, FakeDesk
from tests.gateway.serving import Raw, Served, serving
from tests.gateway.tiny_text import SPECIAL

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test

EOS = SPECIAL.index("<|im_end|>")


@pytest.fixture
def language(text: TextModel) -> TokenLanguage:
    return TokenLanguage(text)


@pytest.fixture
def desk(text: TextModel) -> FakeDesk:
    desk = FakeDesk(text)
    desk.capacity = msgspec.structs.replace(CAPACITY, features=frozenset(Feature))
    return desk


@pytest.fixture
async def served(desk: FakeDesk) -> AsyncIterator[Served]:
    async with serving(desk) as served:
        yield served


def told(ids: Sequence[int], top: Sequence[int] = (), *, first: int = 1) -> list[TokenLogprob]:
    """Made up: the n-th token has -n, those beside it -1, -2 and so on."""
    beside = [(token, -1.0 - rank) for rank, token in enumerate(top)]
    return [TokenLogprob(-float(first + place), beside) for place in range(len(ids))]


async def text_asked(served: Served, **fields: Any) -> Raw:
    return await served.send("/v1/completions", {"prompt": "the fox", **fields})


async def test_a_chat_has_an_object_for_each_token_with_its_bytes(
    desk: FakeDesk, served: Served, language: TokenLanguage
) -> None:
    connection = await served.ask(logprobs=True, top_logprobs=2)
    request = await desk.offered.get()
    assert request.sampling.logprobs == 2
    [the, half, other] = language.encode(" theé", special=False)
    desk.say(request.id, [the], Logprobs(told([the], [the, half])))
    ids = [half, other, EOS]
    desk.say(request.id, ids, Logprobs(told(ids, [EOS], first=2)))
    desk.finish(request.id)
    answer = (await connection.answer()).json()
    await connection.leave()
    [choice] = ChatCompletion.model_validate(answer).choices
    assert choice.message.content == " theé"
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [
        (one.token, one.bytes, one.logprob, [(top.token, top.bytes) for top in one.top_logprobs])
        for one in choice.logprobs.content
    ] == [
        (" the", list(b" the"), -1.0, [(" the", list(b" the")), ("\\xc3", [0xC3])]),
        ("\\xc3", [0xC3], -2.0, [("<|im_end|>", None)]),
        ("\\xa9", [0xA9], -3.0, [("<|im_end|>", None)]),
        ("<|im_end|>", None, -4.0, [("<|im_end|>", None)]),
    ]
    data = b"".join(bytes(one.bytes or []) for one in choice.logprobs.content)
    assert data.decode() == choice.message.content


async def test_a_streamed_chat_tells_with_each_event_of_the_tokens_that_came(
    desk: FakeDesk, served: Served, language: TokenLanguage
) -> None:
    connection = await served.stream(logprobs=True)
    request = await desk.offered.get()
    ids = language.encode("qué", special=False)
    for place, token in enumerate(ids):
        desk.say(request.id, [token], Logprobs(told([token], first=place + 1)))
    desk.finish(request.id)
    events = (await connection.answer()).events()
    await connection.leave()
    chunks = [ChatCompletionChunk.model_validate_json(event) for event in events[:-1]]
    choices = [chunk.choices[0] for chunk in chunks]
    assert [choice.delta.content for choice in choices] == ["", "qu", "", "é", None]
    found = [one.logprobs.content if one.logprobs else None for one in choices]
    numbers = [[entry.logprob for entry in content or []] for content in found]
    assert numbers == [[], [-1.0], [-2.0], [-3.0], []]
    assert choices[-1].finish_reason == "stop"


async def test_a_text_has_columns_and_each_token_its_place_in_the_text(
    desk: FakeDesk, served: Served, language: TokenLanguage
) -> None:
    connection = await text_asked(served, logprobs=2, max_tokens=8)
    request = await desk.offered.get()
    [the, half, other, quick] = language.encode(" theéqu", special=False)
    ids = [the, half, other, quick]
    desk.say(request.id, ids, Logprobs(told(ids, [quick, half])))
    desk.finish(request.id)
    answer = (await connection.answer()).json()
    await connection.leave()
    choice = CompletionChoice.model_validate(answer["choices"][0])
    assert choice.text == " theéqu"
    assert choice.logprobs is not None
    assert choice.logprobs.model_dump() == {
        "tokens": [" the", "bytes:\\xc3", "bytes:\\xa9", "qu"],
        "token_logprobs": [-1.0, -2.0, -3.0, -4.0],
        # The one that was chosen is always among them, as likely as it is said to be there.
        "top_logprobs": [
            {"qu": -1.0, "bytes:\\xc3": -2.0, " the": -1.0},
            {"qu": -1.0, "bytes:\\xc3": -2.0},
            {"qu": -1.0, "bytes:\\xc3": -2.0, "bytes:\\xa9": -3.0},
            {"qu": -1.0, "bytes:\\xc3": -2.0},
        ],
        "text_offset": [0, 4, 4, 5],
    }


async def test_an_impossible_token_has_a_number_that_json_can_carry(
    desk: FakeDesk, served: Served
) -> None:
    connection = await text_asked(served, logprobs=1)
    request = await desk.offered.get()
    desk.say(request.id, [70], Logprobs([TokenLogprob(-math.inf, [(71, -math.inf)])]))
    desk.finish(request.id)
    logprobs = (await connection.answer()).json()["choices"][0]["logprobs"]
    await connection.leave()
    assert logprobs["token_logprobs"] == [-9999.0]
    assert set(logprobs["top_logprobs"][0].values()) == {-9999.0}


@pytest.mark.parametrize("max_tokens", [0, 1])
async def test_an_echo_with_log_probabilities_is_what_evaluations_read(
    desk: FakeDesk, served: Served, language: TokenLanguage, max_tokens: int
) -> None:
    ids = language.encode("the fox", special=True)
    connection = await text_asked(
        served, prompt=[ids], echo=True, logprobs=1, max_tokens=max_tokens, temperature=0
    )
    request = await desk.offered.get()
    assert (request.prompt, request.max_new_tokens) == (ids, 1)
    assert request.sampling.prompt_logprobs
    [new] = language.encode("!", special=False)
    desk.say(request.id, [new], Logprobs(told([new], [new]), told(ids[1:], [ids[1]])))
    desk.finish(request.id, "length")
    answer = (await connection.answer()).json()
    await connection.leave()
    [choice] = answer["choices"]
    assert choice["text"] == "the fox" + "!" * max_tokens
    assert choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == max_tokens
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(ids) + max_tokens
    assert logprobs["tokens"][0] == "<s>"
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1 : len(ids)] == [-1.0 - i for i in range(len(ids) - 1)]
    for token, start in list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True))[1:]:
        assert choice["text"][start:].startswith(token)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_prompt_comes_first_and_stop_strings_are_looked_for_behind_it(
    desk: FakeDesk, served: Served, language: TokenLanguage, stream: bool
) -> None:
    connection = await text_asked(served, echo=True, stop="fox", stream=stream)
    request = await desk.offered.get()
    assert (request.sampling.logprobs, request.sampling.prompt_logprobs) == (None, False)
    for token in language.encode(" and fox", special=False):
        if request.id in desk.requests:
            desk.say(request.id, [token])
    answer = await connection.answer()
    await connection.leave()
    if stream:
        choices = [json.loads(event)["choices"][0] for event in answer.events()[:-1]]
        assert choices[0]["text"].startswith("the fox")
        text, reason = "".join(one["text"] for one in choices), choices[-1]["finish_reason"]
    else:
        [choice] = answer.json()["choices"]
        text, reason = choice["text"], choice["finish_reason"]
        assert choice["logprobs"] is None
    assert (text, reason) == ("the fox and ", "stop")


async def test_the_echo_of_a_text_is_that_text_whatever_its_tokens_spell(
    desk: FakeDesk, served: Served
) -> None:
    prompt = "the <|im_end|> fox"
    connection = await text_asked(served, prompt=prompt, echo=True, logprobs=0, max_tokens=5)
    request = await desk.offered.get()
    ids = request.prompt
    desk.say(request.id, [70], Logprobs(told([70]), told(ids[1:])))
    desk.finish(request.id, "length")
    [choice] = (await connection.answer()).json()["choices"]
    await connection.leave()
    assert choice["text"].startswith(prompt)
    assert choice["logprobs"]["text_offset"][-1] == len(prompt)


async def test_each_choice_begins_with_its_own_prompt(desk: FakeDesk, served: Served) -> None:
    connection = await text_asked(served, prompt=["red ", "blue "], n=2, echo=True, max_tokens=0)
    for _ in range(4):
        request = await desk.offered.get()
        desk.say(request.id, [70])
        desk.finish(request.id, "length")
    choices = (await connection.answer()).json()["choices"]
    await connection.leave()
    assert [choice["text"] for choice in choices] == ["red ", "red ", "blue ", "blue "]


async def test_of_a_prompt_that_was_cut_only_what_is_left_is_echoed(
    desk: FakeDesk, served: Served
) -> None:
    connection = await text_asked(served, echo=True, max_tokens=0, truncate_prompt_tokens=1)
    request = await desk.offered.get()
    desk.say(request.id, [70])
    desk.finish(request.id, "stop")
    [choice] = (await connection.answer()).json()["choices"]
    await connection.leave()
    assert 0 < len(choice["text"]) < len("the fox")
    assert "the fox".endswith(choice["text"])
    assert choice["finish_reason"] == "length"


async def test_half_a_character_of_the_prompt_is_completed_by_what_follows(
    desk: FakeDesk, served: Served, language: TokenLanguage
) -> None:
    first, second = language.encode("é", special=False)
    for said, max_tokens, text in (([second], 1, "é"), ([70], 0, "\ufffd")):
        connection = await text_asked(served, prompt=[first], echo=True, max_tokens=max_tokens)
        request = await desk.offered.get()
        desk.say(request.id, said)
        desk.finish(request.id, "length")
        [choice] = (await connection.answer()).json()["choices"]
        await connection.leave()
        assert choice["text"] == text


async def test_what_a_slow_reader_misses_comes_later_and_in_order(
    desk: FakeDesk, text: TextModel
) -> None:
    small = 4096
    async with serving(desk, send_buffer=small, stream_buffer_bytes=120_000) as served:
        connection = await served.stream(logprobs=True, receive_buffer=small)
        request = await desk.offered.get()
        desk.say(request.id, [70], Logprobs(told([70])))
        await connection.head()
        connection.pause()
        for number in range(2, 600):
            desk.say(request.id, [70], Logprobs(told([70], first=number)))
        desk.finish(request.id, "length")
        connection.resume()
        body = b""
        while chunk := await connection.chunk():
            body += chunk
        await connection.leave()
    assert len(body) > 120_000
    events = [json.loads(line[6:]) for line in body.decode().split("\n\n")[:-2]]
    content = [
        one["logprob"]
        for event in events
        for one in (event["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert content == [-float(number) for number in range(1, 600)]
