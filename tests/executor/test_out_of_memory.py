"""The real engine under the real core when memory really runs out: no text is lost or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from controller.config_control import ControlConfig, EnvelopeConfig, LimitsConfig, PolicyConfig
from controller.core import Core, build_core
from controller.gates import Code
from controller.request import Outcome, Request
from controller.tiers import Tier
from executor import continuous
from executor.continuous import ContinuousEngine
from executor.contract import Report, Sampling
from executor.sampling import Row, choose
from tests.executor.engine_driver import Driver, assert_same, held, load, prompt

PETABYTE = 2**50
GREEDY = Sampling(ignore_eos=True)
DRAWN = Sampling(temperature=0.8, seed=9, ignore_eos=True)


@dataclass
class Daemon:
    """A core around an engine; a step lasts 50 ms on its clock, and every fifth is a tick."""

    core: Core
    engine: ContinuousEngine
    now: float = 0.0
    reports: list[Report] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    @classmethod
    def around(cls, engine: ContinuousEngine) -> Daemon:
        core = build_core(
            [Tier("paid", 1)],
            {"e": "default"},
            limits=LimitsConfig(max_batch_size=16, max_batch_tokens=2048, wait_timeout=0.0),
            envelope=EnvelopeConfig(
                max_batch_size=(1, 16), max_batch_tokens=(1, 2048), wait_timeout=(0.0, 1.0)
            ),
            control=ControlConfig(policy=PolicyConfig(type="static"), hold="fixed"),
            listeners=(),
            started=0.0,
            stopwatch=lambda: 0.0,
        )
        core.batcher.on_ready("e", 1, engine._capacity, 0.0)
        return cls(core, engine)

    def ask(self, tokens: list[int], new: int, sampling: Sampling = GREEDY) -> Request:
        batcher, size = self.core.batcher, len(tokens)
        permit = batcher.reserve("paid", requests=1, tokens=size + new, size=size, now=self.now)
        request = Request(
            id=f"r{len(self.requests)}",
            tier="paid",
            client="c",
            prompt=tokens,
            max_new_tokens=new,
            sampling=sampling,
            arrival=self.now,
            arrived_at=self.now,
        )
        batcher.offer(request, permit, self.now)
        self.requests.append(request)
        return request

    def run(self) -> None:
        """Until nothing waits or runs."""
        batcher = self.core.batcher
        for number in range(2000):
            plan = batcher.poll(self.now)
            if (work := plan.work.get("e")) is not None:
                self.engine.apply(work)
            if not batcher.book.requests:
                return
            if self.engine.has_work():
                self.reports.append(self.engine.step())
                batcher.on_report("e", 1, self.reports[-1], self.now)
            self.now += 0.05
            if number % 5 == 4:
                self.core.loops["default"].tick(self.now, wall=self.now, devices={})
        raise AssertionError("it never ends")

    @property
    def failures(self) -> list[Report]:
        return [report for report in self.reports if report.returned]


def end_memory_at(
    engine: ContinuousEngine, most: int, patch: pytest.MonkeyPatch, *, device: str = "cpu"
) -> None:
    """Let a step after which more than `most` tokens are held allocate what no machine has."""

    def choose_with_little_memory(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        if engine._batch.held_tokens() > most:
            torch.empty(PETABYTE, dtype=torch.uint8, device=device)
        return choose(logits, rows)

    patch.setattr(continuous, "choose", choose_with_little_memory)


def everybody(daemon: Daemon) -> list[list[int]]:
    """Twelve requests, half of them drawn; answers their texts."""
    lengths = (5, 40, 17, 90, 33, 8, 21, 60, 12, 30, 44, 9)
    for number, length in enumerate(lengths):
        daemon.ask(prompt(number, length), 20, DRAWN if number % 2 else GREEDY)
    daemon.run()
    assert {request.outcome for request in daemon.requests} == {Outcome.FINISHED}
    return [request.tokens for request in daemon.requests]


def test_when_an_allocation_fails_all_are_served_in_halves_and_every_text_is_right(
    tiny_folder: Path, reference: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = load(tiny_folder, block_size=8, num_blocks=400)
    whole, squeezed = Daemon.around(engine), Daemon.around(engine)
    expected = everybody(whole)
    assert whole.failures == []
    end_memory_at(engine, 256, monkeypatch)
    texts = everybody(squeezed)
    for request, ours, theirs in zip(squeezed.requests, texts, expected, strict=True):
        assert_same(reference, list(request.prompt), ours, theirs)
    reasons = {(one.reason, one.fatal) for report in squeezed.failures for one in report.returned}
    assert reasons == {("out_of_memory", False)}
    assert "can't allocate memory" in squeezed.failures[0].warning
    assert 1 <= len(squeezed.failures) <= 4
    assert held(engine) == (0, True)
    loop = squeezed.core.loops["default"]
    assert 150 <= loop.guard.ceiling.tokens(squeezed.now) <= 256
    noted = {note.code for decision in loop.decisions for note in decision.notes}
    assert Code.OUT_OF_MEMORY in noted


def test_a_request_for_which_there_is_less_kv_than_was_claimed_fails_alone_with_a_400(
    tiny_folder: Path, reference: Any
) -> None:
    engine, _ = load(tiny_folder, block_size=8, num_blocks=20)
    # The daemon is told of six times as much.
    engine._capacity = msgspec.structs.replace(
        engine._capacity, kv_tokens=960, max_context_tokens=960
    )
    engine._running._capacity = engine._capacity
    daemon, undisturbed = Daemon.around(engine), Driver(load(tiny_folder)[0])
    small = [daemon.ask(prompt(number, 30), 10) for number in range(4)]
    giant = daemon.ask(prompt(9, 300), 10)
    small += [daemon.ask(prompt(number, 30), 10) for number in range(4, 8)]
    daemon.run()
    assert (giant.outcome, giant.reason) == (Outcome.FAILED, "does_not_fit")
    for number, request in enumerate(small):
        undisturbed.submit(str(number), request.prompt, 10)
    undisturbed.run()
    for number, request in enumerate(small):
        assert request.outcome is Outcome.FINISHED
        assert_same(reference, list(request.prompt), request.tokens, undisturbed.text[str(number)])
    assert 2 <= len(daemon.failures) <= 8
    assert held(engine) == (0, True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU whose memory can run out")
def test_on_a_gpu_whose_memory_ends_all_are_served_and_what_was_taken_is_given_back(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = load(tiny_folder, device="cuda", block_size=8, num_blocks=400)
    daemon = Daemon.around(engine)
    end_memory_at(engine, 256, monkeypatch, device="cuda")
    everybody(daemon)
    assert {one.reason for report in daemon.failures for one in report.returned} == {
        "out_of_memory"
    }
    assert "CUDA out of memory" in daemon.failures[0].warning
    assert held(engine) == (0, True)
