"""What a client sees when its request makes room for a higher tier on the way: nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.assembly import Parts
from tests.e2e.client import Answer, Client, conserved
from tests.e2e.daemon import STEADY, settings
from tests.e2e.inside import inside

# So long that a paid request cannot wait until it ends by itself.
TOKENS = 160
CONFIG = settings(
    limits={"max_batch_size": 1, "max_batch_tokens": 2048, "wait_timeout": "0s"},
    tiers={
        "paid": {
            "priority": 20,
            "service_tier": "priority",
            "targets": {"ttft": "100ms", "itl": None, "e2e": None, "attainment": 0.99},
        },
        "offline": {"priority": 0, "service_tier": "flex", "targets": {"e2e": "10m"}},
    },
    executors=[STEADY | {"a": "5ms"}],
)


async def offline(
    client: Client, begun: asyncio.Event | None = None, **rules: Any
) -> tuple[Answer, list[str]]:
    """A streamed completion, and its pieces; `begun` is set when there are twenty."""
    pieces: list[str] = []

    def on_text(text: str) -> None:
        pieces.append(text)
        if begun is not None and len(pieces) == 20:
            begun.set()

    answer = await client.ask(
        "a long job",
        tokens=TOKENS,
        stream=True,
        seed=3,
        service_tier="flex",
        stream_options={"include_usage": True},
        on_text=on_text,
        **rules,
    )
    return answer, pieces


async def interrupted(parts: Parts, client: Client, **rules: Any) -> tuple[Answer, list[str]]:
    """The same while a paid request takes its seat."""
    begun = asyncio.Event()
    stream = asyncio.create_task(offline(client, begun, **rules))
    await begun.wait()
    (request,) = parts.dispatcher.batcher.book.requests.values()
    paid = await client.ask(tokens=5, service_tier="priority")
    assert (paid.ended, paid.record["usage"]["completion_tokens"]) == ("done", 5)
    assert not stream.done()
    answer = await stream
    assert (request.preemptions, request.attempt) == (1, 2)
    return answer


def usage(answer: Answer) -> tuple[int, int]:
    """Tokens of the prompt and of the completion, as the last chunk of a stream says."""
    told = answer.record["usage"]
    return told["prompt_tokens"], told["completion_tokens"]


async def test_a_stream_that_made_room_is_unbroken_and_its_usage_is_of_what_was_asked() -> None:
    async with inside(CONFIG) as (parts, client):
        expected, whole = await offline(client)
        answer, pieces = await interrupted(parts, client)
        assert answer.text == expected.text
        # Not sent together at the end either: a piece a token that ends a character.
        assert pieces == whole
        assert (answer.ended, answer.finish_reason) == ("done", "length")
        assert usage(answer) == usage(expected) == (len("a long job"), TOKENS)
        state = await client.state()
        assert conserved(state)
        assert state["requests"]["finished"] == 3


@pytest.mark.parametrize("kind", ["stop", "stop_token_ids"])
async def test_a_text_that_made_room_stops_where_it_would_have(kind: str) -> None:
    async with inside(CONFIG) as (parts, client):
        text = (await offline(client))[0].text
        if kind == "stop":
            at = next(i for i in range(90, len(text)) if text.index(text[i : i + 9]) == i)
            rules: dict[str, Any] = {"stop": text[at : at + 9]}
        else:
            rules = {"stop_token_ids": [text.encode()[110]], "min_tokens": 100}
        expected, _ = await offline(client, **rules)
        answer, _ = await interrupted(parts, client, **rules)
        assert (answer.text, usage(answer)) == (expected.text, usage(expected))
        assert (answer.finish_reason, expected.finish_reason) == ("stop", "stop")
        assert text.startswith(answer.text)
        assert 90 < usage(answer)[1] < TOKENS
