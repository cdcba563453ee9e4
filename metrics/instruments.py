"""Every Prometheus name of Headway: what is counted, in which unit, under which labels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Info,
    disable_created_metrics,
    generate_latest,
)

from metrics.series import (
    ExecutorInstruments,
    GroupInstruments,
    ShadowInstruments,
    Source,
    TierInstruments,
    TierLimitInstruments,
    UpstreamInstruments,
    show,
)
from metrics.tally import CountFamily, TallyFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LIMITS = ("max_batch_size", "max_batch_tokens", "wait_timeout_s")
_SOURCES: tuple[Source, ...] = ("nvml", "busy", "simulated")

_FROM_1_MS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
_REQUEST = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_STEP = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2, 5, 15)
_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
_DEPTH = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000)
_TENTHS = tuple(tenth / 10 for tenth in range(1, 11))
_TICK = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1)


class Instruments:
    """All instruments of one daemon, in a registry of their own.

    The label values that can be known are given here, so that every family has its series from
    the first scrape on. `ends` are the pairs (outcome, reason) of requests that may occur,
    `guard_codes` what a guard may note, `dispatch_reasons` why a batch may go, `change_reasons` why
    a limit may move. Others that occur are counted all the same. `shadows` are the labels of the
    policies that are only asked, `upstreams` the executors that are engines behind HTTP.
    """

    def __init__(
        self,
        *,
        version: str,
        tiers: Sequence[str],
        executors: Sequence[str],
        groups: Sequence[str] = ("default",),
        ends: Sequence[tuple[str, str]] = (),
        policies: Sequence[str] = (),
        decision_codes: Sequence[str] = (),
        guard_codes: Sequence[str] = (),
        dispatch_reasons: Sequence[str] = (),
        change_reasons: Sequence[str] = (),
        shadows: Sequence[str] = (),
        upstreams: Sequence[str] = (),
    ) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library leaves it untyped
        self.registry = CollectorRegistry()
        self._build_tiers(tiers)
        self._build_executors(executors, tiers)
        self._build_upstreams(upstreams)
        self._build_groups(groups, tiers)
        self._build_control(policies, decision_codes, guard_codes)
        self._build_changes(groups, tiers, change_reasons)
        self._build_shadows(groups, shadows)
        self._build_daemon(version)
        for tier in tiers:
            for outcome, reason in ends:
                self.ended.labels(tier, outcome, reason)
        for executor in executors:
            for reason in dispatch_reasons:
                self.dispatches.labels(executor, reason)

    def render(self) -> bytes:
        """Everything in Prometheus' text format; `CONTENT_TYPE` goes with it."""
        return generate_latest(self.registry)

    def _counter(self, name: str, words: str, *labels: str) -> CountFamily:
        return CountFamily(f"headway_{name}", words, labels, registry=self.registry)

    def _gauge(self, name: str, words: str, *labels: str) -> Gauge:
        return Gauge(f"headway_{name}", words, labels, registry=self.registry)

    def _histogram(
        self, name: str, words: str, label: str | None, bounds: Sequence[float]
    ) -> TallyFamily:
        labels = () if label is None else (label,)
        return TallyFamily(f"headway_{name}", words, labels, bounds=bounds, registry=self.registry)

    def _build_tiers(self, tiers: Sequence[str]) -> None:
        self.ended = self._counter(
            "requests_ended", "Requests by how they ended.", "tier", "outcome", "reason"
        )
        offered = self._counter("requests_offered", "Requests asked for.", "tier")
        prompt = self._counter("prompt_tokens", "Prompt tokens of requests that began.", "tier")
        generated = self._counter("generated_tokens", "Tokens generated.", "tier")
        preempted = self._counter("preemptions", "Seats given up for others.", "tier")
        resumed = self._counter("resumes", "Seats taken again by requests that had one.", "tier")
        requests = self._gauge("queue_requests", "Requests that wait.", "tier")
        tokens = self._gauge("queue_tokens", "Prompt and wanted tokens that wait.", "tier")
        oldest = self._gauge("queue_oldest_seconds", "Age of the oldest that waits.", "tier")
        late = self._gauge(
            "queue_late_requests", "Requests that wait beyond a target of theirs.", "tier"
        )
        owed = self._gauge("owed_tokens", "Tokens that the tier is owed of its share.", "tier")
        shed = self._gauge("shed_ratio", "Part of new requests turned away by lot.", "tier")
        wait = self._histogram(
            "queue_wait_seconds", "From arrival to the first dispatch.", "tier", _FROM_1_MS
        )
        hold = self._histogram("hold_seconds", "Deliberately held for company.", "tier", _FROM_1_MS)
        ttft = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", "tier", _FROM_1_MS
        )
        itl = self._histogram(
            "inter_token_latency_seconds", "Between tokens, mean of a request.", "tier", _STEP
        )
        e2e = self._histogram(
            "request_duration_seconds", "From arrival to the end.", "tier", _REQUEST
        )
        self.tiers = {
            tier: TierInstruments(
                offered=offered.labels(tier),
                prompt_tokens=prompt.labels(tier),
                generated_tokens=generated.labels(tier),
                preemptions=preempted.labels(tier),
                resumes=resumed.labels(tier),
                queue_requests=requests.labels(tier),
                queue_tokens=tokens.labels(tier),
                queue_oldest_s=oldest.labels(tier),
                queue_late=late.labels(tier),
                owed_tokens=owed.labels(tier),
                shed_ratio=shed.labels(tier),
                queue_wait_s=wait.labels(tier),
                hold_s=hold.labels(tier),
                ttft_s=ttft.labels(tier),
                itl_s=itl.labels(tier),
                e2e_s=e2e.labels(tier),
            )
            for tier in tiers
        }

    def _build_executors(self, executors: Sequence[str], tiers: Sequence[str]) -> None:
        self.dispatches = self._counter(
            "dispatches", "Batches that went, by why they went then.", "executor", "reason"
        )
        size = self._histogram(
            "dispatch_batch_size", "Requests that went together.", "executor", _ROWS
        )
        depth = self._histogram(
            "dispatch_queue_depth", "Requests that waited when a batch went.", "executor", _DEPTH
        )
        oldest = self._histogram(
            "dispatch_oldest_seconds", "Age of the oldest of them.", "executor", _FROM_1_MS
        )
        hold = self._histogram(
            "dispatch_hold_seconds", "Deliberate hold of a batch.", "executor", _FROM_1_MS
        )
        padding = self._histogram(
            "dispatch_padding_ratio",
            "Part of a batch that runs to completion wasted on unequal lengths.",
            "executor",
            _TENTHS,
        )
        running = self._gauge("running_requests", "Requests that run.", "executor", "tier")
        rows = self._histogram("step_batch_size", "Sequences in a step.", "executor", _ROWS)
        duration = self._histogram("step_duration_seconds", "Time of a step.", "executor", _STEP)
        fill = self._histogram(
            "step_fill_ratio", "Sequences in a step over the limit.", "executor", _TENTHS
        )
        usage = self._gauge(
            "kv_usage_ratio", "KV memory that requests hold, of all. NaN: unknown.", "executor"
        )
        held = self._gauge("kv_tokens", "Tokens of KV that requests hold.", "executor")
        ready = self._gauge("executor_ready", "1 while the executor can take work.", "executor")
        restarts = self._counter("worker_restarts", "Restarts of the worker.", "executor")
        utilization = self._gauge(
            "device_utilization_ratio",
            "How busy the device is, by who says so. NaN: not this source.",
            "executor",
            "source",
        )
        self.executors = {
            name: ExecutorInstruments(
                dispatch_size=size.labels(name),
                dispatch_depth=depth.labels(name),
                dispatch_oldest_s=oldest.labels(name),
                dispatch_hold_s=hold.labels(name),
                dispatch_padding=padding.labels(name),
                step_batch_size=rows.labels(name),
                step_duration_s=duration.labels(name),
                step_fill=fill.labels(name),
                kv_usage=usage.labels(name),
                kv_tokens=held.labels(name),
                ready=ready.labels(name),
                restarts=restarts.labels(name),
                running={tier: running.labels(name, tier) for tier in tiers},
                utilization={source: utilization.labels(name, source) for source in _SOURCES},
            )
            for name in executors
        }
        for executor in self.executors.values():
            show(executor.kv_usage, None)
            show(executor.kv_tokens, None)
            executor.show_utilization(None, None)

    def _build_upstreams(self, upstreams: Sequence[str]) -> None:
        self.upstreams: dict[str, UpstreamInstruments] = {}
        if not upstreams:
            # A family without a series would say nothing.
            return
        age = self._gauge(
            "upstream_scrape_age_seconds",
            "Since the engine last said what follows. NaN: never.",
            "executor",
        )
        running = self._gauge(
            "upstream_running_requests",
            "Requests that run there, whoever's. NaN: unknown, or too old.",
            "executor",
        )
        waiting = self._gauge(
            "upstream_waiting_requests",
            "Requests that wait there, whoever's. NaN: unknown, or too old.",
            "executor",
        )
        foreign = self._gauge(
            "upstream_foreign_requests",
            "Requests there that are not of this daemon. NaN: unknown, or too old.",
            "executor",
        )
        self.upstreams = {
            name: UpstreamInstruments(
                age_s=age.labels(name),
                running=running.labels(name),
                waiting=waiting.labels(name),
                foreign=foreign.labels(name),
            )
            for name in upstreams
        }

    def _build_groups(self, groups: Sequence[str], tiers: Sequence[str]) -> None:
        size = self._gauge("limit_batch_size", "Sequences at once on one executor.", "group")
        tokens = self._gauge("limit_batch_tokens", "Tokens in one step.", "group")
        wait = self._gauge("limit_wait_seconds", "Longest hold for company.", "group")
        epoch = self._gauge("limits_epoch", "Number of the limits in force.", "group")
        ranges = [
            self._gauge(f"envelope_{name}", f"Hard range of {name}.", "group", "bound")
            for name in ("batch_size", "batch_tokens", "wait_seconds")
        ]
        judged = [
            self._gauge(
                f"judged_{name}",
                f"{name} that the last decision came to: in force, unless it is only observed.",
                "group",
            )
            for name in ("batch_size", "batch_tokens", "wait_seconds")
        ]
        observing = self._gauge("observing", "1 while nothing is applied.", "group")
        seats = self._gauge(
            "tier_limit_seats", "Sequences of a tier at once. NaN: no cap.", "group", "tier"
        )
        hold = self._gauge("tier_limit_wait_seconds", "Longest hold of a tier.", "group", "tier")
        self.groups = {}
        for group in groups:
            pairs = [(gauge.labels(group, "low"), gauge.labels(group, "high")) for gauge in ranges]
            self.groups[group] = GroupInstruments(
                batch_size=size.labels(group),
                batch_tokens=tokens.labels(group),
                wait_s=wait.labels(group),
                envelope_batch_size=pairs[0],
                envelope_batch_tokens=pairs[1],
                envelope_wait_s=pairs[2],
                epoch=epoch.labels(group),
                judged_batch_size=judged[0].labels(group),
                judged_batch_tokens=judged[1].labels(group),
                judged_wait_s=judged[2].labels(group),
                observing=observing.labels(group),
                tiers={
                    tier: TierLimitInstruments(
                        seats=seats.labels(group, tier), wait_s=hold.labels(group, tier)
                    )
                    for tier in tiers
                },
            )

    def _build_control(
        self, policies: Sequence[str], decisions: Sequence[str], guards: Sequence[str]
    ) -> None:
        self.decisions = self._counter(
            "decisions", "Decisions of the control loop.", "policy", "code"
        )
        self.refusals = self._counter(
            "guard_refusals", "Proposals that the guard held back or changed.", "limit", "code"
        )
        self.policy_errors = self._counter(
            "policy_errors", "Ticks in which a policy raised, or was given up.", "policy"
        )
        self.replacements = self._counter(
            "policy_replacements", "Policies that another one took over from.", "policy", "reason"
        )
        self.abandoned = self._gauge(
            "abandoned_policies", "Policies that never answered, and whose threads still run."
        )
        self.tick_s = self._histogram(
            "tick_duration_seconds", "Time of one tick of the control loop.", None, _TICK
        ).labels()
        for policy in policies:
            self.policy_errors.labels(policy)
            for reason in ("failed", "hung"):
                self.replacements.labels(policy, reason)
            for code in decisions:
                self.decisions.labels(policy, code)
        for limit in LIMITS:
            for code in guards:
                self.refusals.labels(limit, code)

    def _build_changes(
        self, groups: Sequence[str], tiers: Sequence[str], reasons: Sequence[str]
    ) -> None:
        self.changes = self._counter(
            "limit_changes", "Limits that moved.", "group", "limit", "direction", "reason"
        )
        self.tier_changes = self._counter(
            "tier_limit_changes",
            "Limits of a tier that its own policy moved; its max_batch_size are its seats.",
            "tier",
            "limit",
            "direction",
        )
        for direction in ("up", "down"):
            for limit in LIMITS:
                for group, reason in product(groups, reasons):
                    self.changes.labels(group, limit, direction, reason)
            for tier in tiers:
                for limit in ("max_batch_size", "wait_timeout_s"):
                    self.tier_changes.labels(tier, limit, direction)

    def _build_shadows(self, groups: Sequence[str], shadows: Sequence[str]) -> None:
        by = ("group", "policy")
        size = self._gauge("shadow_batch_size", "Sequences that a shadow proposes.", *by)
        tokens = self._gauge("shadow_batch_tokens", "Tokens that a shadow proposes.", *by)
        wait = self._gauge("shadow_wait_seconds", "Longest hold that a shadow proposes.", *by)
        answers = self._counter("shadow_answers", "Ticks in which a shadow answered.", *by)
        differences = self._counter(
            "shadow_differences", "Ticks in which other limits would have come of a shadow.", *by
        )
        errors = self._counter("shadow_errors", "Shadows that were dropped.", *by)

        @cache
        def of(group: str, shadow: str) -> ShadowInstruments:
            return ShadowInstruments(
                batch_size=size.labels(group, shadow),
                batch_tokens=tokens.labels(group, shadow),
                wait_s=wait.labels(group, shadow),
                answers=answers.labels(group, shadow),
                differences=differences.labels(group, shadow),
                errors=errors.labels(group, shadow),
            )

        # By group and label; a label that nobody foresaw gets its series when it is asked for.
        self.shadow = of
        for group, shadow in product(groups, shadows):
            of(group, shadow)

    def _build_daemon(self, version: str) -> None:
        # The unlabelled pair is what the Gateway API inference extension asks a server for.
        self.waiting = self._gauge("waiting_requests", "Requests that wait, of all tiers.")
        self.kv_usage = self._gauge(
            "kv_cache_usage_ratio", "KV memory in use, of the fullest executor. NaN: unknown."
        )
        self.ready = self._gauge("ready", "1 while work can be done, as /readyz says.")
        self.device_memory_used = self._gauge(
            "device_memory_used_bytes", "Memory in use on a device. NaN: unknown.", "source"
        ).labels("nvml")
        self.device_memory = self._gauge(
            "device_memory_bytes", "Memory of a device. NaN: unknown.", "source"
        ).labels("nvml")
        for gauge in (self.kv_usage, self.device_memory_used, self.device_memory):
            show(gauge, None)
        self.reload_successful = self._gauge(
            "config_last_reload_successful", "1 when the last (re)load of the file succeeded."
        )
        self.reload_time = self._gauge(
            "config_last_reload_success_timestamp_seconds",
            "Unix time of the last (re)load that succeeded.",
        )
        Info("headway_build", "Version of Headway.", registry=self.registry).info(
            {"version": version}
        )
