"""What an operator sets and asks for: limits by hand, a policy of their own, calm while idle."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest

from tests.e2e.client import Client, by, conserved, until
from tests.e2e.conftest import Start
from tests.e2e.daemon import ROOT, Daemon, settings

B, T, W = "max_batch_size", "max_batch_tokens", "wait_timeout_s"
CONFIGURED = {B: 16, T: 2048, W: 0.0, "tiers": {}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), settings()) as started:
        yield started.listening()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with daemon.client() as client:
        await client.ready()
        yield client
        _, told = await client.put_limits(release=True)
        assert told == {"pinned": False, "limits": CONFIGURED}
        assert conserved(await client.state())


async def group(client: Client) -> dict[str, Any]:
    found: dict[str, Any] = (await client.state())["groups"]["default"]
    return found


async def group_when(client: Client, condition: Any) -> dict[str, Any]:
    return await until(lambda: group(client), condition, "those limits")


class TestLimitsByHand:
    async def test_they_are_in_force_with_the_answer_and_for_the_next_batch(
        self, client: Client
    ) -> None:
        epoch = (await group(client))["epoch"]
        status, told = await client.put_limits(max_batch_size=3, expires="10m")
        assert status == 200
        assert told == {
            "pinned": True,
            "expires_s": 600.0,
            "limits": {B: 3, T: 2048, W: 0.0, "tiers": {}},
        }
        shown = await group(client)
        assert shown["limits"] == told["limits"]
        assert shown["epoch"] == epoch + 1
        assert 590 < shown["pinned_for_s"] <= 600
        tasks = [asyncio.create_task(client.ask(tokens=20)) for _ in range(8)]
        state = await client.until(lambda state: state["requests"]["queued"] == 5, "five that wait")
        assert state["requests"]["running"] == 3
        assert [(await task).ended for task in tasks] == ["done"] * 8

    async def test_a_lowered_size_ends_nobody_and_admits_nobody_until_fewer_run(
        self, client: Client
    ) -> None:
        running = [asyncio.create_task(client.ask(tokens=40, stream=True)) for _ in range(12)]
        await client.until(lambda state: state["requests"]["running"] == 12, "twelve that run")
        await client.put_limits(max_batch_size=2, expires="10m")
        late = [asyncio.create_task(client.ask(tokens=5)) for _ in range(3)]
        seen = await client.until(lambda state: state["requests"]["queued"] == 3, "three that wait")
        assert seen["requests"]["running"] == 12
        await client.until(
            lambda state: state["requests"]["queued"] < 3, "the first that is admitted"
        )
        assert all(task.done() for task in running)
        assert [(await task).ended for task in running + late] == ["done"] * 15

    async def test_they_expire(self, client: Client) -> None:
        status, _ = await client.put_limits(max_batch_size=5, wait_timeout_s=0.02, expires="200ms")
        assert status == 200
        assert (await group(client))["limits"] == {B: 5, T: 2048, W: 0.02, "tiers": {}}
        shown = await group_when(client, lambda group: group["limits"] == CONFIGURED)
        assert shown["pinned_for_s"] is None

    async def test_they_are_released(self, client: Client) -> None:
        await client.put_limits(max_batch_tokens=512, expires="10m")
        assert (await group(client))["limits"][T] == 512
        assert await client.put_limits(release=True) == (
            200,
            {"pinned": False, "limits": CONFIGURED},
        )
        assert (await group(client))["limits"] == CONFIGURED

    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({B: 65}, "max_batch_size: 65 should be a whole number from 1 to 64, the envelope"),
            ({B: 0}, "max_batch_size: 0 should be a whole number from 1 to 64, the envelope"),
            ({B: 8.5}, "max_batch_size: 8.5 should be a whole number from 1 to 64, the envelope"),
            (
                {T: 63},
                "max_batch_tokens: 63 should be a whole number from 64 to 2048, the envelope",
            ),
            ({W: 0.06}, "wait_timeout_s: 0.06 should be seconds from 0.0 to 0.05, the envelope"),
            (
                {"batch_size": 8},
                "batch_size: unknown; use max_batch_size, max_batch_tokens, wait_timeout_s",
            ),
        ],
    )
    async def test_what_is_outside_the_envelope_changes_nothing(
        self, client: Client, asked: dict[str, Any], message: str
    ) -> None:
        before = await group(client)
        status, told = await client.put_limits(**asked, expires="1m")
        assert (status, told["error"]["message"]) == (400, message)
        assert told["error"]["param"] == next(iter(asked))
        after = await group(client)
        assert (after["limits"], after["epoch"]) == (before["limits"], before["epoch"])


async def test_an_idle_daemon_costs_next_to_nothing(start: Start) -> None:
    # W = 0 must not make it spin, nor the worker that has nothing to do.
    daemon = start(settings(control={"policy": {"type": "static"}})).listening()
    async with daemon.client() as client:
        state = await client.ready()
        await client.ask()
        worker = psutil.Process(state["executors"]["main"]["pid"])
        processes = (psutil.Process(daemon.process.pid), worker)
        before = [process.cpu_times() for process in processes]
        await asyncio.sleep(1.0)  # the second that is measured
        spent = [
            process.cpu_times().user + process.cpu_times().system - was.user - was.system
            for process, was in zip(processes, before, strict=True)
        ]
    assert spent[0] < 0.1
    assert spent[1] < 0.02


MOODY = '''
from dataclasses import dataclass
from policies.contract import Proposal


class Moody:
    """Raises in every tick but the first few."""

    @dataclass(frozen=True)
    class Parameters:
        calm: int = 1

    def __init__(self, parameters):
        self.left = parameters.calm

    def decide(self, signals, limits):
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("out of ideas")
        return Proposal(limits, "as it is")
'''


async def test_a_policy_of_the_users_own_that_raises_is_replaced_and_everybody_is_served(
    start: Start, tmp_path: Any
) -> None:
    (tmp_path / "moody.py").write_text(MOODY)
    policy = {"type": "moody:Moody", "parameters": {"calm": 2}}
    control = {"policy": policy, "interval": "50ms"}
    daemon = start(settings(control=control), environ={"PYTHONPATH": str(tmp_path)}).listening()
    async with daemon.client() as client:
        await client.ready()
        shown = await group_when(client, lambda group: group["fallen_back"])
        assert (shown["policy"], shown["limits"]) == ("static", CONFIGURED)
        status, readiness = await client.get("/readyz")
        assert status == 200
        assert readiness["notes"] == [
            "policy of group 'default' failed and was replaced by 'static'"
        ]
        assert (await client.ask()).ended == "done"
        _, told = await client.get("/admin/decisions?count=1000")
        oldest_first = told["decisions"][::-1]
        assert [decision["error"] for decision in oldest_first[:6]] == [
            "",
            "",
            *["ZeroDivisionError: out of ideas"] * 3,
            "",
        ]
        assert oldest_first[4]["reason"] == (
            "policy 'moody:Moody' failed 3 times in a row (ZeroDivisionError: out of ideas): "
            "'static' takes over"
        )
        errors = by(await client.metrics(), "headway_policy_errors_total", "policy")
        assert errors == {"moody:Moody": 3, "static": 0}
    # Told when it begins and when the fallback takes over, not at every tick.
    assert [record["event"] for record in daemon.log()].count("policy failed") == 2


SLEEPY = '''
import time
from dataclasses import dataclass


class Sleepy:
    """Sleeps for as long as any test may last."""

    @dataclass(frozen=True)
    class Parameters:
        pass

    def __init__(self, parameters):
        pass

    def decide(self, signals, limits):
        time.sleep(600)
'''


async def test_a_policy_that_hangs_costs_nobody_a_token_and_does_not_outlive_the_daemon(
    start: Start, tmp_path: Any
) -> None:
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    control = {
        "policy": {"type": "sleepy:Sleepy"},
        "shadows": [{"type": "sleepy:Sleepy"}],
        "interval": "50ms",
        "decide_timeout": "200ms",
    }
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    daemon = start(settings(control=control), environ={"PYTHONPATH": path}).listening()
    async with daemon.client() as client:
        await client.ready()
        tasks = [asyncio.create_task(client.ask(tokens=40, stream=True)) for _ in range(16)]
        shown = await group_when(client, lambda group: group["fallen_back"])
        assert (shown["policy"], shown["limits"]) == ("static", CONFIGURED)
        assert [(await task).ended for task in tasks] == ["done"] * 16
        assert shown["shadows"] == {}
        _, told = await client.get("/admin/decisions?count=1000")
        codes = [decision["code"] for decision in told["decisions"]]
        assert codes.count("hung") == 1
        assert "slow" in codes
        status, switched = await client.put_policy(type="aimd", parameters={"growth": 0.1})
        assert status == 200
        assert switched["groups"]["default"]["policy"]["type"] == "aimd"
        assert (await group(client))["fallen_back"] is False
        status, told = await client.put_policy(type="aimd", parameters={"growth": "fast"})
        assert (status, told["error"]["param"]) == (400, "parameters.growth")
        assert told["error"]["message"] == ("parameters.growth: should be a number; given 'fast'")
        daemon.signal(signal.SIGTERM)
        assert await daemon.exit_code() == 0


async def test_the_access_log_has_a_line_for_each_request_and_no_secret(start: Start) -> None:
    daemon = start(settings(server={"access_log": True})).listening()
    async with daemon.client() as client:
        await client.ready()
        headers = {"x-request-id": "mine-1"}
        async with client.session.get("/v1/models?secret=1", headers=headers) as response:
            assert response.status == 200
        async with client.session.get("/no%0Asuch"):
            pass
        answer = await client.ask("confidential", tokens=20, stream=True)
        left = asyncio.create_task(client.ask(tokens=5000))
        await client.until(lambda state: state["requests"]["running"] == 1, "one that runs")
        left.cancel()
        await client.until(lambda state: state["requests"]["cancelled"] == 1, "one that left")
    lines = [record for record in daemon.log() if record["event"] == "request"]
    seen = {(line["method"], line["path"]): line for line in lines if line["status"] != 499}
    assert seen["GET", "/v1/models"]["request_id"] == "mine-1"
    assert seen["GET", "/no%0Asuch"]["status"] == 404
    streamed = seen["POST", "/v1/completions"]
    assert (streamed["status"], streamed["peer"]) == (200, "127.0.0.1")
    assert streamed["request_id"] == answer.headers["X-Request-ID"]
    assert streamed["duration_s"] > 0.1
    gone = [line for line in lines if line["status"] == 499]
    assert [line["path"] for line in gone] == ["/v1/completions"]
    assert "confidential" not in daemon.log_text()
    assert "secret" not in daemon.log_text()


async def test_garbage_is_answered_and_does_not_fill_the_log(start: Start) -> None:
    daemon = start(settings()).listening()
    async with daemon.client() as client:
        await client.ready()
        for garbage in (
            b"GET /healthz HTTP/1.1\r\nHost: a\r\na: " + b"x" * 9000 + b"\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
            b"nonsense\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(*daemon.endpoint)
            writer.write(garbage)
            assert b" 400 " in await reader.readline()
            writer.close()
            await writer.wait_closed()
        assert (await client.get("/healthz"))[0] == 200
    assert [record for record in daemon.log() if record["level"] == "error"] == []
