"""A stage for the core: a batcher, a clock that tests move, and executors that do as told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from controller.batcher import Batcher
from controller.hold import HoldRule
from controller.listener import Listener
from controller.plan import Dispatch, Plan
from controller.request import Ended, Outcome, Request
from controller.tiers import Targets, Tier
from executor.contract import (
    Capacity,
    Finished,
    FinishReason,
    Key,
    Report,
    Returned,
    Sampling,
    StepSample,
    Submit,
    Tokens,
)
from policies.contract import Limits, StepEstimate

PAID = Tier("paid", 2, Targets(ttft_s=1.0, itl_s=0.1))
FREE = Tier("free", 1, Targets(ttft_s=5.0, itl_s=0.15, attainment=0.9))
OFFLINE = Tier("offline", 0, Targets(e2e_s=600.0))


def model(
    *, a: float = 0.02, b: float = 0.0, c: float = 0.0, d: float = 0.0, e: float = 0.0
) -> StepEstimate:
    """A step model that is known: 20 ms a step, whatever it holds, unless told otherwise."""
    return StepEstimate(
        a=a, b=b, c=c, c_above=c, knee=10_000, d=d, e=e, sigma_s=0.0, samples=100, identifiable=True
    )


def capacity(
    *,
    max_seqs: int = 64,
    kv_tokens: int = 100_000,
    max_context_tokens: int = 8192,
    runs_to_completion: bool = False,
    can_resume: bool = True,
    can_preempt: bool = True,
    splits_prefill: bool = True,
) -> Capacity:
    """A continuous executor with plenty of everything, unless told otherwise."""
    return Capacity(
        model="m",
        device="test",
        max_seqs=max_seqs,
        max_step_tokens=8192,
        kv_tokens=kv_tokens,
        max_context_tokens=max_context_tokens,
        runs_to_completion=runs_to_completion,
        can_resume=can_resume,
        can_preempt=can_preempt,
        splits_prefill=splits_prefill,
    )


@dataclass
class Stage:
    """Drives a batcher by hand. `now` is the clock; `log` keeps all dispatches and ends."""

    batcher: Batcher
    now: float = 0.0
    running: dict[str, dict[str, Submit]] = field(default_factory=dict)
    released: dict[str, list[Key]] = field(default_factory=dict)
    dispatches: list[Dispatch] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    incarnation: dict[str, int] = field(default_factory=dict)
    _ids: count[int] = field(default_factory=count)

    @classmethod
    def build(
        cls,
        *,
        tiers: Sequence[Tier] = (PAID, FREE, OFFLINE),
        size: int = 4,
        tokens: int = 8192,
        wait_s: float = 0.0,
        executors: Sequence[str] = ("e",),
        ready: Capacity | None = None,
        listeners: Sequence[Listener] = (),
        model: StepEstimate | None = None,
        hold: HoldRule = "fixed",
    ) -> Stage:
        """A stage whose executors are ready at time 0 with limits `size`, `tokens`, `wait_s`, and
        of which the step model `model` is known."""
        limits = Limits(size, tokens, wait_s)
        batcher = Batcher(
            tiers,
            dict.fromkeys(executors, "default"),
            limits,
            listeners=listeners,
            estimate=lambda executor: model,
            hold=hold,
        )
        stage = cls(batcher)
        for name in executors:
            stage.start(name, ready or capacity())
        stage.poll()
        return stage

    def start(self, executor: str = "e", ready: Capacity | None = None) -> None:
        """A new incarnation of an executor becomes ready."""
        self.incarnation[executor] = self.incarnation.get(executor, 0) + 1
        self.running[executor] = {}
        self.released[executor] = []
        self.batcher.on_ready(executor, self.incarnation[executor], ready or capacity(), self.now)

    def lose(self, executor: str = "e", *, back_at: float | None = 1e9) -> None:
        """The executor's process dies."""
        self.running[executor] = {}
        self.batcher.on_lost(executor, self.incarnation[executor], self.now, back_at=back_at)

    def arrive(
        self,
        tier: str = "paid",
        *,
        prompt: int = 10,
        new: int = 10,
        start_by: float | None = None,
        finish_by: float | None = None,
        name: str | None = None,
        client: str = "c",
        expected: int | None = None,
    ) -> Request:
        """A request arrives now and waits; nothing is polled. `expected`: its client set no bound,
        and this is what it is thought to become."""
        tokens = prompt + (new if expected is None else expected)
        permit = self.batcher.reserve(
            tier,
            requests=1,
            tokens=tokens,
            size=100,
            now=self.now,
            start_by=start_by,
            client=client,
        )
        request = Request(
            id=name or f"r{next(self._ids)}",
            tier=tier,
            client=client,
            prompt=[1] * prompt,
            max_new_tokens=new,
            sampling=Sampling(),
            arrival=self.now,
            arrived_at=self.now,
            start_by=start_by,
            finish_by=finish_by,
            expected_new_tokens=expected,
        )
        self.batcher.offer(request, permit, self.now)
        return request

    def poll(self, now: float | None = None) -> Plan:
        """Move the clock, poll, and carry the plan out."""
        self.now = self.now if now is None else now
        plan = self.batcher.poll(self.now)
        for executor, work in plan.work.items():
            for submit in work.submit:
                self.running[executor][submit.request_id] = submit
            self.released[executor] += work.release
        self.dispatches += plan.dispatches
        self.ended += plan.ended
        return plan

    def report(
        self,
        *,
        executor: str = "e",
        tokens: Sequence[tuple[str, int, list[int]]] = (),
        finished: Sequence[str] = (),
        reason: FinishReason = "length",
        returned: Sequence[str] = (),
        why: Literal["error", "out_of_memory"] = "error",
        released: Sequence[Key] = (),
        sample: StepSample | None = None,
        kv_tokens: int | None = None,
        incarnation: int | None = None,
    ) -> list[tuple[Request, list[int]]]:
        """The executor reports a step, by request ids, with the attempts it was told."""
        here = self.running[executor]

        def attempt(request_id: str) -> int:
            return here[request_id].attempt if request_id in here else 1

        message = Report(
            epoch=0,
            tokens=[Tokens(name, attempt(name), index, ids) for name, index, ids in tokens],
            finished=[Finished(name, attempt(name), reason) for name in finished],
            returned=[Returned(name, attempt(name), why) for name in returned],
            released=list(released),
            sample=sample,
            kv_tokens=kv_tokens,
        )
        streamed = self.batcher.on_report(
            executor,
            self.incarnation[executor] if incarnation is None else incarnation,
            message,
            self.now,
        )
        for name in (*finished, *returned, *(key.request_id for key in released)):
            here.pop(name, None)
        return [(request, ids) for request, ids, _ in streamed]

    def acknowledge(self, executor: str = "e") -> list[str]:
        """The executor lets go whatever it was told to release; answers the ids."""
        keys, self.released[executor] = self.released[executor], []
        self.report(executor=executor, released=keys)
        return [key.request_id for key in keys]

    def finish(self, *names: str, executor: str = "e") -> None:
        """The executor reports that these are done."""
        self.report(executor=executor, finished=names)

    def outcome(self, request: Request) -> tuple[Outcome, str]:
        """How a request ended, as it was told."""
        told = [ended for ended in self.ended if ended.request is request]
        assert len(told) == 1, f"{request.id} was told {len(told)} times"
        return told[0].outcome, told[0].reason

    def outcome_counts(self) -> dict[Outcome, int]:
        """How many ended in which way."""
        return dict(Counter(ended.outcome for ended in self.ended))

    def ids(self, executor: str = "e") -> list[str]:
        """Who runs there, in the order of dispatch."""
        return list(self.running[executor])
