"""The whole daemon before engines behind HTTP: what clients see, and what engines are spared."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from openai import AsyncOpenAI

from gateway.assembly import Parts
from tests.e2e.client import Answer, Client, conserved
from tests.e2e.inside import inside
from tests.executor.fake_engine import WORDS, FakeEngine, engine

CHAT = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = "".join(WORDS)


def settings(*engines: FakeEngine, seats: int = 4, **sections: Any) -> dict[str, Any]:
    return {
        "auth": {"default_tier": "paid"},
        "limits": {"max_batch_size": seats, "max_batch_tokens": 2048, "wait_timeout": "0s"},
        "control": {"policy": {"type": "static"}, "interval": "20ms"},
        "executors": [
            {
                "name": f"up-{index}",
                "kind": "upstream",
                "url": there.url,
                "scrape_interval": "50ms",
                "restart": {"first_delay": "20ms", "max_delay": "50ms"},
            }
            for index, there in enumerate(engines)
        ],
    } | sections


@asynccontextmanager
async def daemon(*engines: FakeEngine, **more: Any) -> AsyncIterator[tuple[Parts, Client]]:
    """One that is ready, and has lost nobody at its end."""
    async with inside(settings(*engines, **more)) as (parts, client):
        yield parts, client
        assert conserved(await client.state())


def _offered(count: int, state: dict[str, Any]) -> bool:
    return bool(state["requests"]["offered"] == count)


def openai(client: Client) -> AsyncOpenAI:
    base = str(client.session._base_url).rstrip("/")
    return AsyncOpenAI(base_url=f"{base}/v1", api_key="any", max_retries=0)


async def chat(client: Client, **fields: Any) -> tuple[int, Any]:
    body = {"messages": CHAT, **fields}
    async with client.session.post("/v1/chat/completions", json=body) as response:
        return response.status, await response.json()


async def stream(client: Client, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
    """The data of every event."""
    body = {"stream": True, **fields}
    if path.endswith("chat/completions"):
        body = {"messages": CHAT} | body
    async with client.session.post(path, json=body) as response:
        assert response.content_type == "text/event-stream", await response.text()
        text = await response.text()
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [event if event == "[DONE]" else json.loads(event) for event in events]


# --- what clients see -----------------------------------------------------------------------


async def test_a_chat_is_streamed_word_for_word_with_the_engines_own_counts() -> None:
    async with engine() as there, daemon(there) as (_, client):
        events = await stream(client, stream_options={"include_usage": True}, max_tokens=10)
    *chunks, usage, done = events
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        *({"content": word} for word in WORDS),
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 10 + ["length"]
    assert {chunk["model"] for chunk in chunks} == {"their-model"}
    assert {chunk["service_tier"] for chunk in chunks} == {"priority"}
    assert usage["usage"] == {"prompt_tokens": 63, "completion_tokens": 10, "total_tokens": 73}
    assert done == "[DONE]"


async def test_the_official_client_reads_whole_and_streamed_answers() -> None:
    async with engine() as there, daemon(there) as (_, client), openai(client) as ours:
        whole = await ours.chat.completions.create(
            model="their-model", messages=[{"role": "user", "content": "hi"}], n=2
        )
        parts = await ours.completions.create(
            model="their-model", prompt=["a", "b"], stream=True, max_tokens=3
        )
        texts = {0: "", 1: ""}
        async for part in parts:
            texts[part.choices[0].index] += part.choices[0].text
    assert [choice.message.content for choice in whole.choices] == [TEXT, TEXT]
    assert [choice.finish_reason for choice in whole.choices] == ["stop", "stop"]
    assert whole.usage is not None
    # The prompt once, and both completions.
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (35, 20)
    assert texts == {0: "Paris is the", 1: "Paris is the"}
    assert [ask.body.get("n") for ask in there.asks] == [None] * 4


async def test_what_only_the_engine_understands_passes_in_both_directions() -> None:
    call = [
        {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
    ]
    rest = [{"index": 0, "function": {"arguments": "}"}}]
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Hm."},
        {"tool_calls": call},
        {"tool_calls": rest},
    ]
    content = [{"type": "image_url", "image_url": {"url": "data:,x"}}]
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": content}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "j"}},
        "guided_choice": ["a", "b"],
        "max_tokens": 3,
    }
    async with engine(extra_deltas=deltas) as there, daemon(there) as (_, client):
        status, record = await chat(client, **fields)
        events = await stream(client, **fields)
    for ask in there.asks:
        assert {name: ask.body[name] for name in fields} == fields
    assert (status, record["choices"][0]["message"]) == (
        200,
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
    )
    assert [event["choices"][0]["delta"] for event in events[1:-1]] == deltas


async def test_errors_of_the_request_are_the_engines_own_words() -> None:
    error = {"error": {"message": "too long", "type": "t", "param": "messages", "code": "c"}}
    async with engine(status=400, error=error) as there, daemon(there) as (_, client):
        assert await chat(client) == (400, error)
        assert await chat(client, stream=True) == (400, error)
        state = await client.state()
        signals = (await client.get("/admin/decisions"))[1]["decisions"][0]["signals"]
    assert (state["requests"]["failed"], len(there.asks)) == (2, 2)
    # A mistake of its client is no miss of the tier's targets.
    assert [verdict["misses"] for verdict in signals["tiers"][0]["verdicts"]] == [0, 0]


async def test_models_are_named_as_the_engine_does_unless_they_have_a_name_here() -> None:
    async with engine() as there:
        async with daemon(there) as (_, client):
            _, listed = await client.get("/v1/models")
            assert [one["id"] for one in listed["data"]] == ["their-model"]
            assert listed["data"][0]["max_model_len"] == 4096
            assert (await chat(client, model="ours"))[0] == 404
        named = settings(there)
        named["executors"][0]["served_name"] = "ours"
        async with inside(named) as (_, client):
            status, record = await chat(client, model="ours")
    assert (status, record["model"], there.asks[-1].body["model"]) == (200, "ours", "their-model")


# --- what engines are spared ----------------------------------------------------------------


async def test_there_is_never_more_in_flight_than_the_limit_whoever_leaves() -> None:
    lot = random.Random(7)

    async def ask(client: Client) -> None:
        patience_s = lot.choice([0.005, 0.02, 30.0])
        try:
            async with asyncio.timeout(patience_s):
                await client.ask(tokens=lot.randint(1, 8), stream=lot.random() < 0.5)
        except TimeoutError:
            pass

    async with engine() as there, daemon(there, seats=3) as (parts, client):
        await asyncio.gather(*(ask(client) for _ in range(120)))
        await client.until(lambda state: state["requests"]["running"] == 0, "an empty engine")
        await there.until(lambda: there.running == [])
        assert there.most_at_once == 3
        assert all(not seats.seats for seats in parts.dispatcher.batcher.executors.values())


async def test_a_client_that_leaves_frees_the_engines_seat() -> None:
    # BEHAVIOURS 38.
    async with engine(pace_s=None) as there, daemon(there, seats=1) as (_, client):
        leaving = asyncio.create_task(client.ask(tokens=9, stream=True))
        await there.until(lambda: len(there.running) == 1)
        there.step(2)
        staying = asyncio.create_task(client.ask(tokens=2))
        await client.until(lambda state: state["requests"]["queued"] == 1, "one that waits")
        leaving.cancel()
        await there.until(lambda: there.asks[0].gone)
        await there.until(lambda: len(there.running) == 1)
        there.step(2)
        assert (await staying).text == "Paris is"
    assert there.most_at_once == 1


async def test_a_higher_tier_goes_first_and_the_engine_is_told_its_rank() -> None:
    async with engine(pace_s=None) as there, daemon(there, seats=1) as (_, client):
        tasks = [asyncio.create_task(client.ask(tokens=1, service_tier="flex"))]
        await there.until(lambda: len(there.running) == 1)
        for tier in ("flex", "default", "priority"):
            tasks.append(asyncio.create_task(client.ask(tokens=1, service_tier=tier)))
            await client.until(partial(_offered, len(tasks)), "one more")
        there.pace_s = 0.001
        there.step()
        await asyncio.gather(*tasks)
    assert [ask.priority for ask in there.asks] == [2, -2, 0, 2]


# --- what goes wrong ------------------------------------------------------------------------


async def test_what_was_not_begun_is_tried_once_more_elsewhere_and_then_fails() -> None:
    async with engine() as good, engine(status=500) as bad, daemon(bad, good) as (_, client):
        answers = [await client.ask(tokens=2) for _ in range(4)]
        assert [answer.text for answer in answers] == ["Paris is"] * 4
        assert 1 <= len(bad.asks) <= 4
        good.status = 500
        asked = len(bad.asks) + len(good.asks)
        status, record = await chat(client)
        assert (status, record["error"]["message"]) == (500, "the engine answered 500: no")
        assert len(bad.asks) + len(good.asks) - asked == 2


async def test_what_was_begun_is_never_asked_for_again() -> None:
    async with engine(cut_after=2) as there, daemon(there) as (_, client):
        answer = await client.ask(tokens=5, stream=True)
        assert (answer.ended, answer.text, len(there.asks)) == ("error", "Paris is", 1)
        assert answer.error["type"] == "server_error"


async def test_an_engine_that_is_full_is_asked_again_after_a_pause() -> None:
    async with (
        engine(status=429, headers={"Retry-After": "0.05"}) as there,
        daemon(there) as (_, client),
    ):
        task = asyncio.create_task(client.ask(tokens=2))
        await there.until(lambda: len(there.asks) == 4)
        there.status = 200
        assert (await task).text == "Paris is"


async def test_a_replica_that_dies_is_taken_out_and_comes_back() -> None:
    async with engine() as one, engine(pace_s=None) as two, daemon(one, two) as (_, client):
        tasks = [asyncio.create_task(client.ask(tokens=3, stream=True)) for _ in range(8)]
        await two.until(lambda: len(two.running) >= 1)
        streamed = two.running[0]
        streamed.allowed = 1
        streamed.more.set()
        await two.until(lambda: streamed.sent == 1)
        await client.until(lambda s: s["requests"]["finished"] >= 1, "those of the other")
        await two.kill()
        answers: list[Answer] = await asyncio.gather(*tasks)
        ends = sorted(answer.ended for answer in answers)
        # Who had begun there has an error, everybody else an answer from the other one.
        assert ends == ["done"] * 7 + ["error"]
        state = await client.until(lambda s: s["executors"]["up-1"]["state"] != "ready", "a loss")
        assert state["executors"]["up-0"]["state"] == "ready"
        two.pace_s = 0.001
        await two.start()
        await client.until(lambda s: s["executors"]["up-1"]["state"] == "ready", "its return")
        asked = len(two.asks)
        await asyncio.gather(*(client.ask(tokens=3) for _ in range(8)))
        assert len(two.asks) > asked


async def test_an_engine_that_stalls_is_taken_out_and_its_streams_end_with_an_error() -> None:
    # BEHAVIOURS 43.
    async with engine(pace_s=None) as there:
        config = settings(there)
        config["executors"][0]["stall_after"] = "200ms"
        async with inside(config) as (_, client):
            begun = asyncio.create_task(client.ask(tokens=3, stream=True))
            await there.until(lambda: len(there.running) == 1)
            there.step()
            waits = asyncio.create_task(client.ask(tokens=3, stream=True))
            await there.until(lambda: len(there.running) == 2)
            answer = await begun
            assert (answer.ended, answer.text) == ("error", "Paris")
            there.pace_s = 0.001
            # Who had nothing yet waited for the engine to come back.
            assert (await waits).text == "Paris is the"
            state = await client.state()
            assert state["executors"]["up-0"]["restarts"] >= 1


async def test_no_burst_is_let_through_while_a_scrape_hangs_or_when_it_is_back() -> None:
    # BEHAVIOURS 44.
    async with engine(pace_s=0.005) as there, daemon(there, seats=2) as (_, client):
        there.hang_metrics = True
        tasks = [asyncio.create_task(client.ask(tokens=8)) for _ in range(20)]
        await client.until(
            lambda s: s["executors"]["up-0"]["scrape"]["state"] == "stale", "a stale scrape"
        )
        metrics = await client.metrics()
        label = frozenset({("executor", "up-0")})
        assert metrics["headway_upstream_scrape_age_seconds", label] > 0.15
        running = metrics["headway_upstream_running_requests", label]
        assert running != running
        there.hang_metrics = False
        await asyncio.gather(*tasks)
    assert there.most_at_once == 2


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_tier_may_allow_what_has_sent_nothing_to_be_begun_again(allowed: bool) -> None:
    tiers = {
        "paid": {"priority": 20, "service_tier": "priority", "targets": {"ttft": "50ms"}},
        "free": {"priority": 10, "service_tier": "default", "restart_unstreamed": allowed},
    }
    async with engine(pace_s=None) as there, daemon(there, seats=2, tiers=tiers) as (_, client):
        free = [
            asyncio.create_task(client.ask(tokens=2, stream=True, service_tier="default"))
            for _ in range(2)
        ]
        await there.until(lambda: len(there.running) == 2)
        begun = there.asks[0]
        begun.allowed = 1
        begun.more.set()
        await there.until(lambda: begun.sent == 1)
        paid = asyncio.create_task(client.ask(tokens=2, stream=True, service_tier="priority"))
        if allowed:
            await there.until(lambda: len(there.asks) == 3)
            # The one that has sent nothing made room, and the one that has goes on.
            assert [ask.gone for ask in there.asks[:2]] == [False, True]
            assert there.asks[2].priority == -1
        else:
            await client.until(lambda s: s["requests"]["queued"] == 1, "one that waits")
        there.pace_s = 0.001
        there.step(2)
        answers = await asyncio.gather(paid, *free)
        assert [answer.text for answer in answers] == ["Paris is"] * 3
        assert len(there.asks) == (4 if allowed else 3)
    assert there.most_at_once == 2


async def test_an_engine_that_wants_a_key_gets_it_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from controller.config import Config
    from controller.errors import ConfigError
    from gateway.assembly import assemble

    async with engine() as there:
        config = settings(there)
        config["executors"][0]["api_key_env"] = "THEIR_KEY"
        with pytest.raises(ConfigError, match="there is no variable THEIR_KEY"):
            assemble(Config.model_validate(config), environ={})
        parts = assemble(Config.model_validate(config), environ={"THEIR_KEY": "secret"})
        executor = parts.processes["up-0"]
        executor.start()
        await there.until(lambda: executor.ready)
        await executor.stop(0.0)
    assert there.keys == {"Bearer secret"}
