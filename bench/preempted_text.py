"""Whether a real model writes the same text when its requests lose their seats on the way.

`python -m bench.preempted_text --model DIR [--size 4] [--tokens 120]` fills a batch with offline
work, lets paid requests arrive, and prints what became of each text beside that of a run in which
nobody had to go. In float32: elsewhere the text of one depends on who runs beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.engine_loop import prompts
from controller.batcher import Batcher
from controller.listener import Listener
from controller.request import Ended, Request
from controller.tiers import Targets, Tier
from executor.continuous import ContinuousEngine
from executor.contract import Capacity, ContinuousSettings, Key, Sampling
from policies.contract import Limits

TIERS = (Tier("paid", 1, Targets(ttft_s=1.0)), Tier("offline", 0, Targets(e2e_s=600.0)))
# What a step takes on the clock of a run, which nobody waits for.
STEP_S = 0.05
# Two tokens are as good as one another where their logits are closer than this.
TIE = 1e-4


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that arrives before turn `turn`."""

    turn: int
    name: str
    tier: str
    prompt: Sequence[int]
    new: int
    sampling: Sampling


class Cuts(Listener):
    """Who was given back, and with how many tokens, in order."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def given_back(self, request: Request, reason: str, now: float) -> None:
        """See `Listener`."""
        assert reason == "preempted", reason
        self.seen.append((request.id, len(request.tokens)))


@dataclass(slots=True)
class Stage:
    """The core's batcher and a real engine, in turns: poll, message, step, report.

    `is_late`: each message comes a step late, as one does to a process that is in the middle of a
    step. `streams` is what clients would have got, `seated` and `released` who began and who was
    let go, in which turn.
    """

    engine: ContinuousEngine
    batcher: Batcher
    cuts: Cuts
    is_late: bool
    turns: int = 0
    requests: dict[str, Request] = field(default_factory=dict)
    streams: dict[str, list[int]] = field(default_factory=dict)
    seated: list[tuple[int, str]] = field(default_factory=list)
    released: list[tuple[int, Key]] = field(default_factory=list)
    ended: dict[str, Ended] = field(default_factory=dict)

    @classmethod
    def build(
        cls, engine: ContinuousEngine, capacity: Capacity, *, size: int, is_late: bool = False
    ) -> Stage:
        """A stage with `size` seats, on an engine that is loaded and idle."""
        limits, cuts = Limits(size, capacity.max_step_tokens, 0.0), Cuts()
        batcher = Batcher(TIERS, {"main": "default"}, limits, listeners=[cuts])
        batcher.on_ready("main", 1, capacity, 0.0)
        return cls(engine, batcher, cuts, is_late)

    @property
    def now(self) -> float:
        """Seconds on the run's own clock."""
        return self.turns * STEP_S

    def play(self, asked: Iterable[Ask]) -> None:
        """Let everybody arrive, and go on until all are done."""
        waiting = sorted(asked, key=lambda ask: ask.turn)
        while waiting or self.batcher.book.requests or self.engine.has_work():
            while waiting and waiting[0].turn <= self.turns:
                self.arrive(waiting.pop(0))
            self.turn()
        self.ended.update((one.request.id, one) for one in self.batcher.poll(self.now).ended)

    def arrive(self, ask: Ask) -> None:
        """A request arrives now."""
        tokens = len(ask.prompt) + ask.new
        permit = self.batcher.reserve(ask.tier, requests=1, tokens=tokens, size=1, now=self.now)
        request = Request(
            id=ask.name,
            tier=ask.tier,
            client="c",
            prompt=list(ask.prompt),
            max_new_tokens=ask.new,
            sampling=ask.sampling,
            arrival=self.now,
            arrived_at=self.now,
        )
        self.batcher.offer(request, permit, self.now)
        self.requests[ask.name] = request
        self.streams[ask.name] = []

    def turn(self) -> None:
        """One step of the engine, and what the batcher makes of it."""
        plan = self.batcher.poll(self.now)
        self.ended.update((one.request.id, one) for one in plan.ended)
        for work in plan.work.values():
            self.seated += [(self.turns, submit.request_id) for submit in work.submit]
            if not self.is_late:
                self.engine.apply(work)
        report = self.engine.step()
        if self.is_late:
            for work in plan.work.values():
                self.engine.apply(work)
        self.released += [(self.turns, key) for key in report.released]
        self.turns += 1
        for request, ids, _ in self.batcher.on_report("main", 1, report, self.now):
            self.streams[request.id] += ids


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that is another one, and how far apart the two likeliest were there."""

    index: int
    gap: float


def difference(
    model: Any, prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]
) -> Difference | None:
    """Where two completions of a prompt part; None where they do not."""
    for index, (one, other) in enumerate(zip_longest(ours, theirs)):
        if one != other:
            with torch.inference_mode():
                logits = model(torch.tensor([[*prompt, *theirs[:index]]])).logits[0, -1].float()
            first, second = logits.topk(2).values.tolist()
            return Difference(index, first - second)
    return None


def questions(model: str, count: int) -> list[list[int]]:
    """Chat prompts as tokens."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True
            )["input_ids"]
        )
        for prompt in prompts()[:count]
    ]


