"""The daemon's parts on a clock that the test moves, with executors that do as it says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.config import Config
from controller.request import Ended, Outcome, Request
from executor.contract import (
    Capacity,
    Finished,
    FinishReason,
    Key,
    Logprobs,
    Ready,
    Report,
    Sampling,
    StepSample,
    TextModel,
    Tokens,
    Work,
)
from gateway.assembly import Parts, assemble
from gateway.contract import Sink
from metrics.gpu import GpuMeter

CAPACITY = Capacity(
    model="m",
    device="test",
    max_seqs=64,
    max_step_tokens=8192,
    kv_tokens=100_000,
    max_context_tokens=8192,
)


@dataclass
class Clock:
    """Monotonic seconds, moved by hand."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Wire:
    """An executor's end of the line: keeps what it was sent."""

    works: list[Work] = field(default_factory=list)

    def send(self, work: Work) -> None:
        self.works.append(work)

    @property
    def begun(self) -> list[str]:
        """Ids of the requests that it was told to run."""
        return [submit.request_id for work in self.works for submit in work.submit]

    @property
    def released(self) -> list[Key]:
        """The attempts that it was told to let go."""
        return [key for work in self.works for key in work.release]


@dataclass
class Heard:
    """A sink that keeps what it hears, in order."""

    log: list[Any] = field(default_factory=list)

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        self.log.append(list(ids) if logprobs is None else (list(ids), logprobs))

    def on_end(self, ended: Ended) -> None:
        self.log.append((ended.outcome, ended.reason))


class Rig:
    """Parts that were assembled from a configuration and never started."""

    def __init__(self, *, gpu_meter: Callable[[str], Any] = GpuMeter, **sections: Any) -> None:
        config: Mapping[str, Any] = {
            "auth": {"default_tier": "paid"},
            "limits": {"max_batch_size": 4, "max_batch_tokens": 1024, "wait_timeout": "0s"},
            "control": {"policy": {"type": "static"}, "hold": "fixed"},
            "executors": [{"kind": "simulated", "model": "sim"}],
        }
        self.clock = Clock()
        self.parts: Parts = assemble(
            Config.model_validate({**config, **sections}),
            environ={},
            clock=self.clock,
            gpu_meter=gpu_meter,
        )
        self.dispatcher, self.desk = self.parts.dispatcher, self.parts.desk
        self.batcher = self.dispatcher.batcher
        self.wires = {name: Wire() for name in self.parts.processes}
        self.dispatcher.executors.update(self.wires)
        self.incarnations = dict.fromkeys(self.wires, 0)

    @property
    def wire(self) -> Wire:
        """The line to the executor `main`."""
        return self.wires["main"]

    async def turn(self) -> None:
        """Let the loop do what was left for its next turn."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop run until something that was sent over a socket has had its effect."""
        async with asyncio.timeout(10.0):
            while not condition():
                await self.turn()

    async def ready(self, executor: str = "main", capacity: Capacity = CAPACITY) -> None:
        """A new incarnation of an executor is ready."""
        self.incarnations[executor] += 1
        ready = Ready(capacity=capacity, text=TextModel(kind="bytes"))
        self.dispatcher.on_ready(executor, self.incarnations[executor], ready)
        await self.turn()

    async def lose(self, executor: str = "main", *, restart_in_s: float | None = 0.5) -> None:
        """Its process is gone."""
        incarnation = self.incarnations[executor]
        self.dispatcher.on_lost(executor, incarnation, "killed: by a test", restart_in_s)
        await self.turn()

    async def offer(self, name: str, sink: Sink, *, tier: str = "paid", **more: Any) -> None:
        """A request arrives."""
        self.offer_now(name, sink, tier=tier, **more)
        await self.turn()

    async def cancel(self, name: str, outcome: Outcome, reason: str) -> None:
        """A request is ended from outside."""
        self.desk.cancel(name, outcome, reason)
        await self.turn()

    def offer_now(self, name: str, sink: Sink, *, tier: str = "paid", **more: Any) -> None:
        """A request arrives while something else goes on."""
        permit = self.desk.reserve(tier, requests=1, tokens=20, size=10)
        fields: dict[str, Any] = {"prompt": [1, 2, 3], "max_new_tokens": 10} | more
        request = Request(
            id=name,
            tier=tier,
            client="c",
            sampling=Sampling(),
            arrival=self.clock.now,
            arrived_at=0.0,
            **fields,
        )
        self.desk.offer(request, permit, sink)
        self.desk.give_back(permit)

    async def report(
        self,
        tokens: Mapping[str, Sequence[int]] | None = None,
        *,
        finished: Sequence[str] = (),
        released: Sequence[Key] = (),
        reason: FinishReason = "length",
        executor: str = "main",
    ) -> None:
        """A step: what it generated by request, who is done, who was let go."""
        requests, told = self.batcher.book.requests, tokens or {}
        rows = len(told)
        report = Report(
            epoch=self.batcher.executors[executor].epoch,
            sample=StepSample(0.01, rows, rows, 10 * rows, 0, 0) if rows else None,
            steps=1 if rows else 0,
            kv_tokens=10 * rows,
            tokens=[
                Tokens(name, requests[name].attempt, len(requests[name].tokens), list(ids))
                for name, ids in told.items()
            ],
            finished=[Finished(name, requests[name].attempt, reason) for name in finished],
            released=list(released),
        )
        self.dispatcher.on_report(executor, self.incarnations[executor], report)
        await self.turn()

    def outcomes(self) -> dict[str, int]:
        """How many requests ended, by outcome."""
        return {outcome.value: count for outcome, count in self.batcher.book.outcomes.items()}

    def conserved(self) -> bool:
        """offered = ended + waiting + running."""
        book = self.batcher.book
        ended = sum(book.outcomes[outcome] for outcome in Outcome)
        return book.offered == ended + self.batcher.queued() + self.batcher.running()
