"""What engines' streams say, in all the forms in which they say it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Refusal
from executor.upstream_events import (
    BadStream,
    Chunk,
    Counter,
    EventParser,
    only_greets,
    parse,
    refusal,
)

STREAM = (
    b': a comment\r\n\r\ndata: {"a":1}\r\n\r\nevent: message\nid: 7\ndata:two\n'
    b"data: lines\n\n\n\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a":1}', b"two\nlines", b"[DONE]"]


def chunk(**fields: Any) -> Chunk:
    return parse(json.dumps(fields).encode())


def chat(delta: Any, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def text(words: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": words, "finish_reason": reason}]}


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    parser, found = EventParser(), []
    places = [0, *sorted(cuts), len(STREAM)]
    for begin, end in pairwise(places):
        found += parser.feed(STREAM[begin:end])
    assert found == EVENTS


def test_an_event_that_the_end_cut_short_of_its_empty_line_is_whole() -> None:
    parser = EventParser()
    assert parser.feed(b"data: last") == []
    assert parser.finish() == [b"last"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"choices": 5}', b'"text"'])
def test_what_is_no_event_of_a_completion_is_told(data: bytes) -> None:
    with pytest.raises(BadStream, match="is no event of a completion"):
        parse(data)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        (chat({"role": "assistant", "content": ""}), 0),
        (chat({"role": "assistant", "content": None}), 0),
        (chat({"content": "hi"}), 1),
        # TGI says who speaks with every token.
        (chat({"role": "assistant", "content": "hi"}), 1),
        # A token whose text is not whole yet.
        (chat({"content": ""}), 1),
        (chat({}, "stop"), 0),
        (chat({"content": ""}, "stop"), 0),
        (chat({"content": "!"}, "stop"), 1),
        (chat({"reasoning_content": "so"}), 1),
        (chat({"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}), 1),
        (text("hi"), 1),
        (text(""), 1),
        (text("", "stop"), 0),
        (text("hi", "length"), 1),
        ({"choices": []}, 0),
        ({"choices": None, "usage": None}, 0),
    ],
)
def test_an_event_with_text_is_a_token(fields: dict[str, Any], tokens: int) -> None:
    assert Counter().take(chunk(**fields)) == tokens


def test_the_engines_own_count_goes_before_ours() -> None:
    counter = Counter()
    assert counter.take(chunk(**chat({"content": "a"}), usage={"completion_tokens": 3})) == 3
    assert counter.take(chunk(**chat({"content": "b"}))) == 1
    assert counter.take(chunk(choices=[], usage={"completion_tokens": 6})) == 2
    # What was counted too much cannot be taken back.
    assert counter.take(chunk(choices=[], usage={"completion_tokens": 2})) == 0
    assert counter.tokens == 6


def test_only_an_event_without_content_is_a_greeting() -> None:
    greets = [
        only_greets((chunk(**fields).choices or [{}])[0])
        for fields in (
            chat({"role": "assistant"}),
            chat({"role": "assistant", "content": ""}),
            chat({"role": "assistant", "content": "hi"}),
            chat({"content": ""}),
            text(""),
        )
    ]
    assert greets == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            {"error": {"message": "m", "type": "t", "param": "p", "code": "c"}},
            Refusal(400, "m", "t", "c", "p"),
        ),
        ({"error": {"message": "m", "code": 400}}, Refusal(400, "m", code="400")),
        ({"object": "error", "message": "m", "type": "t"}, Refusal(400, "m", "t")),
        ({"error": "m", "error_type": "validation"}, Refusal(400, "m")),
        ({"detail": "m"}, Refusal(400, "m")),
        ({"detail": [{"loc": ["body"], "msg": "m"}]}, Refusal(400, '[{"loc":["body"],"msg":"m"}]')),
        ({}, Refusal(400, "the engine answered 400")),
    ],
)
def test_errors_are_understood_in_every_form(body: Any, told: Refusal) -> None:
    assert refusal(400, json.dumps(body).encode()) == told


def test_an_error_that_is_no_json_is_its_text() -> None:
    assert refusal(502, b" bad gateway \n") == Refusal(502, "bad gateway")
    assert refusal(502, b"") == Refusal(502, "the engine answered 502")
