"""Whatever engines and clients do, every request ends once, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random

from tests.e2e.client import Client, conserved
from tests.e2e.inside import inside
from tests.executor.fake_engine import FakeEngine, engine
from tests.gateway.test_upstream import settings

SEATS = 3
MOST_ASKED = 40


def seen_enough(ends: list[str]) -> bool:
    return min(ends.count(end) for end in ("done", "error", "left")) > 2


async def client_of(client: Client, lot: random.Random, ends: list[str]) -> None:
    # What befalls whom is a matter of time: until everything has, a few times.
    for number in range(MOST_ASKED):
        if number >= 3 and seen_enough(ends):
            return
        try:
            async with asyncio.timeout(lot.choice([0.003, 0.02, 20.0, 20.0, 20.0])):
                answer = await client.ask(
                    tokens=lot.randint(1, 6),
                    stream=lot.random() < 0.6,
                    service_tier=lot.choice(["priority", "default", "flex"]),
                )
            ends.append(answer.ended)
            # Never a clean end with text missing.
            assert answer.ended != "cut"
            if answer.ended == "done":
                assert answer.text.startswith("Paris")
        except TimeoutError:
            ends.append("left")


async def trouble(there: FakeEngine, lot: random.Random) -> None:
    while True:
        await asyncio.sleep(lot.uniform(0.01, 0.05))
        what = lot.randrange(6)
        if what == 0:
            await there.kill()
            await asyncio.sleep(0.02)
            await there.start()
        there.status = {1: 500, 2: 429, 3: 503}.get(what, 200)
        there.cut_after = 1 if what == 4 else None
        there.hang_metrics = what == 5


async def test_in_any_trouble_every_request_ends_once_and_no_seat_is_lost() -> None:
    lot = random.Random(11)
    ends: list[str] = []
    async with engine(pace_s=0.001) as one, engine(pace_s=0.001) as two:
        config = settings(one, two, seats=SEATS)
        async with inside(config) as (parts, client):
            troubles = [
                asyncio.create_task(trouble(there, random.Random(number)))
                for number, there in enumerate((one, two))
            ]
            await asyncio.gather(*(client_of(client, lot, ends) for _ in range(12)))
            for task in troubles:
                task.cancel()
            await asyncio.gather(*troubles, return_exceptions=True)
            for there in (one, two):
                there.status, there.cut_after, there.hang_metrics = 200, None, False
                if there.stopped:
                    await there.start()
            state = await client.until(
                lambda s: all(e["state"] == "ready" for e in s["executors"].values()), "both"
            )
            state = await client.until(lambda s: s["requests"]["running"] == 0, "an end")
            assert conserved(state)
            assert state["requests"]["queued"] == 0
            seats = parts.dispatcher.batcher.executors.values()
            assert [len(one.seats) for one in seats] == [0, 0]
            assert [one.reserved_tokens for one in seats] == [0, 0]
            answers = await asyncio.gather(*(client.ask(tokens=2) for _ in range(12)))
            assert [answer.text for answer in answers] == ["Paris is"] * 12
        assert max(one.most_at_once, two.most_at_once) == SEATS
        assert one.running == two.running == []
    assert seen_enough(ends)


async def test_tasks_and_descriptors_are_the_same_after_many_requests() -> None:
    def held() -> tuple[int, int]:
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

    async with engine(pace_s=0.0) as there, inside(settings(there, seats=8)) as (_, client):

        async def ask(count: int) -> None:
            for _ in range(count):
                await client.ask(tokens=1)

        await asyncio.gather(*(ask(5) for _ in range(8)))
        await there.until(lambda: there.connections <= 1)
        tasks, descriptors = held()
        await asyncio.gather(*(ask(25) for _ in range(8)))
        # A scrape may be under way at either time, and somebody's last connection be closing.
        await there.until(lambda: held() <= (tasks + 2, descriptors + 2))
