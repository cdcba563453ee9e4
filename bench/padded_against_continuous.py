"""What it costs to wait for the longest of a batch: the same requests in batches that all leave
together, in batches that rows leave early, and batched continuously, in turns.

`python -m bench.padded_against_continuous [--trace azure_llm_2023_conv.csv] [--rounds 3]` runs the
demo's model with B seats for all, completions as long as those of Azure's chat scaled to a mean of
48 tokens, which nobody knows beforehand. Each round measures throughput while somebody always
waits, and then mean response time, all sides having the same arrivals, at a part of what the
slowest side did. The bound is the same line on an engine that wastes nothing: every seat is taken
at the next step and left when its text is done, steps take what the continuous engine's took by
size of batch, and prompts what they take in full steps.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import traces
from bench.batching_bound import Ideal, StepTimes
from bench.batching_drive import Ask, Clock, Played, Steps, arriving, drive, lengths
from bench.campaign import Ratio, paired
from bench.engine_loop import prompts
from bench.evaluation_text import interval
from bench.lengths import CHAT
from executor import demo_model
from executor.continuous import ContinuousEngine
from executor.contract import DEMO_MODEL, ContinuousSettings, PaddedSettings, StepSample
from executor.padded import PaddedEngine

OLD, EARLY, CONTINUOUS, IDEAL = "padded, together", "padded, early", "continuous", "the bound"
STEP_TOKENS = 512
# Half a text less than the longest prompt and completion together.
KV_TOKENS_EACH = 512
# What one reads of continuous batching: times the throughput, and less response time.
QUOTED_GAIN, QUOTED_RESPONSE = 3.0, 0.42
LEAST = 0.85


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. `batches` of `seats` requests are served in each throughput, `load` is
    the part of the slowest's throughput at which `arrivals` come."""

    seats: int
    batches: int
    arrivals: int
    load: float
    mean: float


@dataclass(slots=True)
class Figures:
    """What a side came to, round by round."""

    tokens_per_s: list[float] = field(default_factory=list)
    response_s: list[float] = field(default_factory=list)
    text_s: list[float] = field(default_factory=list)

    def note(self, fed: Played, loaded: Played) -> None:
        """Another round."""
        self.tokens_per_s.append(fed.tokens_per_s)
        self.response_s.append(loaded.response_s)
        self.text_s.append(loaded.text_s)


class Sides:
    """The engines, and the line that each is given."""

    def __init__(
        self,
        engines: dict[str, Steps],
        asked: Sequence[Sequence[int]],
        recorded: Sequence[int],
        plan: Plan,
    ) -> None:
        self._engines, self._prompts, self._recorded = engines, asked, recorded
        self.plan = plan
        self.found = {name: Figures() for name in (*engines, IDEAL)}
        self.samples: list[StepSample] = []

    def round(self, number: int, told: Callable[[str], None]) -> None:
        """Measure every side once; the order alternates."""
        plan, order = self.plan, list(self._engines)
        if number % 2:
            order.reverse()
        feed = self._line([0.0] * (plan.seats * (plan.batches + 1)), f"feed {number}")
        fed = {name: self._play(name, feed, fed_only=True) for name in order}
        slowest = min(played.tokens_per_s for played in fed.values())
        rate = plan.load * slowest / plan.mean
        come = arriving(rate, plan.arrivals, seed=f"arrivals {number}")
        line = self._line(come, f"load {number}")
        loaded = {name: self._play(name, line) for name in order}
        self.samples += fed[CONTINUOUS].samples + loaded[CONTINUOUS].samples
        step_s, prefill_s = StepTimes(self.samples), self._prefill_s()
        ideal = Ideal(step_s, prefill_s)
        fed[IDEAL] = self._drive(ideal, feed, joins=True, clock=ideal, fed_only=True)
        ideal = Ideal(step_s, prefill_s)
        loaded[IDEAL] = self._drive(ideal, line, joins=True, clock=ideal)
        for name, figures in self.found.items():
            figures.note(fed[name], loaded[name])
            told(
                f"round {number + 1}, {name}: {fed[name].tokens_per_s:.1f} tokens/s, and"
                f" {loaded[name].response_s:.2f} s at {rate:.2f} requests/s"
            )

    def _line(self, times: Sequence[float], seed: str) -> list[Ask]:
        news = lengths(self._recorded, len(times), mean=self.plan.mean, seed=seed)
        asked = self._prompts
        return [
            Ask(at, asked[i % len(asked)], new)
            for i, (at, new) in enumerate(zip(times, news, strict=True))
        ]

    def _play(self, name: str, asked: Sequence[Ask], *, fed_only: bool = False) -> Played:
        joins, clock = name == CONTINUOUS, Clock()
        return self._drive(self._engines[name], asked, joins=joins, clock=clock, fed_only=fed_only)

    def _drive(
        self,
        engine: Steps,
        asked: Sequence[Ask],
        *,
        joins: bool,
        clock: Clock,
        fed_only: bool = False,
    ) -> Played:
        return drive(
            engine,
            asked,
            seats=self.plan.seats,
            step_tokens=STEP_TOKENS,
            joins=joins,
            clock=clock,
            fed_only=fed_only,
        )

    def _prefill_s(self) -> float:
        """Seconds of a prompt token where steps are full of them, on the continuous engine."""
        asked = [Ask(0.0, prompt, 1) for prompt in self._prompts]
        samples = self._play(CONTINUOUS, asked[: self.plan.seats]).samples
        return sum(s.duration_s for s in samples) / sum(s.prefill_tokens for s in samples)


