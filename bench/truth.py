"""Whether the simulator tells the truth: a log of a real engine, predicted from its first half.

`python -m bench.truth REQUESTS.csv GAUGES.csv` for logs as LLMServingSim publishes them
(casys-kaist/LLMServingSim at 5daddb21, MIT): each request's own times, the gauges once a second.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.arrivals import Arrival, Workload
from bench.journal import Fate, Journal
from bench.outcome import quantile
from bench.preempting import BLOCK, PreemptingSimulation
from bench.simulator import Rules, Simulator
from controller.config_control import ControlConfig, EnvelopeConfig, LimitsConfig, PolicyConfig
from controller.core import build_core
from controller.step_model import StepModel
from controller.tiers import Tier
from executor.contract import SimulatedSettings, StepSample
from policies.contract import StepEstimate

# How the engine was started.
SEATS, BUDGET = 256, 2048
# Seconds of a second that a fit may miss at full weight: a preempted row that is computed again
# shows in no gauge, and would pass for slow steps.
TOLERANCE_S = 0.02
_PASSES = 5


@dataclass(frozen=True, slots=True)
class Served:
    """One request of the log; instants in seconds."""

    queued_s: float
    first_s: float
    last_s: float
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Gauge:
    """One second of the engine: tokens per second, rows, fraction of KV in use."""

    time_s: float
    prompt_rate: float
    output_rate: float
    running: float
    kv: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure as it was and as it was predicted, in seconds."""

    name: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative, positive where too much was predicted."""
        return self.predicted / self.measured - 1


def read_log(requests: Path, gauges: Path) -> tuple[list[Served], list[Gauge]]:
    """The two files of a log, requests by arrival."""
    with requests.open(encoding="utf-8", newline="") as file:
        served = [
            Served(
                float(row["queued_s"]),
                float(row["first_token_s"]),
                float(row["last_token_s"]),
                int(row["input_toks"]),
                int(row["output_toks"]),
            )
            for row in csv.DictReader(file)
        ]
    with gauges.open(encoding="utf-8", newline="") as file:
        seen = [
            Gauge(
                float(row["t"]),
                float(row["prompt_throughput"]),
                float(row["gen_throughput"]),
                float(row["running"]),
                float(row["kv_cache_pct"]) / 100,
            )
            for row in csv.DictReader(file)
        ]
    return sorted(served, key=lambda one: one.queued_s), seen


def kv_tokens(served: Sequence[Served], gauges: Sequence[Gauge]) -> float:
    """Tokens of KV: what running requests held by their own times over the fraction in use, in the
    median of the seconds until memory was full for the first time (then rows are preempted)."""
    found = []
    for gauge in gauges:
        held = sum(
            math.ceil((one.prompt + _made(one, gauge.time_s)) / BLOCK) * BLOCK
            for one in served
            if one.first_s <= gauge.time_s < one.last_s
        )
        if held:
            found.append(held / gauge.kv)
        if gauge.kv >= 1:
            break
    return statistics.median(found)


def _made(one: Served, now: float) -> float:
    return one.output * (now - one.first_s) / (one.last_s - one.first_s)


def fit(gauges: Sequence[Gauge], memory: float) -> StepEstimate:
    """The step model of what the gauges saw: a second with so many steps of so many rows.

    Fitted again and again with seconds weighted by how well they were met, which is fitting the
    absolute deviations (iteratively reweighted least squares).
    """
    estimate: StepEstimate | None = None
    for _ in range(_PASSES):
        model = StepModel()
        for gauge in gauges:
            if not (gauge.output_rate and gauge.running):
                continue
            steps = max(1, round(gauge.output_rate / gauge.running))
            rows, held = round(gauge.running), round(gauge.kv * memory)
            sample = StepSample(1.0, rows, rows, held, round(gauge.prompt_rate / steps), 0)
            weight = 1.0
            if estimate is not None:
                step_s = estimate.predict(rows, held, prefill=sample.prefill_tokens)
                weight = min(1.0, TOLERANCE_S / max(abs(1.0 - steps * step_s), 1e-9))
            model.learn(sample, steps=steps, weight=weight)
        estimate = model.estimate()
    assert estimate is not None
    return estimate


def predict(served: Sequence[Served], estimate: StepEstimate, memory: float) -> list[Fate]:
    """All requests, played through the simulator with an executor that schedules as vLLM does."""
    settings = SimulatedSettings(
        max_seqs=SEATS,
        max_step_tokens=BUDGET,
        # The engine minds its memory itself.
        kv_tokens=10**9,
        max_context_tokens=10**6,
        a_s=estimate.a,
        b_s=estimate.b,
        c_s=estimate.c,
        c_above_s=estimate.c_above,
        knee=estimate.knee,
        d_s=estimate.d,
        e_s=estimate.e,
    )
    tier = Tier("all", 0)
    come = tuple(Arrival(one.queued_s, tier.name, one.prompt, one.output) for one in served)
    journal = Journal()
    core = build_core(
        [tier],
        {"vllm": "default"},
        limits=LimitsConfig(max_batch_size=SEATS, max_batch_tokens=BUDGET, wait_timeout=0.0),
        envelope=EnvelopeConfig(max_batch_size=(1, SEATS), max_batch_tokens=(1, BUDGET)),
        control=ControlConfig(policy=PolicyConfig(type="static")),
        listeners=(journal,),
        started=0.0,
        stopwatch=lambda: 0.0,
    )
    Simulator(
        core,
        {"vllm": settings},
        {tier.name: tier},
        Workload("log", come[-1].time_s + 1.0, come),
        journal,
        Rules(drain_s=math.inf),
        0,
        make=partial(PreemptingSimulation, blocks=int(memory // BLOCK)),
    ).run()
    return sorted(journal.fates, key=lambda fate: fate.arrival_s)


def compare(served: Sequence[Served], gauges: Sequence[Gauge]) -> list[Compared]:
    """TTFT, TPOT and E2E of the second half of the requests at the median and the 90th percentile,
    as they were and as they follow from the first half of the gauges."""
    first = gauges[: len(gauges) // 2]
    memory = kv_tokens(served, first)
    fates = predict(served, fit(first, memory), memory)
    later = range(len(served) // 2, len(served))
    measured: Mapping[str, list[float]] = {
        "TTFT": [served[i].first_s - served[i].queued_s for i in later],
        "TPOT": [
            (served[i].last_s - served[i].first_s) / max(1, served[i].output - 1) for i in later
        ],
        "E2E": [served[i].last_s - served[i].queued_s for i in later],
    }
    predicted: Mapping[str, list[float]] = {
        "TTFT": [(fates[i].first_s or math.inf) - fates[i].arrival_s for i in later],
        "TPOT": [
            ((fates[i].last_s or math.inf) - (fates[i].first_s or 0.0))
            / max(1, fates[i].tokens - 1)
            for i in later
        ],
        "E2E": [fates[i].ended_s - fates[i].arrival_s for i in later],
    }
    return [
        Compared(f"{name} p{part * 100:.0f}", quantile(measured[name], part), quantile(other, part))
        for name, other in predicted.items()
        for part in (0.5, 0.9)
    ]


def main(requests: str, gauges: str) -> None:
    """Print the comparison."""
    served, seen = read_log(Path(requests), Path(gauges))
    for one in compare(served, seen):
        print(f"{one.name:<9} {one.measured:9.4f} s  {one.predicted:9.4f} s  {one.error:+.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
