"""The control loop at work: what `threshold` does on a simulated device, and two executors."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from controller.batcher import Batcher
from controller.config_control import GuardConfig
from controller.decision import Decision
from controller.gates import Code
from controller.guard import Envelope, Guard
from controller.loop import ControlLoop, Named
from controller.observer import Observer
from controller.records import Windows
from controller.request import Request
from controller.signals import SignalSource
from executor.contract import Sampling, SimulatedSettings
from executor.simulated import capacity_of
from executor.simulation import Simulation
from policies.contract import Limits, Policy, Proposal, Signals
from policies.registry import build
from tests.controller.stage import PAID
from tests.e2e.client import conserved
from tests.e2e.conftest import Start
from tests.e2e.daemon import STEADY, settings

TICK_S = 0.25
# Every row costs: more of them are no faster. A step costs: more rows in it are free.
FLAT = SimulatedSettings(c_s=0.004, utilization=0.97)
STEEP = SimulatedSettings(a_s=0.03, utilization=0.97)


class Greedy:
    """Wants more, whatever it sees."""

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(replace(limits, max_batch_size=limits.max_batch_size + 1), "more")


@dataclass
class Scene:
    """A control loop over a simulated executor and a long queue, in virtual time."""

    loop: ControlLoop
    batcher: Batcher
    simulation: Simulation

    @classmethod
    def build(cls, device: SimulatedSettings, policy: Policy) -> Scene:
        tiers = (PAID,)
        observer = Observer(tiers, ["e"], started=0.0)
        batcher = Batcher(tiers, {"e": "g"}, Limits(4, 2048, 0.005), listeners=[observer])
        batcher.on_ready("e", 1, capacity_of(device), 0.0)
        loop = ControlLoop(
            batcher,
            observer,
            SignalSource(batcher, observer, "g", Windows()),
            group="g",
            policy=Named("tested", policy),
            fallback=Named("static", build("static", {})),
            guard=Guard(
                GuardConfig(), Envelope(Limits(1, 256, 0.0), Limits(64, 8192, 0.05)), min_samples=20
            ),
            history=1000,
            stopwatch=lambda: 0.0,
        )
        scene = cls(loop, batcher, Simulation(device))
        for index in range(900):
            scene.arrive(f"r{index}")
        return scene

    def arrive(self, name: str) -> None:
        permit = self.batcher.reserve("paid", requests=1, tokens=100, size=1, now=0.0)
        request = Request(name, "paid", "c", [1] * 20, 80, Sampling(), 0.0, 0.0)
        self.batcher.offer(request, permit, 0.0)

    def run(self, seconds: float) -> list[Decision]:
        """Steps and ticks in the order of their instants; answers what was decided."""
        now, tick_at = 0.0, TICK_S
        while now < seconds:
            for work in self.batcher.poll(now).work.values():
                self.simulation.limit(work.epoch, work.max_batch_tokens)
                self.simulation.begin(work.submit)
                self.simulation.release(work.release)
            duration_s, report = self.simulation.next_step()
            now += duration_s
            while tick_at <= now:
                self.loop.tick(tick_at, wall=tick_at, devices={})
                tick_at += TICK_S
            self.batcher.on_report("e", 1, report, now)
        assert self.batcher.queued() > 0
        return list(self.loop.decisions)


def threshold() -> Policy:
    return build("threshold", {})


class TestThreshold:
    def test_a_long_queue_at_40_percent_raises_size_and_wait(self) -> None:
        decisions = Scene.build(claiming(STEEP, 0.40), threshold()).run(15.0)
        first = next(decision for decision in decisions if decision.moved)
        assert (first.before.max_batch_size, first.after.max_batch_size) == (4, 5)
        assert (first.before.wait_timeout_s, first.after.wait_timeout_s) == (0.005, 0.006)
        assert "wait per seat, utilisation 40%" in first.reason
        limits = decisions[-1].after
        assert limits.max_batch_size >= 10
        assert limits.wait_timeout_s >= 0.015

    def test_at_97_percent_with_flat_throughput_it_grows_once_and_no_more(self) -> None:
        scene = Scene.build(FLAT, threshold())
        decisions = scene.run(15.0)
        assert [d.after.max_batch_size for d in decisions if d.moved] == [5]
        assert "but utilisation 97% and throughput is flat" in decisions[-1].reason

    def test_at_97_percent_with_throughput_that_grows_it_goes_on(self) -> None:
        decisions = Scene.build(STEEP, threshold()).run(15.0)
        assert decisions[-1].after.max_batch_size >= 10

    def test_without_a_counter_the_busy_fraction_stands_in_and_is_called_so(self) -> None:
        decisions = Scene.build(claiming(STEEP, None), threshold()).run(15.0)
        grown = next(decision for decision in decisions if decision.moved)
        seen = grown.signals.executors[0].utilization
        assert seen is not None
        assert (round(seen.value, 2), seen.source) == (0.99, "busy")
        assert "busy 99% of the time (in place of utilisation)" in grown.reason
        # Near 1 whenever there is work: it says nothing about saturation and vetoes nothing.
        assert decisions[-1].after.max_batch_size >= 10


class TestGuard:
    def test_it_vetoes_growth_that_brought_nothing_on_a_busy_device(self) -> None:
        decisions = Scene.build(FLAT, Greedy()).run(15.0)
        # The first growth came when half a second had been seen; the second one brought nothing.
        assert [d.after.max_batch_size for d in decisions if d.moved] == [5, 6]
        assert {note.code for note in decisions[-1].notes} == {Code.GPU_VETO}
        assert decisions[-1].notes[0].detail.startswith("97% busy, ")

    def test_it_lets_a_device_that_is_half_idle_grow(self) -> None:
        decisions = Scene.build(claiming(FLAT, 0.5), Greedy()).run(15.0)
        assert decisions[-1].after.max_batch_size >= 10


def claiming(device: SimulatedSettings, utilization: float | None) -> SimulatedSettings:
    return msgspec.structs.replace(device, utilization=utilization)


def quick(utilization: float | None) -> dict[str, Any]:
    """Eager to decide: ticks of 50 ms over windows of 300 ms."""
    return settings(
        limits={"max_batch_size": 2, "max_batch_tokens": 2048, "wait_timeout": "5ms"},
        control={
            "policy": {"type": "threshold", "parameters": {"up_ticks": 2}},
            "interval": "50ms",
            "fast_window": "300ms",
            "min_samples": 5,
            "guard": {"cooldown": "100ms"},
        },
        executors=[STEADY | {"a": "4ms", "utilization": utilization}],
    )


@pytest.mark.parametrize(
    ("utilization", "source", "words"),
    [
        (0.4, "simulated", "utilisation 40%"),
        (None, "busy", "of the time (in place of utilisation)"),
    ],
)
async def test_the_daemon_moves_its_limits_and_says_what_it_saw(
    start: Start, utilization: float | None, source: str, words: str
) -> None:
    daemon = start(quick(utilization)).listening()
    async with daemon.client() as client:
        await client.ready()
        tasks = [asyncio.create_task(client.ask(tokens=50)) for _ in range(40)]
        grown = await client.until(
            lambda state: state["groups"]["default"]["limits"]["max_batch_size"] >= 4, "growth"
        )
        limits = grown["groups"]["default"]["limits"]
        assert limits["wait_timeout_s"] > 0.005
        _, told = await client.get("/admin/decisions?count=1000")
        moved = [decision for decision in told["decisions"][::-1] if decision["moved"]]
        assert moved[0]["before"]["max_batch_size"] == 2
        assert moved[0]["after"]["max_batch_size"] == 3
        assert words in moved[0]["reason"]
        seen = moved[0]["signals"]["executors"][0]
        assert seen["utilization"]["source"] == source
        assert seen["size_bound"] >= 0.5
        assert [decision["epoch"] for decision in moved] == list(range(1, len(moved) + 1))
        assert {(await task).ended for task in tasks} == {"done"}
        samples = await client.metrics()
        labels = frozenset({("executor", "main"), ("source", source)})
        assert 0 <= samples["headway_device_utilization_ratio", labels] <= 1
        logged = [record["decision"] for record in daemon.log() if record["event"] == "limits"]
        assert logged[0].startswith("B 2 -> 3, ")


async def test_two_executors_of_a_group_share_the_load_and_the_limits(start: Start) -> None:
    pair = [STEADY | {"name": name} for name in ("left", "right")]
    limits = {"max_batch_size": 4, "max_batch_tokens": 2048, "wait_timeout": "0s"}
    daemon = start(settings(executors=pair, limits=limits)).listening()
    async with daemon.client() as client:
        await client.until(
            lambda state: all(e["state"] == "ready" for e in state["executors"].values()), "both"
        )
        tasks = [asyncio.create_task(client.ask(tokens=50, seed=seed)) for seed in range(24)]
        state = await client.until(lambda state: state["requests"]["queued"] == 16, "full seats")
        assert {name: e["running"] for name, e in state["executors"].items()} == {
            "left": 4,
            "right": 4,
        }
        answers = await asyncio.gather(*tasks)
        assert {answer.ended for answer in answers} == {"done"}
        samples = await client.metrics()
        rows = {
            name: samples["headway_step_batch_size_sum", frozenset({("executor", name)})]
            for name in ("left", "right")
        }
        assert sum(rows.values()) == 24 * 50
        assert abs(rows["left"] - rows["right"]) <= 2 * 50
        # The loss of one leaves the daemon ready, and moves what ran there to the other.
        tasks = [asyncio.create_task(client.ask(tokens=30)) for _ in range(24)]
        state = await client.until(lambda state: state["requests"]["running"] == 8, "full seats")
        os.kill(state["executors"]["left"]["pid"], signal.SIGKILL)
        state = await client.until(
            lambda state: state["executors"]["left"]["restarts"] == 1, "a new worker"
        )
        assert state["ready"]
        assert (await client.get("/readyz"))[0] == 200
        assert {(await task).ended for task in tasks} == {"done"}
        assert conserved(await client.state())
