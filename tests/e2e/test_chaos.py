"""A few seconds of everything at once: who is told that all is well has every byte of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.e2e.client import Answer, Client, conserved
from tests.e2e.daemon import STEADY, Daemon, settings

SECONDS, USERS, SEEDS, MOST = 4.0, 16, 5, 120
SERVICE_TIERS = ("priority", "default", "flex")
# As much KV as two dozen requests may come to hold, so that memory is short now and then.
EXECUTOR = STEADY | {
    "a": "3ms",
    "kv_tokens": 3000,
    "stall_after": "300ms",
    "utilization": "model",
    "restart": {"first_delay": "50ms", "max_delay": "200ms"},
}


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    config = settings(
        tiers={
            "paid": {"priority": 2, "service_tier": "priority", "targets": {"itl": "50ms"}},
            "free": {"priority": 1, "service_tier": "default", "start_within": "1s"},
            "offline": {"priority": 0, "service_tier": "flex", "finish_within": "1s"},
        },
        limits={"max_batch_size": 8, "max_batch_tokens": 512, "wait_timeout": "3ms"},
        control={"policy": {"type": "threshold"}, "interval": "50ms"},
        executors=[EXECUTOR | {"name": name} for name in ("left", "right")],
    )
    with Daemon(tmp_path_factory.mktemp("daemon"), config) as started:
        yield started.listening()


async def one_request(client: Client, rng: random.Random) -> tuple[int, int, Answer] | None:
    """Ask for something; None when the client lost patience."""
    seed, tokens = rng.randrange(SEEDS), rng.choice([1, 5, 30, MOST])
    prompt = "p" * rng.choice([1, 50, 1500])
    asking = asyncio.create_task(
        client.ask(
            prompt,
            tokens=tokens,
            seed=seed,
            stream=rng.random() < 0.5,
            service_tier=rng.choice(SERVICE_TIERS),
        )
    )
    if rng.random() < 0.2:
        await asyncio.wait({asking}, timeout=rng.random() * 0.3)
        if not asking.done():
            asking.cancel()
            await asyncio.wait({asking})
            return None
    return seed, tokens, await asking


async def a_user(client: Client, rng: random.Random, until: float) -> list[Any]:
    seen = []
    while time.monotonic() < until:
        seen.append(await one_request(client, rng))
    return seen


async def change_the_configuration(daemon: Daemon, client: Client, rng: random.Random) -> None:
    file = daemon.log_file.parent / "headway.yaml"
    config = yaml.safe_load(file.read_text())
    for name, tier in config["tiers"].items():
        tier["order"] = rng.choice(["edf", "fcfs", "shortest"])
        tier["targets"] = rng.choice([None, {"ttft": "1s"}, {"itl": "20ms", "e2e": "4s"}])
        tier["min_share"] = rng.choice([0.0, 0.2])
        tier["max_seats"] = rng.choice([None, 4]) if name != "paid" else None
    config["control"]["policy"] = {"type": rng.choice(["threshold", "static", "slo"])}
    config["control"]["hold"] = rng.choice(["fixed", "join_gain"])
    config["limits"]["max_batch_size"] = rng.choice([4, 8, 16])
    file.write_text(yaml.safe_dump(config))
    async with client.session.post("/-/reload") as response:
        assert response.status == 200, await response.text()


async def an_operator_with_a_better_idea(
    daemon: Daemon, client: Client, rng: random.Random, until: float
) -> None:
    while time.monotonic() < until:
        await change_the_configuration(daemon, client, rng)
        await asyncio.sleep(0.3)


async def an_operator_with_bad_habits(client: Client, rng: random.Random, until: float) -> None:
    killed = 0
    # On a busy machine there are few turns: one kill there has to be.
    while time.monotonic() < until or not killed:
        state = await client.state()
        assert conserved(state)
        victim = rng.choice(list(state["executors"].values()))["pid"]
        whim = rng.random()
        if victim is not None and whim < 0.4:
            how = rng.choice([signal.SIGKILL, signal.SIGSTOP])
            os.kill(victim, how)
            killed += how is signal.SIGKILL
        elif whim < 0.9:
            await client.put_limits(max_batch_size=rng.randint(1, 64), expires=rng.random() + 0.1)
        else:
            await client.put_limits(release=True)
        await client.metrics()
        await client.get("/admin/decisions?count=1000")
        await asyncio.sleep(rng.random() * 0.4)


async def test_through_kills_stalls_reloads_and_disconnects_nothing_is_lost_or_made_up(
    daemon: Daemon,
) -> None:
    async with daemon.client() as client:
        await client.ready()
        whole = {seed: (await client.ask(tokens=MOST, seed=seed)).text for seed in range(SEEDS)}
        until = time.monotonic() + SECONDS
        users = [a_user(client, random.Random(user), until) for user in range(USERS)]
        operator = asyncio.create_task(
            an_operator_with_bad_habits(client, random.Random(1), until - 1.0)
        )
        another = asyncio.create_task(
            an_operator_with_a_better_idea(daemon, client, random.Random(2), until - 1.0)
        )
        seen = await asyncio.gather(*users)
        await asyncio.gather(operator, another)
        answers = [one for user in seen for one in user if one is not None]
        assert {answer.ended for _, _, answer in answers} <= {"done", "error"}
        done = [one for one in answers if one[2].ended == "done"]
        assert len(done) > 50
        for seed, tokens, answer in done:
            assert answer.finish_reason == "length"
            # A token is a byte here, and the last ones may be half a character.
            expected = whole[seed].encode()[:tokens].decode(errors="replace")
            assert answer.text == expected
        calm = await client.until(
            lambda state: all(one["running"] == 0 for one in state["executors"].values()), "calm"
        )
        assert conserved(calm)
        assert (calm["requests"]["queued"], calm["requests"]["running"]) == (0, 0)
        assert {one["reserved_tokens"] for one in calm["executors"].values()} == {0}
        await client.until(
            lambda state: sum(one["restarts"] for one in state["executors"].values()) > 0,
            "a restart",
        )
        daemon.signal(signal.SIGTERM)
    assert await daemon.exit_code() == 0
    errors = {record["event"] for record in daemon.log() if record["level"] == "error"}
    assert errors == {"executor lost"}
