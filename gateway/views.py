"""How requests, decisions and signals are shown to an operator: plain JSON objects."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from controller.asking import Named
from controller.decision import Decision, TierDecision
from controller.request import Request
from controller.shadows import Shadowed
from policies.contract import Limits


def limits_view(limits: Limits) -> dict[str, Any]:
    """Limits, times in seconds."""
    return {
        "max_batch_size": limits.max_batch_size,
        "max_batch_tokens": limits.max_batch_tokens,
        "wait_timeout_s": limits.wait_timeout_s,
        "tiers": {name: dataclasses.asdict(tier) for name, tier in limits.tiers.items()},
    }


def policy_view(named: Named) -> dict[str, Any]:
    """A policy as a configuration names it."""
    return {"type": named.name, "parameters": dict(named.parameters)}


class Remembered(NamedTuple):
    """A request that has ended, without its prompt and tokens: only how many they were."""

    request: Request
    prompt_tokens: int
    generated_tokens: int

    @classmethod
    def of(cls, request: Request) -> Remembered:
        """Remember an ended request, which gives up what takes memory."""
        made = cls(request, len(request.prompt), len(request.tokens))
        request.prompt, request.tokens = [], []
        return made

    def view(self) -> dict[str, Any]:
        """Where its time went."""
        counts = {"prompt_tokens": self.prompt_tokens, "generated_tokens": self.generated_tokens}
        return request_view(self.request, self.request.times.ended or 0.0) | counts


def request_view(request: Request, now: float) -> dict[str, Any]:
    """Where a request waits, or where its time went; `now` is monotonic seconds.

    `queue_s + hold_s + prefill_s + decode_s` is the time from its arrival to its last token, or
    until now while it goes on. `due_s`, `start_by_s` and `finish_by_s` count from its arrival too:
    when it has to begin for its tier's targets, when it expires, when it is ended; null: never.
    """
    times = request.times
    end = now if times.ended is None else times.ended
    dispatched = end if times.dispatched is None else times.dispatched
    began = end if times.first_token is None else times.first_token
    last = began if times.last_token is None else times.last_token
    return {
        "id": request.id,
        "tier": request.tier,
        "client": request.client,
        "state": request.state,
        "outcome": request.outcome,
        "reason": request.reason,
        "arrived_at": request.arrived_at,
        "executor": request.executor,
        "epoch": request.epoch,
        "attempt": request.attempt,
        "preemptions": request.preemptions,
        "faults": request.faults,
        "place": request.place,
        "due_s": _after(request, request.due),
        "start_by_s": _after(request, request.start_by),
        "finish_by_s": _after(request, request.finish_by),
        "prompt_tokens": len(request.prompt),
        "generated_tokens": len(request.tokens),
        "max_new_tokens": request.max_new_tokens,
        "queue_s": round(max(0.0, dispatched - request.arrival - request.hold_s), 6),
        "hold_s": round(request.hold_s, 6),
        "prefill_s": None if times.dispatched is None else round(began - dispatched, 6),
        "decode_s": None if times.first_token is None else round(last - began, 6),
        "total_s": round(end - request.arrival, 6),
    }


def _after(request: Request, instant: float | None) -> float | None:
    """Seconds from a request's arrival to an instant on its clock."""
    if instant is None or instant == math.inf:
        return None
    return round(instant - request.arrival, 6)


def decision_view(decision: Decision) -> dict[str, Any]:
    """A decision with what it was based on."""
    return {
        "number": decision.number,
        "at": decision.at,
        "group": decision.group,
        "policy": decision.policy,
        "mode": decision.mode,
        "code": decision.code,
        "epoch": decision.epoch,
        "moved": decision.moved,
        "text": decision.sentence(),
        "reason": decision.reason,
        "before": limits_view(decision.before),
        "proposed": limits_view(decision.proposed),
        "judged": limits_view(decision.judged),
        "after": limits_view(decision.after),
        "guard": [dataclasses.asdict(note) for note in decision.notes],
        "error": decision.error,
        "successor": decision.successor,
        "tiers": {tier.tier: _tier_view(tier) for tier in decision.tiers},
        "shadows": {shadow.name: _shadow_view(shadow) for shadow in decision.shadows},
        "duration_s": decision.duration_s,
        "signals": signals_view(decision),
    }


def _tier_view(decided: TierDecision) -> dict[str, Any]:
    """What a tier's own policy came to."""

    def own(limits: Limits) -> dict[str, Any]:
        return {"max_seats": limits.max_batch_size, "wait_timeout_s": limits.wait_timeout_s}

    return {
        "policy": decided.policy,
        "text": decided.sentence(),
        "reason": decided.reason,
        "before": own(decided.before),
        "proposed": own(decided.proposed),
        "judged": own(decided.judged),
        "after": own(decided.after),
        "guard": [dataclasses.asdict(note) for note in decided.notes],
        "error": decided.error,
        "successor": decided.successor,
    }


def _shadow_view(shadowed: Shadowed) -> dict[str, Any]:
    """What a shadow said."""
    proposed = shadowed.proposed
    return {
        "proposed": None if proposed is None else limits_view(proposed),
        "reason": shadowed.reason,
        "differs": shadowed.differs,
        "error": shadowed.error,
    }


def signals_view(decision: Decision) -> dict[str, Any]:
    """What a decision saw; a figure that is not known is null."""
    signals = decision.signals
    return {
        "interval_s": signals.interval_s,
        "age_s": signals.age_s,
        "tiers": [_plain(tier) for tier in signals.tiers],
        "executors": [_plain(executor) for executor in signals.executors],
        "model": None if signals.model is None else _plain(signals.model),
    }


def _plain(record: Any) -> Any:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: _plain(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {key: _plain(value) for key, value in record.items()}
    if isinstance(record, tuple | list):
        return [_plain(item) for item in record]
    return record
