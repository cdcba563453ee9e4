"""The largest limits at which targets are kept, from the step model, trimmed by counted misses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from policies.contract import Limits, Proposal, Shape, Signals, StepEstimate
from policies.costs import Lengths
from policies.feedforward import BatchTimes, Demand, batch_size, largest_shared, prompt_tokens
from policies.parameters import parameter
from policies.reading import (
    binding_fraction,
    itl_targets,
    size_bound,
    tokens_bound,
    ttft_targets,
    with_limits,
)
from policies.traffic import Traffic
from policies.trims import Trims


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the model allows, and why. `urgent`: a breach has cut it, so it is no trifle."""

    size: float
    tokens: float
    why: str
    size_urgent: bool = False
    tokens_urgent: bool = False


class Slo:
    """B, T and W from the step model and the targets of the tiers that are there.

    Feed-forward: B is the most rows that decode within the tightest inter-token target that can be
    kept at all, beside the prompts that they bring. T lets a step with prompts be as much longer as
    the completions beside it can make up for. W is half of a batch's fixed part, for more is never
    won by company, within a small part of the tightest time to first token. Where batches run to
    their end, B is the size with which most requests begin in time.
    Feedback: a breach that counted misses prove takes 10 % off: off B where decoding caused it, off
    T where prompts did, and then off B too where batches are full. While there is room both come
    back bit by bit. A breach of the time to first token moves T up as far as inter-token latency
    has room. A queue by itself moves nothing: a smaller batch would only make it longer.

    Regime: all of them, which is why it is the default; one set of parameters for every executor
    and workload. Where the step model is not known yet, nothing moves.
    Source: *ours*. The feed-forward is what model-based batchers do (Clipper, NSDI 2017; BentoML),
    the trim is AIMD on misses (Chiu and Jain 1989).
    """

    @dataclass(frozen=True, slots=True)
    class Parameters:
        """Fractions are of the limit or of the target."""

        sigmas: float = parameter(
            1.3, "Spreads of the step model by which a step is thought longer.", low=0, high=5
        )
        burst_tokens: float = parameter(
            128.0,
            "A step may be longer by the spare time of one token, and once more for every so many "
            "tokens of a completion.",
            low=1,
        )
        prompts_share: float = parameter(
            0.4,
            "Of a target, at most this part is kept for the prompts of others.",
            low=0,
            high=0.9,
        )
        backoff: float = parameter(0.9, "Trim at a breach: multiplied by this.", low=0.5, high=0.99)
        recovery_per_s: float = parameter(
            0.02, "Trim while there is room: this much back a second.", low=0, high=1
        )
        least_trim: float = parameter(0.25, "The trim is never below this.", low=0.01, high=1)
        dead_band: float = parameter(
            0.12, "B and T stay where they would move by less than this.", low=0, high=0.5
        )
        steps_s: float = parameter(
            5.0, "Means of contexts and rows are over about so many seconds.", low=0.1, high=60
        )
        requests_s: float = parameter(
            60.0, "Means of prompts, completions and arrivals likewise.", low=1, high=600
        )
        absent_s: float = parameter(
            120.0, "A tier counts for so long after anybody of it was seen.", low=0, high=3600
        )
        hold: float = parameter(
            0.02, "W is at most this part of the tightest time to first token.", low=0, high=0.5
        )
        binding: float = binding_fraction(
            "A limit grows when it was reached in this part of the steps."
        )

    def __init__(self, parameters: Parameters) -> None:
        wanted = self._parameters = parameters
        self._traffic = Traffic(wanted.steps_s, wanted.requests_s, wanted.absent_s)
        self._trims = Trims(wanted.backoff, wanted.recovery_per_s, wanted.least_trim)

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """What the model allows, trimmed, and no more growth than what binds."""
        model, shape = signals.model, _shape(signals)
        if model is None or shape is None:
            return Proposal(limits, "no step was measured yet: nothing to reckon with")
        self._traffic.see(signals)
        if not self._traffic.tiers:
            return Proposal(limits, "nobody came lately")
        binding = self._parameters.binding
        cut = self._trims.see(
            self._traffic.tiers,
            signals.interval_s,
            full=(size_bound(signals) or 0.0) >= binding,
        )
        if shape.runs_to_completion:
            wanted = self._batches(model, shape, signals, limits)
        else:
            wanted = self._steps(model, shape, limits, cut)
        tokens = limits.max_batch_tokens
        proposed = with_limits(
            limits,
            size=self._size(limits.max_batch_size, wanted, size_bound(signals)),
            tokens=self._moved(
                tokens, wanted.tokens, tokens_bound(signals), urgent=wanted.tokens_urgent
            ),
            wait_timeout_s=self._wait_s(model, shape),
        )
        return Proposal(proposed, wanted.why)

    def _steps(
        self, model: StepEstimate, shape: Shape, limits: Limits, cut: tuple[bool, bool]
    ) -> _Wanted:
        """B and T of an executor whose steps requests join and leave."""
        traffic, trims = self._traffic, self._trims
        context, rows = traffic.context.value, traffic.rows.value
        if context is None or rows is None:
            return _kept(limits, "no sequence was decoded yet")
        early_s = self._parameters.sigmas * model.sigma_s
        # A target that not even one row alone would keep is nobody's measure.
        kept = [
            (tier, target_s, most)
            for tier, target_s in itl_targets(traffic.tiers)
            if (most := self._rows(model, context, target_s - early_s)) >= 1
        ]
        if not kept:
            why = "no target on inter-token latency that could be kept"
            return _Wanted(shape.max_seqs, shape.max_step_tokens, why)
        tier, target_s, most = kept[0]
        size = max(1.0, trims.rows * min(most, shape.max_seqs))
        beside = min(rows, size)
        spare_s = max(0.0, target_s - early_s - model.predict(beside, beside * context))
        bursts = 1 + (traffic.new.value or 0.0) / self._parameters.burst_tokens
        prompts = trims.prompts * prompt_tokens(model, spare_s * bursts)
        tokens = min(float(shape.max_step_tokens), max(size, beside + prompts))
        why = (
            f"{tier} ITL {target_s * 1e3:.0f} ms lets {size:.0f} rows of {context:.0f} tokens "
            f"decode, and {tokens:.0f} tokens in a step beside {beside:.0f}{trims.words()}"
        )
        return _Wanted(size, tokens, why, *cut)

    def _rows(self, model: StepEstimate, context: float, step_s: float) -> int:
        prompts, share = self._traffic.prompts.value or 0.0, self._parameters.prompts_share
        return largest_shared(model, context, step_s, prompts=prompts, share=share)

    def _batches(
        self, model: StepEstimate, shape: Shape, signals: Signals, limits: Limits
    ) -> _Wanted:
        """B of an executor that runs a batch to its end."""
        traffic = self._traffic
        prompt, new = traffic.prompt.value, traffic.new.value
        if prompt is None or new is None:
            return _kept(limits, "no completion has ended yet")
        # Batches that are not full are as large as the traffic makes them: a limit would only be
        # felt in a burst, when it is the last thing that is wanted.
        if (size_bound(signals) or 0.0) < self._parameters.binding:
            return _kept(limits, "batches are seldom full")
        times = BatchTimes.of(model, Lengths(prompt, new))
        ready = max(1, sum(executor.ready for executor in signals.executors))
        rates = {tier.name: traffic.rate(tier.name) / ready for tier in traffic.tiers}
        demands = [Demand(rates[name], s) for name, s in ttft_targets(traffic.tiers)]
        size = batch_size(times, demands, rate=sum(rates.values()), most=shape.max_seqs)
        told = f"a batch of n takes {times.whole.fixed:.2f} s + n x {times.whole.each:.3f} s"
        if size is None:
            why = f"{told}: whoever waits is best off in the next one"
            return _Wanted(shape.max_seqs, limits.max_batch_tokens, why)
        return _Wanted(size, limits.max_batch_tokens, f"{told}: with {size} most begin in time")

    def _wait_s(self, model: StepEstimate, shape: Shape) -> float:
        steps = (self._traffic.new.value or 1.0) if shape.runs_to_completion else 1.0
        tightest_s = min((s for _, s in ttft_targets(self._traffic.tiers)), default=math.inf)
        return round(min(model.a * steps / 2, self._parameters.hold * tightest_s), 3)

    def _size(self, before: int, wanted: _Wanted, bound: float | None) -> int:
        after = self._moved(before, wanted.size, bound, urgent=wanted.size_urgent)
        # What few rows say of many is little, and as long as they are few nobody feels the limit:
        # it would only be in the way of the next burst.
        unfelt = (bound or 0.0) < self._parameters.binding
        unfelt = unfelt and (self._traffic.rows.value or 0.0) <= after
        return before if after < before and unfelt and not wanted.size_urgent else after

    def _moved(self, before: int, wanted: float, bound: float | None, *, urgent: bool) -> int:
        """Where a limit goes: not for a trifle, and up only where it binds."""
        after = max(1, round(wanted))
        if after > before and (bound is None or bound < self._parameters.binding):
            return before
        trifle = abs(after - before) <= self._parameters.dead_band * before
        return before if trifle and not (urgent and after < before) else after


def _kept(limits: Limits, why: str) -> _Wanted:
    return _Wanted(limits.max_batch_size, limits.max_batch_tokens, why)


def _shape(signals: Signals) -> Shape | None:
    """The executors of a group are alike: the first that has said what it is."""
    return next((e.shape for e in signals.executors if e.ready and e.shape is not None), None)
