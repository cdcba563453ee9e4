"""A real model under a load that steps from 2 to 24 clients and back: who keeps the target?

`python -m bench.step_clients [--rounds 2] [--model DIR]` measures a step at batch 8, promises one
and a half times that as mean inter-token latency, and lets `slo` and static limits serve in turns,
each in a daemon of its own. Prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.agreement import READY_TRIES, daemon
from bench.openai_load import QUESTIONS
from executor.contract import DEMO_MODEL

DEMO = Path(__file__).parents[1] / "configs" / "demo.yaml"
FEW, MANY = 2, 24
# Seconds with few clients, with many, and with few again; of each the first are not counted.
PHASES_S, UNCOUNTED_S = (20.0, 60.0, 20.0), 10.0
NEW_TOKENS = 48
MEASURED_AT, PROMISE = 8, 1.5
# Seconds until eight clients have settled, and looks at their steps after that, one a second.
SETTLES_S, LOOKS = 10.0, 20
ATTAINMENT = 0.9


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy, and the batch size that it begins with."""

    name: str
    policy: str
    size: int


CONTENDERS = (
    Contender("static 4", "static", 4),
    Contender("static 32", "static", 32),
    Contender("slo", "slo", 8),
)


@dataclass(frozen=True, slots=True)
class Served:
    """One request: when it came, its mean inter-token latency, and its tokens."""

    at: float
    itl_s: float
    ttft_s: float
    tokens: int


@dataclass(slots=True)
class Figures:
    """What a contender came to while there were many clients, over all rounds."""

    served: list[Served] = field(default_factory=list)
    seconds: float = 0.0
    sizes: list[int] = field(default_factory=list)

    def row(self, name: str, target_s: float) -> str:
        """A line of the table."""
        itl = sorted(one.itl_s for one in self.served)
        kept = sum(value <= target_s for value in itl)
        tokens = sum(one.tokens for one in self.served)
        p90 = itl[int(0.9 * (len(itl) - 1))]
        ttft = statistics.median(one.ttft_s for one in self.served)
        return (
            f"| {name} | {statistics.median(self.sizes):.0f} | {kept / len(itl):.0%} | "
            f"{statistics.median(itl) * 1e3:.0f} / {p90 * 1e3:.0f} ms | {ttft:.1f} s | "
            f"{tokens / self.seconds:.0f} | {kept / self.seconds:.2f} |"
        )


def configured(contender: Contender, *, itl_s: float, model: str) -> dict[str, Any]:
    """The demo's configuration with one tier's target and a contender's limits."""
    written: dict[str, Any] = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    targets = {"ttft": "60s", "itl": f"{itl_s * 1e3:.0f}ms", "attainment": ATTAINMENT}
    written["tiers"]["paid"]["targets"] = targets
    written["limits"]["max_batch_size"] = contender.size
    written["control"]["policy"] = {"type": contender.policy}
    written["executors"][0]["model"] = model
    return written


async def ready(session: aiohttp.ClientSession) -> str:
    """Wait until the model is loaded; answers its name."""
    for _ in range(READY_TRIES):
        async with session.get("/readyz") as response:
            if response.status == 200:
                break
        await asyncio.sleep(0.5)
    else:
        raise RuntimeError("the daemon has no executor that is ready")
    async with session.get("/v1/models") as response:
        return str((await response.json())["data"][0]["id"])


async def clients(
    session: aiohttp.ClientSession, model: str, number: int, *, seconds: float
) -> list[Served]:
    """Keep so many clients asking for so long; each waits for its answer."""
    served: list[Served] = []
    begun, numbers = time.monotonic(), count()

    async def one() -> None:
        while time.monotonic() - begun < seconds:
            at = time.monotonic() - begun
            body = {
                "model": model,
                "messages": [{"role": "user", "content": QUESTIONS[next(numbers) % 8]}],
                "max_tokens": NEW_TOKENS,
                "ignore_eos": True,
                "temperature": 0,
            }
            async with session.post("/v1/chat/completions", json=body) as response:
                response.raise_for_status()
                answer = await response.json()
            async with session.get(f"/admin/requests/{answer['id']}") as response:
                view = await response.json()
            tokens = answer["usage"]["completion_tokens"]
            ttft_s = view["queue_s"] + view["hold_s"] + view["prefill_s"]
            served.append(Served(at, view["decode_s"] / (tokens - 1), ttft_s, tokens))

    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(one())
    return served


async def step_s(url: str) -> float:
    """Seconds of a step that decodes for `MEASURED_AT` clients: the median of a look a second.

    A single look would tell what the machine did just then.
    """
    async with aiohttp.ClientSession(url) as session:
        model = await ready(session)
        seconds = SETTLES_S + LOOKS
        load = asyncio.create_task(clients(session, model, MEASURED_AT, seconds=seconds))
        await asyncio.sleep(SETTLES_S)
        seen = []
        for _ in range(LOOKS):
            await asyncio.sleep(1.0)
            async with session.get("/admin/decisions?count=1") as response:
                signals = (await response.json())["decisions"][0]["signals"]
            seen.append(float(signals["executors"][0]["step_time"]["p50"]))
        await load
    return statistics.median(seen)


async def play(url: str, figures: Figures) -> None:
    """The three phases; what counts is the middle one, once it has settled."""
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        model = await ready(session)
        await clients(session, model, FEW, seconds=PHASES_S[0])
        stop = asyncio.Event()
        watching = asyncio.create_task(_watch(session, figures, stop))
        served = await clients(session, model, MANY, seconds=PHASES_S[1])
        stop.set()
        await watching
        await clients(session, model, FEW, seconds=PHASES_S[2])
    figures.served += [one for one in served if one.at >= UNCOUNTED_S]
    figures.seconds += PHASES_S[1] - UNCOUNTED_S


async def _watch(session: aiohttp.ClientSession, figures: Figures, stop: asyncio.Event) -> None:
    """Note the batch size in force every second, until told to stop."""
    while not stop.is_set():
        async with session.get("/admin/state") as response:
            limits = (await response.json())["groups"]["default"]["limits"]
        figures.sizes.append(limits["max_batch_size"])
        await asyncio.wait({asyncio.ensure_future(stop.wait())}, timeout=1.0)


def run(rounds: int, model: str, contenders: Sequence[Contender] = CONTENDERS) -> None:
    """Measure, then let every contender serve in turns, and print what each came to."""
    found = {contender.name: Figures() for contender in contenders}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headway.yaml"

        def write(contender: Contender, itl_s: float) -> None:
            path.write_text(yaml.safe_dump(configured(contender, itl_s=itl_s, model=model)))

        write(Contender("static 8", "static", MEASURED_AT), 10.0)
        with daemon(path) as url:
            measured_s = asyncio.run(step_s(url))
        target_s = PROMISE * measured_s
        print(
            f"a step at batch {MEASURED_AT} takes {measured_s * 1e3:.0f} ms: "
            f"the target is {target_s * 1e3:.0f} ms for {ATTAINMENT:.0%}",
            flush=True,
        )
        for number in range(rounds):
            for contender in contenders:
                write(contender, target_s)
                with daemon(path) as url:
                    asyncio.run(play(url, found[contender.name]))
                print(f"round {number + 1}, {contender.name}: done", flush=True)
    print(
        "| limits | B | within target | ITL P50 / P90 | TTFT P50 | tokens/s | requests/s in time |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, figures in found.items():
        print(figures.row(name, target_s))


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--model", default=DEMO_MODEL, help="folder of a model, or `demo`")
    args = parser.parse_args()
    run(args.rounds, args.model)


if __name__ == "__main__":
    main()