def scene(asked: Sequence[Sequence[int]], size: int, new: int) -> list[Ask]:
    """Offline work for all seats and half as many more, every other one sampled; one paid request
    every fifth of its time, and as many at once as there are seats in the middle."""
    offline = size + size // 2
    told = [
        Ask(0, f"offline {number}", "offline", prompt, new, _sampling(number))
        for number, prompt in enumerate(asked[:offline])
    ]
    turns = [new // 5, *([new // 2] * size), new, 3 * new // 2]
    told += [
        Ask(turn, f"paid {number}", "paid", prompt, new // 8, _sampling(number))
        for number, (turn, prompt) in enumerate(zip(turns, asked[offline:], strict=False))
    ]
    return told


def _sampling(number: int) -> Sampling:
    if number % 2 == 0:
        return Sampling(ignore_eos=True)
    return Sampling(temperature=0.8, top_p=0.95, seed=number, ignore_eos=True)


def main() -> None:
    """Print one line a request, and fail where a text differs that should not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a model's folder")
    parser.add_argument("--size", type=int, default=4, help="seats")
    parser.add_argument("--tokens", type=int, default=120, help="length of the offline texts")
    arguments = parser.parse_args()
    settings = ContinuousSettings(
        model=arguments.model,
        served_name="bench",
        device="cpu",
        dtype="float32",
        threads=1,
        warmup_sizes=(),
    )
    engine = ContinuousEngine(settings)
    capacity = engine.load(lambda stage, fraction: None).capacity
    asked = scene(questions(arguments.model, 32), arguments.size, arguments.tokens)
    whole = Stage.build(engine, capacity, size=len(asked))
    whole.play(asked)
    stage = Stage.build(engine, capacity, size=arguments.size, is_late=True)
    stage.play(asked)
    model: Any = AutoModelForCausalLM.from_pretrained(arguments.model, dtype="float32")
    wrong = 0
    for ask in asked:
        ours, theirs = stage.streams[ask.name], whole.streams[ask.name]
        parts = difference(model, ask.prompt, ours, theirs)
        wrong += parts is not None and parts.gap >= TIE
        print(_line(stage, ask, parts))
    print(f"{stage.turns} steps, {len(stage.cuts.seen)} preemptions")
    if wrong:
        raise SystemExit(f"{wrong} texts differ")


def _line(stage: Stage, ask: Ask, parts: Difference | None) -> str:
    cuts = [str(tokens) for name, tokens in stage.cuts.seen if name == ask.name]
    how = "sampled" if ask.sampling.temperature else "greedy"
    same = "the same text"
    if parts is not None:
        same = f"differs from token {parts.index} on, where the likeliest two are {parts.gap:.2g}"
    began = next(turn for turn, name in stage.seated if name == ask.name)
    return (
        f"{ask.name:10} {how:8} came {ask.turn:4d}, began {began:4d}, "
        f"{len(stage.streams[ask.name]):4d} tokens, "
        f"preempted at {', '.join(cuts) or 'none'}: {same}"
    )


if __name__ == "__main__":
    main()
