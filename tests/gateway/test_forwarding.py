"""What an engine that reads text by itself is asked, and how long its prompts are thought to be."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import Capacity
from gateway.bodies import BodyReader, ChatBody, CompletionBody
from gateway.forwarding import Forwarded, Guess, forward

CAPACITY = Capacity(
    model="m",
    device="d",
    max_seqs=4,
    max_step_tokens=512,
    kv_tokens=10_000,
    max_context_tokens=1000,
)


def chat(guess: Guess | None = None, **fields: Any) -> Forwarded:
    raw = json.dumps({"messages": [{"role": "user", "content": "x" * 384}], **fields}).encode()
    body = BodyReader(ChatBody).read(raw)
    return forward(body, raw, capacity=CAPACITY, guess=guess or Guess())


def text(prompt: Any, **fields: Any) -> Forwarded:
    raw = json.dumps({"prompt": prompt, **fields}).encode()
    body = BodyReader(CompletionBody).read(raw)
    return forward(body, raw, capacity=CAPACITY, guess=Guess())


def bodies(made: Forwarded) -> list[Any]:
    return [json.loads(msgspec.json.encode(ask.body)) for ask in made.asks]


def test_everything_is_passed_on_but_what_is_said_to_this_server() -> None:
    made = chat(
        model="ours", stream=True, stream_options={}, n=1, service_tier="auto", tools=[], weird=[1]
    )
    assert [ask.path for ask in made.asks] == ["/v1/chat/completions"]
    assert bodies(made) == [
        {"messages": [{"role": "user", "content": "x" * 384}], "tools": [], "weird": [1]}
    ]


def test_each_choice_is_asked_for_by_itself_with_a_seed_of_its_own() -> None:
    made = text(["red", [1, 2, 3]], n=2, seed=7, max_tokens=5)
    assert [ask.path for ask in made.asks] == ["/v1/completions"] * 4
    assert [(body["prompt"], body["seed"]) for body in bodies(made)] == [
        ("red", 7),
        ("red", 8),
        ([1, 2, 3], 9),
        ([1, 2, 3], 10),
    ]
    assert [(len(prompt), new) for prompt, new in made.prompts] == [(1, 5), (3, 5)]


def test_without_a_seed_none_is_made_up() -> None:
    assert [sorted(body) for body in bodies(text("hi", n=2))] == [["prompt"], ["prompt"]]


def test_a_guess_is_a_quarter_of_the_characters_until_an_engine_has_counted() -> None:
    guess = Guess()
    made = chat(guess)
    assert (len(made.prompts[0][0]), made.unbounded) == (100, True)
    for _ in range(100):
        made.learn[0](200)
    # Two characters a token, but for what is left of the first guess.
    assert len(chat(guess).prompts[0][0]) == 198


def test_token_ids_are_counted_and_teach_nothing() -> None:
    guess = Guess()
    made = text([5] * 40)
    assert len(made.prompts[0][0]) == 40
    made.learn[0](400)
    assert guess.tokens(400) == 100


def test_a_guess_turns_nobody_away() -> None:
    # 1,000 tokens are the window: what is asked for is believed, what is guessed gives way.
    assert [(len(p), n) for p, n in chat(max_tokens=950).prompts] == [(50, 950)]
    assert [(len(p), n) for p, n in chat(max_tokens=5000).prompts] == [(1, 999)]
    assert [(len(p), n) for p, n in text("x" * 100_000).prompts] == [(999, 1)]


def test_pictures_are_no_text() -> None:
    content = [{"type": "text", "text": "y" * 84}, {"type": "image_url", "image_url": {"url": "z"}}]
    made = chat(messages=[{"role": "user", "content": content}])
    assert len(made.prompts[0][0]) == 25


SOME = st.none() | st.booleans() | st.integers(0, 9) | st.text(max_size=4)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["role", "content"]), SOME | st.lists(SOME)), min_size=1
    ),
    st.text(max_size=5)
    | st.lists(st.integers(0, 9) | st.text(max_size=3) | st.just([1]), max_size=3),
    st.integers(1, 3),
)
def test_whatever_a_body_says_each_choice_has_something_to_ask(
    messages: list[Any], prompt: Any, n: int
) -> None:
    for made in (chat(messages=messages, n=n), text(prompt, n=n)):
        assert len(made.asks) == len(made.prompts) * n > 0
        assert len(made.learn) == len(made.prompts)
        assert all(len(p) > 0 and new > 0 and len(p) + new <= 1000 for p, new in made.prompts)


@pytest.mark.parametrize("weight", [1, 10**9])
def test_no_prompt_teaches_nonsense(weight: int) -> None:
    guess = Guess()
    guess.learn(weight, 1)
    guess.learn(1, weight)
    assert guess.tokens(10) >= 1
