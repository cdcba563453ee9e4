"""What a body may say: every bad value is named, every harmless one is let through."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from controller.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from executor.contract import Feature, Sampling
from gateway.bodies import Body, BodyReader, ChatBody, CompletionBody
from gateway.parameters import check_supported, sampling_of, stops_of, wanted_tokens
from gateway.preparing import Preparer
from gateway.prompts import chat_messages, fitted, prompt_count, prompts_of
from tests.gateway.fake_desk import CAPACITY, EVERY_SAMPLING
from tests.gateway.tiny_text import text_model

MESSAGES = [{"role": "user", "content": "hi"}]


def _chat(**fields: Any) -> ChatBody:
    return BodyReader(ChatBody).read(json.dumps({"messages": MESSAGES} | fields).encode())


def _text(**fields: Any) -> CompletionBody:
    return BodyReader(CompletionBody).read(json.dumps({"prompt": "hi"} | fields).encode())


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"messages": []}, "messages", "length >= 1"),
        ({"messages": ["hi"]}, "messages[0]", "expected object, got str"),
        ({"messages": None}, "messages", "expected array, got null"),
        ({"temperature": 2.5}, "temperature", "<= 2"),
        ({"temperature": "hot"}, "temperature", "expected float, got str"),
        ({"top_p": 0}, "top_p", "> 0"),
        ({"top_k": -2}, "top_k", ">= -1"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": True}, "n", "expected int, got bool"),
        ({"max_tokens": 0}, "max_tokens", ">= 1"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens", "expected int, got float"),
        ({"seed": 2**63}, "seed", "<= 9223372036854775807"),
        ({"stop": 5}, "stop", "expected str | array, got int"),
        ({"stop": ["a", 5]}, "stop[1]", "expected str, got int"),
        ({"stream": "yes"}, "stream", "expected bool, got str"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "bool"),
        ({"presence_penalty": 3}, "presence_penalty", "<= 2"),
        ({"service_tier": 1}, "service_tier", "expected str, got int"),
    ],
)
def test_a_bad_value_is_named_with_what_would_be_right(
    fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        _chat(**fields)
    assert refused.value.param == param
    assert str(refused.value).startswith(f"{param}: ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b'{"messages": [', "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b'{"temperature": NaN}', "not valid JSON"),
        (b'{"temperature": 1e999}', "not valid JSON"),
        (b"[]", "should be a JSON object"),
        (b"{}", "messages: this field is required"),
        (b'{"x":' * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_object_is_a_bad_request(raw: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        BodyReader(ChatBody).read(raw)


def test_an_unknown_field_is_tolerated_and_logged_once() -> None:
    reader = BodyReader(ChatBody)
    with capture_logs() as logs:
        for extra in ({"store": True}, {"store": True, "metadata": {}}, {}):
            reader.read(json.dumps({"messages": MESSAGES} | extra).encode())
    assert [entry["field"] for entry in logs] == ["store", "metadata"]


def test_invented_field_names_do_not_fill_the_log() -> None:
    reader = BodyReader(ChatBody)
    with capture_logs() as logs:
        for batch in range(3):
            fields = {f"f{batch}-{index}": 1 for index in range(500)}
            reader.read(json.dumps({"messages": MESSAGES} | fields).encode())
    assert len(logs) == 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1},
        {"logprobs": False, "top_logprobs": 0, "logit_bias": {}, "min_p": 0},
        {"tools": [], "response_format": {"type": "text"}},
        {"tools": [{"type": "function"}], "tool_choice": "none"},
        {"temperature": 1, "top_p": 1, "top_k": -1, "ignore_eos": False, "min_tokens": 0},
        {"stop_token_ids": [], "stream_options": {"continuous_usage_stats": True}},
    ],
)
def test_a_value_that_asks_for_nothing_is_fine_on_any_executor(fields: dict[str, Any]) -> None:
    body = _chat(**fields)
    check_supported(body, frozenset())
    assert sampling_of(body, frozenset(), max_new_tokens=1).temperature == 0.0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"min_p": 0.1}, "min_p"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        check_supported(_chat(**fields), EVERY_SAMPLING)
    assert refused.value.param == param
    assert refused.value.code == "unsupported_parameter"
    assert "leave it out" in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True}, "echo"),
        ({"logprobs": 0}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3, "n": 2}, "best_of"),
    ],
)
def test_what_a_text_cannot_have_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        check_supported(_text(**fields), EVERY_SAMPLING)
    assert refused.value.param == param


def test_a_feature_of_the_executor_is_let_through() -> None:
    check_supported(_chat(min_p=0.1), EVERY_SAMPLING | {Feature.MIN_P})
    check_supported(_text(best_of=2, n=2, echo=False), EVERY_SAMPLING)


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "seed", "min_tokens"])
def test_sampling_needs_its_feature(name: str) -> None:
    body = _chat(**{name: 0.5 if name in ("temperature", "top_p") else 3})
    with pytest.raises(UnsupportedParameter, match=name):
        check_supported(body, EVERY_SAMPLING - {Feature(name)})


def test_sampling_is_what_the_body_says() -> None:
    body = _chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=-1,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[5, 6],
    )
    assert sampling_of(body, EVERY_SAMPLING, max_new_tokens=9) == Sampling(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        seed=2**63 - 1,
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=(5, 6),
    )


def test_without_a_seed_each_request_gets_its_own() -> None:
    body = _chat()
    first, second = (sampling_of(body, EVERY_SAMPLING, max_new_tokens=9) for _ in range(2))
    assert (first.temperature, first.top_p, first.top_k) == (1.0, 1.0, 0)
    assert first.seed != second.seed


def test_stop_is_one_string_or_up_to_four() -> None:
    assert stops_of(_chat()) == ()
    assert stops_of(_chat(stop="a")) == ("a",)
    assert stops_of(_chat(stop=["a", "b", "c", "d"])) == ("a", "b", "c", "d")
    for bad, words in ((["a"] * 5, "up to 4"), ("", "1 to 1024"), (["x" * 1025], "1 to 1024")):
        with pytest.raises(InvalidRequest, match=words):
            stops_of(_chat(stop=bad))


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (_chat(), None),
        (_chat(max_tokens=5), 5),
        (_chat(max_tokens=5, max_completion_tokens=7), 7),
        (_text(), 16),
        (_text(max_tokens=5), 5),
    ],
)
def test_how_many_tokens_are_wanted(body: Body, wanted: int | None) -> None:
    assert wanted_tokens(body) == wanted


@pytest.mark.parametrize(
    ("fields", "length", "expected"),
    [
        ({}, 99, (99, 1)),
        ({"max_tokens": 40}, 60, (60, 40)),
        ({"max_tokens": 40, "truncate_prompt_tokens": 10}, 500, (10, 40)),
        ({"max_tokens": 40, "truncate_prompt_tokens": -1}, 500, (60, 40)),
        ({"truncate_prompt_tokens": -1}, 500, (99, 1)),
        ({"truncate_prompt_tokens": 10}, 5, (5, 95)),
    ],
)
def test_prompt_and_completion_share_the_window(
    fields: dict[str, Any], length: int, expected: tuple[int, int]
) -> None:
    ids = list(range(length))
    prompt, new_tokens = fitted(ids, _chat(**fields), 100)
    assert (len(prompt), new_tokens) == expected
    assert prompt == ids[-len(prompt) :]


@pytest.mark.parametrize(
    ("fields", "length", "error"),
    [
        ({}, 100, ContextLengthExceeded),
        ({"max_tokens": 41}, 60, ContextLengthExceeded),
        ({"max_tokens": 100, "truncate_prompt_tokens": -1}, 60, ContextLengthExceeded),
        ({"max_tokens": 95, "truncate_prompt_tokens": 10}, 60, ContextLengthExceeded),
        ({"truncate_prompt_tokens": 0}, 60, InvalidRequest),
        ({}, 0, InvalidRequest),
    ],
)
def test_what_does_not_fit_the_window_is_refused(
    fields: dict[str, Any], length: int, error: type[InvalidRequest]
) -> None:
    with pytest.raises(error):
        fitted(list(range(length)), _chat(**fields), 100)


def test_messages_become_what_templates_read() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert chat_messages(
        [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": None},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ]
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "hi"}, "messages[0].role"),
        ({"role": ["user"], "content": "hi"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0]"),
        ({"role": "user", "content": ["hi"]}, "messages[0].content[0]"),
    ],
)
def test_a_bad_message_is_named(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        chat_messages([message])
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (["a", [3]], ["a", [3]]),
    ],
)
def test_a_prompt_has_four_forms(prompt: Any, expected: list[Any]) -> None:
    body = _text(prompt=prompt)
    assert prompts_of(body, 10) == expected
    assert prompt_count(body) == len(expected)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [([], "prompt"), ([1, "a"], "prompt"), ([10], "prompt"), ([[1], [10]], "prompt[1]")],
)
def test_a_bad_prompt_is_named(prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        prompts_of(_text(prompt=prompt), 10)
    assert refused.value.param == param


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system"]) | VALUES, "content": st.text() | VALUES}
)
SOME = st.text(max_size=3) | st.integers(-1, 5) | st.booleans()


@cache
def _prepared() -> tuple[Preparer, Any]:
    return Preparer(), text_model()


@settings(max_examples=300)
@given(
    st.sampled_from([ChatBody, CompletionBody]),
    st.dictionaries(
        st.sampled_from(sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__})),
        SOME | VALUES,
        max_size=4,
    ),
    st.lists(MESSAGE | VALUES, max_size=3),
    st.text(max_size=5) | st.lists(SOME | st.lists(SOME, max_size=2), max_size=3) | VALUES,
)
def test_any_body_is_either_prepared_or_refused_as_a_bad_request(
    kind: type[Body], fields: dict[str, Any], messages: list[Any], prompt: Any
) -> None:
    preparer, model = _prepared()
    body = {"messages": messages, "prompt": prompt} | fields
    raw = json.dumps(body).encode("utf-8", "surrogatepass")
    try:
        read = BodyReader(kind).read(raw)
        prompt_count(read)
        wanted_tokens(read)
        prepared = asyncio.run(preparer.prepare(read, model, capacity=CAPACITY, raw=b""))
    except InvalidRequest:
        return
    assert all(0 < len(ids) + new <= 1024 for ids, new in prepared.prompts)
