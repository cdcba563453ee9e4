"""Steps that fail, run out of memory or stand still: what was asked for comes all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from executor.contract import Fault
from gateway.assembly import Parts
from tests.e2e.client import Answer, Client, conserved, until
from tests.e2e.daemon import STEADY, settings
from tests.e2e.inside import inside

CONFIG = settings(executors=[STEADY | {"a": "5ms", "stall_after": "400ms"}])


async def load(client: Client, count: int = 20) -> list[asyncio.Task[Answer]]:
    """Completions of which sixteen run, every other one streamed."""
    tasks = [
        asyncio.create_task(client.ask(tokens=40, seed=seed, stream=seed % 2 == 0))
        for seed in range(count)
    ]
    await client.until(lambda state: state["requests"]["running"] == 16, "sixteen that run")
    return tasks


async def texts(tasks: list[asyncio.Task[Answer]]) -> list[tuple[str, str]]:
    return [(answer.ended, answer.text) for answer in await asyncio.gather(*tasks)]


@pytest.mark.parametrize("kind", ["fail", "oom"])
async def test_a_failed_step_costs_nobody_a_token(kind: Any) -> None:
    async with inside(CONFIG) as (parts, client):
        expected = await texts(await load(client))
        tasks = await load(client)
        parts.processes["main"].fault(Fault(kind))
        assert await texts(tasks) == expected
        state = await client.state()
        assert conserved(state)
        assert state["requests"]["finished"] == 40
        assert state["executors"]["main"]["restarts"] == 0
        seen = [parts.desk.request(name) or {} for name in parts.dispatcher.remembered]
        attempts = [request["attempt"] for request in seen]
        assert sorted(attempts) == [1] * 24 + [2] * 16


async def test_an_executor_that_ran_out_of_memory_lowers_the_limits() -> None:
    async with inside(CONFIG) as (parts, client):
        tasks = await load(client)
        parts.processes["main"].fault(Fault("oom"))
        await texts(tasks)
        _, told = await client.get("/admin/decisions?count=1000")
        moved = [decision for decision in told["decisions"][::-1] if decision["moved"]]
        assert {note["code"] for note in moved[0]["guard"]} == {"out_of_memory"}
        assert moved[0]["after"]["max_batch_tokens"] < 2048


async def test_an_executor_with_less_memory_than_it_claims_serves_everybody_all_the_same() -> None:
    small = settings(executors=[STEADY | {"a": "5ms", "fails_above_tokens": 300}])
    async with inside(CONFIG) as (_, client):
        expected = await texts(await load(client))
    async with inside(small) as (_, client):
        assert (await client.state())["groups"]["default"]["memory_ceiling"] is None
        tasks = [
            asyncio.create_task(client.ask(tokens=40, seed=seed, stream=seed % 2 == 0))
            for seed in range(20)
        ]
        assert await texts(tasks) == expected
        known = (await client.state())["groups"]["default"]["memory_ceiling"]
        # Four fifths of what failed: more than 300 tokens, and hardly more than all could hold.
        assert 240 <= known["tokens"] <= 300
        assert 500 < known["probed_in_s"] <= 600
        samples = await client.metrics()
        group = frozenset({("group", "default")})
        assert samples["headway_memory_ceiling_tokens", group] == pytest.approx(
            known["tokens"], abs=1.0
        )
        failures = samples["headway_out_of_memory_total", frozenset({("executor", "main")})]
        assert 1 <= failures <= 4


@pytest.mark.parametrize("stream", [False, True])
async def test_what_can_never_fit_into_memory_is_a_real_400_with_the_number_of_tokens(
    stream: bool,
) -> None:
    small = settings(executors=[STEADY | {"a": "2ms", "fails_above_tokens": 300}])
    async with inside(small) as (_, client):
        others = [asyncio.create_task(client.ask(tokens=20, seed=seed)) for seed in range(4)]
        giant = await client.ask("x" * 400, tokens=5, stream=stream)
        assert (giant.status, giant.error["code"]) == (400, "context_length_exceeded")
        assert giant.error["message"].startswith(
            "memory ran out 2 times for this request alone, which has 400 tokens"
        )
        assert [(await other).ended for other in others] == ["done"] * 4
        state = await client.state()
        assert conserved(state)
        assert (state["requests"]["failed"], state["requests"]["finished"]) == (1, 4)
        # The next one need not fail first.
        again = await client.ask("x" * 400, tokens=5, stream=stream)
        assert (again.status, again.error["code"]) == (400, "context_length_exceeded")
        assert (await client.state())["requests"]["failed"] == 1


async def test_a_stall_longer_than_allowed_restarts_the_worker_and_loses_nothing() -> None:
    async with inside(CONFIG) as (parts, client):
        expected = await texts(await load(client))
        tasks = await load(client)
        parts.processes["main"].fault(Fault("stall", 600.0))
        assert await texts(tasks) == expected
        state = await client.state()
        assert conserved(state)
        assert state["executors"]["main"]["restarts"] == 1


async def test_a_stall_that_ends_in_time_is_none() -> None:
    async with inside(CONFIG) as (parts, client):
        tasks = await load(client)
        parts.processes["main"].fault(Fault("stall", 0.2))
        assert [ended for ended, _ in await texts(tasks)] == ["done"] * 20
        assert (await client.state())["executors"]["main"]["restarts"] == 0


async def test_what_fails_an_executor_again_and_again_fails_and_the_others_do_not() -> None:
    async with inside(CONFIG) as (parts, client):
        poison = asyncio.create_task(client.ask(tokens=400, stream=True))
        main = parts.processes["main"]
        for faults in range(3):
            await until_attempt(parts, faults + 1)
            main.fault(Fault("fail"))
        answer = await poison
        assert (answer.ended, answer.error["code"]) == ("error", "executor_failed")
        assert answer.error["message"] == "its executor failed 3 times (error)"
        assert (await client.ask()).ended == "done"
        state = await client.state()
        assert conserved(state)
        assert (state["requests"]["failed"], state["requests"]["finished"]) == (1, 1)


async def until_attempt(parts: Parts, attempt: int) -> None:
    """Wait until the only request runs for the so-manieth time."""

    async def attempts() -> list[int]:
        return [request.attempt for request in parts.dispatcher.batcher.book.requests.values()]

    await until(attempts, lambda seen: seen == [attempt], f"attempt {attempt}")
