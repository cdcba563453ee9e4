"""`/metrics` agrees with `/admin/state`, and both with what clients were answered."""

from __future__ import annotations

import asyncio
import math
import shutil
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest

from tests.e2e.client import Client, by, conserved
from tests.e2e.conftest import Start
from tests.e2e.daemon import Daemon, settings


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), settings()) as started:
        yield started.listening()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with daemon.client() as client:
        await client.ready()
        yield client


class TestMetrics:
    async def test_they_agree_with_the_state_after_a_load(self, client: Client) -> None:
        whole = [
            asyncio.create_task(client.ask(tokens=9, service_tier=tier, stream=index % 2 == 0))
            for index in range(10)
            for tier in ("priority", "default", "flex")
        ]
        left = asyncio.create_task(client.ask(tokens=5000))
        await client.until(lambda state: state["requests"]["running"] == 16, "a full batch")
        left.cancel()
        assert [(await task).ended for task in whole] == ["done"] * 30
        state = await client.until(
            lambda state: state["executors"]["main"]["running"] == 0, "an idle executor"
        )
        assert conserved(state)
        samples = await client.metrics()
        requests = state["requests"]
        ended = by(samples, "headway_requests_ended_total", "outcome")
        for outcome in ("finished", "rejected", "expired", "cancelled", "failed"):
            assert ended[outcome] == requests[outcome]
        assert by(samples, "headway_requests_offered_total", "tier").total() == requests["offered"]
        for name, tier in state["tiers"].items():
            labels = frozenset({("tier", name)})
            assert samples["headway_queue_requests", labels] == tier["queued"]
            assert samples["headway_queue_tokens", labels] == tier["queued_tokens"]
        limits = state["groups"]["default"]
        labels = frozenset({("group", "default")})
        assert samples["headway_limit_batch_size", labels] == limits["limits"]["max_batch_size"]
        assert samples["headway_limit_batch_tokens", labels] == limits["limits"]["max_batch_tokens"]
        assert samples["headway_limit_wait_seconds", labels] == limits["limits"]["wait_timeout_s"]
        assert samples["headway_limits_epoch", labels] == limits["epoch"]
        assert samples["headway_ready", frozenset()] == 1
        main = frozenset({("executor", "main")})
        assert samples["headway_worker_restarts_total", main] == 0
        assert samples["headway_kv_usage_ratio", main] == 0
        finished = by(samples, "headway_request_duration_seconds_count", "tier").total()
        assert finished == requests["finished"]

    async def test_counts_of_tokens_are_exact(self, client: Client) -> None:
        before = await client.metrics()
        answer = await client.ask("four", tokens=7, stream=True, service_tier="flex")
        assert answer.finish_reason == "length"
        after = await client.metrics()
        labels = frozenset({("tier", "offline")})
        for name, count in (("prompt", 4), ("generated", 7)):
            key = f"headway_{name}_tokens_total", labels
            assert after[key] - before[key] == count
        ttft = "headway_time_to_first_token_seconds_count", labels
        assert after[ttft] - before[ttft] == 1

    async def test_before_any_traffic_what_is_unknown_is_not_zero(self, start: Start) -> None:
        async with start(settings()).listening().client() as client:
            await client.ready()
            samples = await client.metrics()
            _, decided = await client.get("/admin/decisions?count=1")
        assert math.isnan(samples["headway_kv_usage_ratio", frozenset({("executor", "main")})])
        signals = decided["decisions"][0]["signals"]
        assert signals["age_s"] is None
        assert {tier["ttft"] for tier in signals["tiers"]} == {None}
        assert signals["executors"][0]["utilization"] is None
        assert signals["executors"][0]["step_time"] is None

    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
    async def test_promtool_finds_nothing(self, client: Client) -> None:
        await client.ask()
        async with client.session.get("/metrics") as response:
            exposition = await response.read()
        promtool = await asyncio.create_subprocess_exec(
            *("promtool", "check", "metrics"), stdin=PIPE, stdout=PIPE, stderr=STDOUT
        )
        told, _ = await promtool.communicate(exposition)
        assert told == b""
        assert promtool.returncode == 0


async def test_a_request_says_where_its_time_went(client: Client) -> None:
    answer = await client.ask(tokens=11)
    status, seen = await client.get(f"/admin/requests/{answer.record['id']}")
    assert status == 200
    assert (seen["state"], seen["outcome"], seen["reason"]) == ("ended", "finished", "length")
    assert (seen["tier"], seen["executor"], seen["attempt"]) == ("paid", "main", 1)
    assert (seen["prompt_tokens"], seen["generated_tokens"]) == (5, 11)
    spent = sum(seen[f"{part}_s"] for part in ("queue", "hold", "prefill", "decode"))
    assert spent == pytest.approx(seen["total_s"], abs=0.005)
    assert seen["decode_s"] == pytest.approx(0.1, abs=0.05)
    assert (await client.get("/admin/requests/nobody"))[0] == 404


async def test_head_and_unknown_paths_are_answered_too(client: Client) -> None:
    async with client.session.head("/metrics") as response:
        assert response.status == 200
    with pytest.raises(aiohttp.ClientResponseError, match="404"):
        async with client.session.get("/nothing", raise_for_status=True):
            pass
