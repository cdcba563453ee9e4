"""Whether daemon and simulator agree: the same arrivals, the same coefficients, both measured.

`python -m bench.agreement` starts `headway serve` with a simulated executor for twenty seconds a
seed, sends it what the simulator plays too, and compares medians as the daemon itself booked them.
What HTTP and the two processes add is measured of requests that are alone, and told the simulator.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from bench.arrivals import Arrival, Workload
from bench.journal import Journal
from bench.lengths import Lengths
from bench.simulator import Rules, Simulator
from bench.workloads import Phase, arrivals
from controller.config import Config
from controller.config_executors import SimulatedExecutor
from controller.config_load import load
from controller.core import build_core
from executor.contract import SimulatedSettings, StepSample
from executor.simulation import step_time_s

# Steps of 5 to 20 ms, prompts in chunks: fast enough for hundreds of requests in the time.
CONFIG: Mapping[str, Any] = {
    "auth": {"default_tier": "paid"},
    "limits": {"max_batch_size": 12, "max_batch_tokens": 256, "wait_timeout": "5ms"},
    "envelope": {"max_batch_size": [1, 32], "max_batch_tokens": [64, 2048]},
    "control": {"policy": {"type": "static"}},
    "executors": [
        {
            "kind": "simulated",
            "max_seqs": 32,
            "max_step_tokens": 2048,
            "kv_tokens": 20000,
            "a": "5ms",
            "b": "300ns",
            "c": "200us",
            "d": "20us",
            "jitter": 0.03,
        }
    ],
}
LENGTHS = Lengths("short", 150, 0.8, 50, 0.7, 800, 200)
# Requests per second: busy most of the time, and nobody waits for long. Above 23 a queue builds up.
RATE = 17.0
# Requests that are alone, of so many tokens, after all others: the median of what each takes more
# than its step.
ALONE, ALONE_PROMPT = 25, 50
_TIERS = {"paid": "priority", "free": "default", "offline": "flex"}
_ADDRESS = re.compile(r"listens on (http://\S+)")
READY_TRIES = 200
_ID = re.compile(rb'"id":\s*"(cmpl-[0-9a-f]+)"')


@dataclass(frozen=True, slots=True)
class Medians:
    """Medians over all requests, in seconds from the arrival at the daemon."""

    ttft_s: float
    e2e_s: float
    requests: int


@dataclass(frozen=True, slots=True)
class Served:
    """What the daemon booked under load, and what it takes of a request that is alone beyond the
    step that computes it."""

    medians: Medians
    gateway_s: float


def settings_of(config: Config) -> dict[str, SimulatedSettings]:
    """The simulated executors of a configuration, by name."""
    return {
        executor.name: msgspec.convert(executor.settings(), SimulatedSettings)
        for executor in config.executor_list()
        if isinstance(executor, SimulatedExecutor)
    }


def simulated(config: Config, workload: Workload, seed: int, *, gateway_s: float) -> Medians:
    """What the simulator says, where a request waits `gateway_s` after its arrival."""
    executors = settings_of(config)
    journal, tiers = Journal(), config.tier_list()
    core = build_core(
        tiers,
        {executor.name: executor.group for executor in config.executor_list()},
        limits=config.limits,
        envelope=config.envelope,
        control=config.control,
        listeners=(journal,),
        started=0.0,
        stopwatch=lambda: 0.0,
    )
    by_name = {tier.name: tier for tier in tiers}
    rules = Rules(gateway_s=gateway_s)
    Simulator(core, executors, by_name, workload, journal, rules, seed).run()
    done = [fate for fate in journal.fates if fate.first_s is not None]
    return Medians(
        statistics.median((fate.first_s or 0.0) - fate.arrival_s for fate in done),
        statistics.median(fate.ended_s - fate.arrival_s for fate in done),
        len(done),
    )


@contextmanager
def daemon(path: Path) -> Iterator[str]:
    """`headway serve` as a process of its own; answers where it listens."""
    command = [sys.executable, "-c", "from gateway.cli import main; main()", "serve"]
    process = subprocess.Popen(
        [*command, "-c", str(path), "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := _ADDRESS.search(line):
                yield found[1]
                return
        raise RuntimeError(f"the daemon ended with {process.wait()} before it listened")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def served(url: str, workload: Workload, settings: SimulatedSettings) -> Served:
    """What the daemon says, told every request at its time."""
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        for _ in range(READY_TRIES):
            if (await _json(session, "/admin/state"))["ready"]:
                break
            await asyncio.sleep(0.1)
        else:
            raise RuntimeError("the daemon has no executor that is ready")
        model = (await _json(session, "/v1/models"))["data"][0]["id"]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.TaskGroup() as group:
            asked = [
                group.create_task(_ask(session, model, arrival, begun + arrival.time_s))
                for arrival in workload.arrivals
            ]
        views = [await _json(session, f"/admin/requests/{task.result()}") for task in asked]
        medians = Medians(
            statistics.median(map(_ttft_s, views)),
            statistics.median(view["total_s"] for view in views),
            len(views),
        )
        return Served(medians, await _gateway_s(session, model, settings))


async def _gateway_s(
    session: aiohttp.ClientSession, model: str, settings: SimulatedSettings
) -> float:
    """What a request that is alone takes to its first token, beyond the step and any hold."""
    step = StepSample(0.0, 1, 0, 0, ALONE_PROMPT, ALONE_PROMPT**2)
    took_s = []
    for _ in range(ALONE):
        asked = await _ask(session, model, Arrival(0.0, "paid", ALONE_PROMPT, 1), 0.0)
        view = await _json(session, f"/admin/requests/{asked}")
        took_s.append(_ttft_s(view) - view["hold_s"])
    return max(0.0, float(statistics.median(took_s)) - step_time_s(settings, step))


def _ttft_s(view: Mapping[str, Any]) -> float:
    return float(view["queue_s"] + view["hold_s"] + view["prefill_s"])


async def _json(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as response:
        return await response.json()


async def _ask(session: aiohttp.ClientSession, model: str, arrival: Arrival, at: float) -> str:
    """Send one request at its time; answers its id once it is done."""
    body = {
        "model": model,
        "prompt": [97] * arrival.prompt,
        "max_tokens": arrival.output,
        "ignore_eos": True,
        "stream": True,
        "service_tier": _TIERS[arrival.tier],
    }
    await asyncio.sleep(at - asyncio.get_running_loop().time())
    async with session.post("/v1/completions", json=body) as response:
        response.raise_for_status()
        found = _ID.search(await response.read())
        if found is None:
            raise RuntimeError("a stream ended well without a single event")
        return found[1].decode()


def compare(seed: int, seconds: float, *, rate: float = RATE) -> tuple[Served, Medians]:
    """Daemon and simulator on the same arrivals, `rate` a second for so many seconds."""
    made = arrivals([Phase(seconds, rate, LENGTHS)], seed)
    workload = Workload("agreement", seconds, tuple(made))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "headway.yaml"
        path.write_text(yaml.safe_dump(dict(CONFIG)))
        config = load(path, env={})
        (settings,) = settings_of(config).values()
        with daemon(path) as url:
            real = asyncio.run(served(url, workload, settings))
        return real, simulated(config, workload, seed, gateway_s=real.gateway_s)


def off_by(pairs: Sequence[tuple[Medians, Medians]]) -> tuple[float, float]:
    """How far the simulator is off in median TTFT and E2E, as the mean of the seeds."""
    return (
        statistics.fmean(ours.ttft_s / real.ttft_s - 1 for real, ours in pairs),
        statistics.fmean(ours.e2e_s / real.e2e_s - 1 for real, ours in pairs),
    )


def main() -> None:
    """Compare, seed by seed, and on the whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=float, default=RATE)
    args = parser.parse_args()
    pairs = []
    for seed in range(1, args.seeds + 1):
        real, ours = compare(seed, args.seconds, rate=args.rate)
        pairs.append((real.medians, ours))
        print(
            f"seed {seed}: {real.medians.requests} requests, {real.gateway_s * 1e3:.1f} ms each of "
            f"HTTP and messages; TTFT {real.medians.ttft_s * 1e3:.1f} ms, simulated "
            f"{ours.ttft_s * 1e3:.1f}; E2E {real.medians.e2e_s * 1e3:.0f} ms, simulated "
            f"{ours.e2e_s * 1e3:.0f}",
            flush=True,
        )
    ttft, e2e = off_by(pairs)
    print(f"the simulator is off by {ttft:+.1%} in TTFT and by {e2e:+.1%} in E2E")


if __name__ == "__main__":
    main()
