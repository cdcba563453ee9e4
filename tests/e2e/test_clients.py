"""Clients that go away, come too late or too many: seats, statuses and headers of the daemon."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from tests.e2e.client import Answer, Client, conserved, until
from tests.e2e.conftest import Start
from tests.e2e.daemon import STEADY, Daemon, settings

PROMPT_TOKENS, STEP_TOKENS = 6400, 64
TIERS = {
    "paid": {"priority": 2, "service_tier": "priority", "max_queue_requests": 3},
    "free": {"priority": 1, "service_tier": "default", "start_within": "200ms"},
    "offline": {"priority": 0, "service_tier": "flex", "finish_within": "400ms"},
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    # One seat, steps of 20 ms: who runs and who waits is known, and a prompt takes 100 steps.
    config = settings(
        tiers=TIERS,
        limits={"max_batch_size": 1, "max_batch_tokens": STEP_TOKENS, "wait_timeout": "0s"},
        envelope={"max_batch_size": [1, 2]},
        executors=[STEADY | {"a": "20ms"}],
    )
    with Daemon(tmp_path_factory.mktemp("daemon"), config) as started:
        yield started.listening()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with daemon.client() as client:
        await client.ready()
        yield client
        idle = await client.until(
            lambda state: state["executors"]["main"]["running"] == 0, "free seats"
        )
        assert (idle["requests"]["queued"], idle["requests"]["running"]) == (0, 0)
        assert conserved(idle)


async def running(client: Client, count: int = 1) -> None:
    await client.until(lambda state: state["requests"]["running"] == count, f"{count} running")


async def queued(client: Client, count: int) -> None:
    await client.until(lambda state: state["requests"]["queued"] == count, f"{count} queued")


async def steps(client: Client) -> float:
    samples = await client.metrics()
    name = "headway_step_duration_seconds_count"
    return samples[name, frozenset({("executor", "main")})]


async def gone(task: asyncio.Task[Answer]) -> None:
    """Close the connection of a request."""
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


class TestWhoGoesAway:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_while_it_decodes_the_seat_is_free_within_a_few_steps(
        self, client: Client, stream: bool
    ) -> None:
        task = asyncio.create_task(client.ask(tokens=1000, stream=stream))
        await running(client)
        await until(lambda: steps(client), lambda count: count > 2, "tokens")
        await self.leaves_its_seat_soon(client, task)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_while_its_prompt_is_computed_the_seat_is_free_within_a_few_steps(
        self, client: Client, stream: bool
    ) -> None:
        before = await steps(client)
        task = asyncio.create_task(client.ask("p" * PROMPT_TOKENS, stream=stream))
        await running(client)
        await until(lambda: steps(client), lambda count: count > before + 2, "chunks")
        await self.leaves_its_seat_soon(client, task)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_while_it_waits_it_leaves_the_queue_at_once(
        self, client: Client, stream: bool
    ) -> None:
        cancelled = (await client.state())["requests"]["cancelled"]
        first = asyncio.create_task(client.ask(tokens=40))
        await running(client)
        waiting = asyncio.create_task(client.ask(stream=stream))
        await queued(client, 1)
        await gone(waiting)
        await queued(client, 0)
        assert (await client.state())["requests"]["cancelled"] == cancelled + 1
        assert (await first).ended == "done"

    async def leaves_its_seat_soon(self, client: Client, task: asyncio.Task[Answer]) -> None:
        cancelled = (await client.state())["requests"]["cancelled"]
        before = await steps(client)
        await gone(task)
        state = await client.until(
            lambda state: state["executors"]["main"]["running"] == 0, "a free seat"
        )
        assert state["requests"]["cancelled"] == cancelled + 1
        assert state["executors"]["main"]["reserved_tokens"] == 0
        # The one that ran when it left, the one whose report tells, one that began meanwhile; and
        # asking for the count takes some, too, where other work shares the machine. To its end it
        # would have been a hundred at least.
        assert await steps(client) - before <= 10


class TestWhoCannotBeServed:
    async def test_a_full_queue_is_a_429_that_says_when_to_come_back(
        self, daemon: Daemon, client: Client
    ) -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{daemon.address}/v1", api_key="-", max_retries=0
        ) as sdk:
            await sdk.models.list()
            first = asyncio.create_task(client.ask(tokens=60))
            await running(client)
            waiting = [asyncio.create_task(client.ask(stream=True)) for _ in range(3)]
            await queued(client, 3)
            with pytest.raises(openai.RateLimitError) as caught:
                await sdk.completions.create(model="sim", prompt="hello", stream=True)
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.message == (
            "Error code: 429 - the queue of tier 'paid' is full: 3 requests of 3 waiting, "
            "no room for 1 more"
        )
        headers = caught.value.response.headers
        assert float(headers["retry-after-ms"]) / 1000 <= int(headers["retry-after"])
        assert [answer.ended for answer in await asyncio.gather(first, *waiting)] == ["done"] * 4
        assert (await client.ask()).ended == "done"

    @pytest.mark.parametrize("stream", [True, False])
    async def test_who_waited_too_long_is_told_so_and_was_never_computed(
        self, client: Client, stream: bool
    ) -> None:
        prompts = "headway_prompt_tokens_total", frozenset({("tier", "free")})
        before = await client.metrics()
        expired = (await client.state())["requests"]["expired"]
        first = asyncio.create_task(client.ask(tokens=40))
        await running(client)
        asked = time.monotonic()
        answer = await client.ask(stream=stream, service_tier="default")
        assert 0.2 <= time.monotonic() - asked < 1.0
        assert (answer.status, answer.error["code"]) == (429, "deadline_exceeded")
        assert {"Retry-After", "retry-after-ms"} <= set(answer.headers)
        assert (await client.state())["requests"]["expired"] == expired + 1
        assert (await client.metrics())[prompts] == before[prompts]
        await first

    async def test_who_runs_past_its_deadline_ends_in_an_error(self, client: Client) -> None:
        whole = await client.ask(tokens=1000, service_tier="flex")
        assert (whole.status, whole.error["code"]) == (504, "deadline_exceeded")
        streamed = await client.ask(tokens=1000, service_tier="flex", stream=True)
        assert (streamed.status, streamed.ended) == (200, "error")
        assert streamed.error["code"] == "deadline_exceeded"
        assert streamed.text != ""
        assert streamed.finish_reason is None

    async def test_what_can_never_fit_is_a_400_and_is_not_counted_as_offered(
        self, client: Client
    ) -> None:
        offered = (await client.state())["requests"]["offered"]
        answer = await client.ask("p" * 9000)
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
        assert (await client.state())["requests"]["offered"] == offered


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


async def test_keys_choose_tiers_and_the_admin_has_a_token_of_its_own(start: Start) -> None:
    auth: dict[str, Any] = {
        "keys": [
            {"name": "acme", "tier": "paid", "sha256": digest("acme-key")},
            {"name": "hobby", "tier": "free", "env": "HOBBY_KEY"},
        ],
        "admin_token_env": "ADMIN_TOKEN",
    }
    environ = {"HOBBY_KEY": "hobby-key", "ADMIN_TOKEN": "admin-token"}
    daemon = start(settings(auth=auth), environ=environ).listening()
    async with daemon.client(token="admin-token") as client:
        await client.ready()

        async def served(key: str, **more: Any) -> Any:
            return (await client.ask(key=key, **more)).record["service_tier"]

        assert await served("acme-key") == "priority"
        assert await served("hobby-key") == "default"
        assert await served("hobby-key", service_tier="auto") == "default"
        # A client may lower its own tier and never raise it.
        assert await served("hobby-key", service_tier="priority") == "default"
        assert await served("acme-key", service_tier="flex") == "flex"
        tiers = (await client.metrics()).items()
        offered = {
            dict(labels)["tier"]: count
            for (name, labels), count in tiers
            if name == "headway_requests_offered_total"
        }
        assert offered == {"paid": 1, "free": 3, "offline": 1}
        for key in ("", "admin-token", "acme"):
            refused = await client.ask(key=key)
            assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")

        for path in ("/healthz", "/readyz"):
            async with client.session.get(path) as open_to_all:
                assert open_to_all.status == 200
        for token, status in (("", 401), ("acme-key", 403), ("admin-token", 200)):
            client.token = token
            assert (await client.get("/admin/state"))[0] == status
            assert (await client.get("/admin/decisions"))[0] == status
            assert (await client.put_limits(release=True))[0] == status
    assert "-key" not in daemon.log_text()
    assert "admin-token" not in daemon.log_text()