def table(sides: Sides) -> str:
    """What all came to, in markdown, beside what is often quoted."""
    old, bound = sides.found[OLD], sides.found[IDEAL]
    rows = [
        "| | tokens/s | of the old way | of the bound | response | less than the old way |"
        " bound of it | last token |",
        "| --- | ---: | --- | --- | ---: | --- | --- | ---: |",
    ]
    for name, figures in sides.found.items():
        gain = paired(figures.tokens_per_s, old.tokens_per_s)
        part = paired(figures.tokens_per_s, bound.tokens_per_s)
        response = paired(figures.response_s, old.response_s)
        closeness = paired(bound.response_s, figures.response_s)
        cells = (
            name,
            f"{statistics.fmean(figures.tokens_per_s):.1f}",
            interval(gain),
            interval(part),
            f"{statistics.fmean(figures.response_s):.2f} s",
            _less(response),
            interval(closeness),
            f"{statistics.fmean(figures.text_s):.2f} s",
        )
        rows.append(f"| {' | '.join(cells)} |")
    rows.append(f"| often quoted | | {QUOTED_GAIN:g} | | | {-QUOTED_RESPONSE:.0%} | | |")
    return "\n".join(rows)


def _less(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean - 1:+.0%}"
    return f"{ratio.mean - 1:+.0%} [{ratio.low - 1:+.0%}, {ratio.high - 1:+.0%}]"


def load(model: str, plan: Plan) -> dict[str, Steps]:
    """The three engines over one model, on one thread each, without warm-up."""
    common: dict[str, Any] = {
        "model": model,
        "served_name": "bench",
        "device": "cpu",
        "threads": 1,
        "max_seqs": plan.seats,
        "max_step_tokens": STEP_TOKENS,
        "warmup_sizes": (),
    }
    kv_tokens = plan.seats * KV_TOKENS_EACH
    engines: dict[str, Any] = {
        OLD: PaddedEngine(PaddedSettings(**common, kv_tokens=kv_tokens, leave="together")),
        EARLY: PaddedEngine(PaddedSettings(**common, kv_tokens=kv_tokens)),
        # Prompts come again and again: sharing them would save what the others have to compute.
        CONTINUOUS: ContinuousEngine(
            ContinuousSettings(**common, num_blocks=kv_tokens // 32, prefix_sharing=False)
        ),
    }
    for engine in engines.values():
        engine.load(lambda stage, fraction: None)
    return engines


def questions(folder: str) -> list[list[int]]:
    """Chat prompts as tokens."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True
            )["input_ids"]
        )
        for prompt in prompts()
    ]


def main() -> None:
    """Print a line a side and round, then the table; fail where the bound is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEMO_MODEL, help="a model's folder, or `demo`")
    parser.add_argument("--trace", type=Path, help="Azure's chat; without it, lengths fitted to it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seats", type=int, default=16, help="B, for every side")
    parser.add_argument("--batches", type=int, default=2, help="in each throughput")
    parser.add_argument("--arrivals", type=int, default=32, help="in each response time")
    parser.add_argument("--load", type=float, default=0.8, help="part of the slowest's throughput")
    parser.add_argument("--mean", type=float, default=48.0, help="tokens of a completion")
    words = parser.parse_args()
    plan = Plan(words.seats, words.batches, words.arrivals, words.load, words.mean)
    folder = words.model
    if folder == DEMO_MODEL:
        folder = str(demo_model.ensure(lambda stage, fraction: None))
    recorded = [output for _, output in CHAT.sample()]
    if words.trace is not None:
        recorded = [line.output for line in traces.read(words.trace) if line.output]
    engines, asked = load(folder, plan), questions(folder)
    # Whatever is slow the first time is so for nobody.
    Sides(engines, asked, recorded, Plan(plan.seats, 1, 1, 1.0, 2.0)).round(0, lambda text: None)
    sides = Sides(engines, asked, recorded, plan)
    for number in range(words.rounds):
        sides.round(number, lambda text: print(text, flush=True))
    print(table(sides))
    part = paired(sides.found[CONTINUOUS].tokens_per_s, sides.found[IDEAL].tokens_per_s)
    if part is None or part.mean < LEAST:
        raise SystemExit(f"continuous is below {LEAST:g} of the bound")


if __name__ == "__main__":
    main()
