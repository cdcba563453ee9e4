"""The configuration is loaded again under load: nobody is lost, and a bad file changes nothing."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.client import Answer, Client, conserved, until
from tests.e2e.conftest import Start
from tests.e2e.daemon import STEADY, Daemon, settings

TIERS: dict[str, Any] = {
    "paid": {"priority": 2, "service_tier": "priority", "targets": {"ttft": "30s", "itl": "1s"}},
    "free": {"priority": 1, "service_tier": "default", "min_share": 0.1},
}
STREAMS, TOKENS = 200, 40


def file_of(daemon: Daemon) -> Path:
    return daemon.log_file.parent / "headway.yaml"


def has_size(size: int, state: dict[str, Any]) -> bool:
    return bool(state["groups"]["default"]["limits"]["max_batch_size"] == size)


async def reload(client: Client) -> tuple[int, Any]:
    async with client.session.post("/-/reload") as response:
        return response.status, await response.json()


async def test_in_the_middle_of_200_streams_it_loses_none_and_changes_none_that_run(
    start: Start,
) -> None:
    config = settings(tiers=TIERS)
    daemon = start(config).listening()
    async with daemon.client() as client:
        await client.ready()
        alone = await client.ask(tokens=TOKENS, seed=7)
        begun = asyncio.Event()

        def stream(number: int) -> asyncio.Task[Answer]:
            return asyncio.create_task(
                client.ask(
                    tokens=TOKENS,
                    stream=True,
                    seed=7,
                    service_tier=("priority", "default")[number % 2],
                    on_text=lambda text: begun.set(),
                )
            )

        streams = [stream(number) for number in range(STREAMS)]
        await begun.wait()
        before = await client.until(
            lambda state: state["requests"]["offered"] == STREAMS + 1, "all of them"
        )
        assert before["requests"]["running"] == 16
        changed = TIERS | {
            "paid": TIERS["paid"] | {"targets": {"e2e": "60s"}, "max_seats": 20, "order": "fcfs"},
            "free": TIERS["free"] | {"min_share": 0.5, "max_queue_requests": 64, "late": "drop"},
        }
        new = settings(
            tiers=changed,
            limits={"max_batch_size": 40, "max_batch_tokens": 2048, "wait_timeout": "1ms"},
            control={"policy": {"type": "static"}, "interval": "20ms", "slow_window": "20s"},
            server={"keep_alive_after": "1s", "stream_buffer": "32KiB"},
            log={"level": "debug"},
        )
        file_of(daemon).write_text(yaml.safe_dump(new))
        status, told = await reload(client)
        assert status == 200
        assert {one["key"] for one in told["changed"]} >= {
            "limits.max_batch_size",
            "tiers.paid.max_seats",
            "tiers.paid.targets.ttft",
            "log.level",
        }
        after = await client.state()
        assert after["requests"]["queued"] > 0
        assert after["executors"]["main"]["running"] <= 40
        answers = await asyncio.gather(*streams)
        assert {(one.ended, one.text, one.finish_reason) for one in answers} == {
            ("done", alone.text, "length")
        }
        state = await client.state()
        assert conserved(state)
        assert state["requests"]["finished"] == STREAMS + 1
        assert state["groups"]["default"]["limits"]["max_batch_size"] == 40
        assert state["executors"]["main"]["restarts"] == 0


async def test_a_bad_file_changes_nothing_and_the_log_and_answer_name_line_and_key(
    start: Start,
) -> None:
    daemon = start(settings()).listening()
    file = file_of(daemon)
    async with daemon.client() as client:
        before = await client.ready()
        file.write_text("limits:\n  max_batch_size: 20\n  max_batch_tokens: many\n")
        status, told = await reload(client)
        (problem,) = told["error"]["problems"]
        assert (status, problem.split(": ")[:2]) == (
            400,
            [f"{file}:3", "limits.max_batch_tokens"],
        )
        daemon.signal(signal.SIGHUP)
        await until(
            lambda: asyncio.sleep(0, daemon.log()),
            lambda log: [r for r in log if r.get("why") == "SIGHUP"] != [],
            "the log",
        )
        after = await client.state()
        assert after["groups"]["default"]["limits"] == before["groups"]["default"]["limits"]
        assert (await client.ask()).ended == "done"
        metrics = await client.metrics()
        assert metrics["headway_config_last_reload_successful", frozenset()] == 0
    refused = [r for r in daemon.log() if r["event"] == "configuration not loaded"]
    assert [(r["why"], r["problems"]) for r in refused] == [
        ("POST /-/reload", [problem]),
        ("SIGHUP", [problem]),
    ]


async def test_a_hang_up_is_no_end_before_and_after_the_executor_is_ready(start: Start) -> None:
    config = settings(executors=[STEADY | {"load": "1s"}], server={"watch_config": True})
    daemon = start(config).listening()
    async with daemon.client() as client:
        for size, load in ((5, "SIGHUP"), (6, "SIGHUP"), (7, "the file changed")):
            limits = {"max_batch_size": size, "max_batch_tokens": 2048, "wait_timeout": "0s"}
            file_of(daemon).write_text(yaml.safe_dump(config | {"limits": limits}))
            if load == "SIGHUP":
                daemon.signal(signal.SIGHUP)
            wanted = partial(has_size, size)
            state = await client.until(wanted, "the limits of the file")
            assert state["ready"] == (size > 5)
            await client.ready()
        assert (await client.ask()).ended == "done"
        daemon.signal(signal.SIGTERM)
    assert await daemon.exit_code() == 0
    loaded = [r["why"] for r in daemon.log() if r["event"] == "configuration loaded"]
    assert loaded == ["SIGHUP", "SIGHUP", "the file changed"]


async def test_a_policy_that_is_never_imported_keeps_no_daemon_from_its_end(start: Start) -> None:
    config = settings()
    daemon = start(config).listening()
    begun = daemon.log_file.parent / "begun"
    file_of(daemon).with_name("stuck.py").write_text(
        f"import pathlib, threading\npathlib.Path({str(begun)!r}).touch()\n"
        "threading.Event().wait()\n"
    )
    async with daemon.client() as client:
        await client.ready()
        stuck = config | {"control": {"policy": {"type": "stuck:Policy"}}}
        file_of(daemon).write_text(yaml.safe_dump(stuck))
        daemon.signal(signal.SIGHUP)
        await until(lambda: asyncio.sleep(0, begun.exists()), bool, "the import")
        assert (await client.ask()).ended == "done"
        daemon.signal(signal.SIGTERM)
    assert await daemon.exit_code() == 0


async def test_loggers_in_use_take_another_level_and_format(start: Start) -> None:
    daemon = start(settings()).listening()
    async with daemon.client() as client:
        await client.ready()
        for log in ({"level": "error"}, {"level": "info", "format": "console"}):
            file_of(daemon).write_text(yaml.safe_dump(settings(log=log)))
            assert (await reload(client))[0] == 200
    lines = [line for line in daemon.log_text().splitlines() if "configuration loaded" in line]
    (last,) = lines
    assert "log.level: error -> info" in last
    assert not last.startswith("{")
