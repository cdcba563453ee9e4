"""Whether the simulator, fed with a profile, tells what the live daemon serves on this machine.

`python -m bench.profile_against_live [-c configs/demo.yaml]` takes turns: `headway profile` writes
its file, and the daemon serves clients who wait for their answers. The simulator then plays the
same clients, drawn alike, on that file. Prompts are random tokens, so that none shares its KV. What
is promised of a profile stands below, and is checked: how long it takes, and how far it is off.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.agreement import daemon
from bench.arrivals import Arrival, Clients, Source, Workload
from bench.journal import Journal
from bench.lengths import Lengths
from bench.presets import executor_of
from bench.simulator import Rules, Simulator
from bench.step_clients import ready
from controller.config import Config
from controller.config_load import load
from controller.core import build_core

DEMO = Path(__file__).parents[1] / "configs" / "demo.yaml"
CLIENTS = 16
LENGTHS = Lengths("short", 48, 0.6, 48, 0.5, 192, 128)
# Seconds at the beginning that are not counted: all clients begin at once.
UNCOUNTED_S = 15.0
AT_MOST_OFF = 0.15
AT_MOST_S = 180.0
_HELD_OUT = re.compile(r"^# held out: .* within ([\d.]+)% in the median", re.MULTILINE)
# Every vocabulary has so many tokens.
_VOCABULARY = 256
# The simulator counts what has ended when the clients stop, and so does the other side.
_RULES = Rules(drain_s=0.0)


@dataclass(frozen=True, slots=True)
class Round:
    """One turn: seconds that the profile took with loading, the median error of steps that were
    held out of its fit, and tokens per second of both."""

    profiled_s: float
    held_out: float
    live: float
    simulated: float

    @property
    def off(self) -> float:
        """By which fraction the simulator is off."""
        return self.simulated / self.live - 1


def configured(path: Path, size: int) -> dict[str, Any]:
    """The configuration with limits that stay, and room for all clients."""
    written: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    written.setdefault("limits", {})["max_batch_size"] = size
    written.setdefault("control", {})["policy"] = {"type": "static"}
    return written


def workload(seconds: float) -> Workload:
    """The clients, who do not think."""
    clients = Clients("paid", CLIENTS, 0.0, LENGTHS)
    return Workload("clients", seconds, (), (clients,))


def profiled(config: Path, out: Path, *, seconds: float) -> float:
    """Let `headway profile` write its file; answers the seconds that it took with loading."""
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "profile"]
    begun = time.monotonic()
    subprocess.run(
        [*command, "-c", str(config), "--out", str(out), "--seconds", str(seconds)],
        stdin=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - begun


def simulated(config: Config, like: Path, seconds: float, *, seed: int) -> float:
    """Tokens per second that the simulator gives the clients."""
    (executor,) = config.executor_list()
    journal, tiers = Journal(), config.tier_list()
    core = build_core(
        tiers,
        {executor.name: executor.group},
        limits=config.limits,
        envelope=config.envelope,
        control=config.control,
        listeners=(journal,),
        started=0.0,
        stopwatch=lambda: 0.0,
    )
    by_name, settings = {tier.name: tier for tier in tiers}, {executor.name: executor_of(str(like))}
    Simulator(core, settings, by_name, workload(seconds), journal, _RULES, seed).run()
    counted = [fate for fate in journal.fates if UNCOUNTED_S <= fate.ended_s < seconds]
    served = sum(fate.tokens for fate in counted if fate.outcome == "finished")
    return served / (seconds - UNCOUNTED_S)


async def live(url: str, seconds: float, *, seed: int) -> float:
    """Tokens per second that a daemon gives them."""
    source, drawn = Source(workload(seconds), seed), random.Random(seed)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        model = await ready(session)
        begun, ends = time.monotonic(), list[tuple[float, int]]()

        async def one(arrival: Arrival) -> None:
            asked: Arrival | None = arrival
            while asked is not None:
                tokens = await _ask(session, model, asked, drawn)
                now = time.monotonic() - begun
                ends.append((now, tokens))
                source.ended(asked.client, now)
                asked = next(source.take(now), None)

        async with asyncio.TaskGroup() as group:
            for arrival in list(source.take(0.0)):
                group.create_task(one(arrival))
    served = sum(tokens for at, tokens in ends if UNCOUNTED_S <= at < seconds)
    return served / (seconds - UNCOUNTED_S)


async def _ask(
    session: aiohttp.ClientSession, model: str, arrival: Arrival, drawn: random.Random
) -> int:
    body = {
        "model": model,
        "prompt": [drawn.randrange(_VOCABULARY) for _ in range(arrival.prompt)],
        "max_tokens": arrival.output,
        "ignore_eos": True,
        "temperature": 0,
    }
    async with session.post("/v1/completions", json=body) as response:
        response.raise_for_status()
        return int((await response.json())["usage"]["completion_tokens"])


def turn(path: Path, folder: Path, number: int, *, profile_s: float, live_s: float) -> Round:
    """One turn; the order of profile and daemon changes from turn to turn."""
    written, like = folder / "headway.yaml", folder / f"like-{number}.yaml"
    written.write_text(yaml.safe_dump(configured(path, CLIENTS)), encoding="utf-8")

    def serve() -> float:
        with daemon(written) as url:
            return asyncio.run(live(url, live_s, seed=number))

    # What a neighbour takes from one of them it takes as often from the other.
    served = serve() if number % 2 else 0.0
    took_s = profiled(written, like, seconds=profile_s)
    served = served or serve()
    if not served:
        raise SystemExit("no answer ended while it was counted: give it more --live seconds")
    told = simulated(load(written, env={}), like, live_s, seed=number)
    return Round(took_s, held_out(like.read_text(encoding="utf-8")), served, told)


def held_out(profile: str) -> float:
    """The median error of held-out steps, as the file of a profile says it."""
    if (found := _HELD_OUT.search(profile)) is None:
        raise SystemExit("too few kinds of step were measured: give it more --profile seconds")
    return float(found[1]) / 100


def main() -> None:
    """Take turns and compare; exit 1 where something is not as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-c", "--config", type=Path, default=DEMO)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=float, default=120.0, help="seconds of a profile")
    parser.add_argument("--live", type=float, default=75.0, help="seconds of clients")
    args = parser.parse_args()
    if args.live <= UNCOUNTED_S:
        parser.error(f"--live should be more than {UNCOUNTED_S:g}: that much is not counted")
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.rounds):
            one = turn(args.config, Path(folder), number, profile_s=args.profile, live_s=args.live)
            rounds.append(one)
            print(
                f"turn {number + 1}: profile {one.profiled_s:.0f} s with loading, held-out steps"
                f" within {one.held_out:.1%}; {CLIENTS} clients get {one.live:.1f} tokens/s,"
                f" simulated {one.simulated:.1f}: {one.off:+.1%}",
                flush=True,
            )
    off = statistics.median(one.off for one in rounds)
    held = statistics.median(one.held_out for one in rounds)
    longest_s = max(one.profiled_s for one in rounds)
    print(
        f"medians: the simulator is off by {off:+.1%}, held-out steps by {held:.1%} "
        f"(at most {AT_MOST_OFF:.0%} each); a profile takes {longest_s:.0f} s "
        f"(at most {AT_MOST_S:.0f})"
    )
    raise SystemExit(max(abs(off), held) > AT_MOST_OFF or longest_s > AT_MOST_S)


if __name__ == "__main__":
    main()
