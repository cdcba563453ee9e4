"""Whatever happens, in whatever order: a request ends once, is counted once, and loses nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.errors import HeadwayError
from controller.ledger import SeatState
from controller.memory import peak_tokens
from controller.preemption import MAX_PREEMPTIONS
from controller.request import Ended, Outcome, Request
from controller.tiers import Late, Order, Targets, Tier
from executor.contract import Finished, Key, Report, Returned, Submit, Tokens
from policies.contract import Limits
from tests.controller.stage import Stage, capacity, model

TIERS = (
    Tier("paid", 2, Targets(ttft_s=1.0, itl_s=0.1), max_queue_requests=6, max_seats=5),
    Tier(
        "free",
        1,
        Targets(ttft_s=3.0),
        min_share=0.2,
        max_queue_requests=6,
        max_queue_tokens=300,
        wait_timeout_s=0.5,
        late="drop",
    ),
    Tier("offline", 0, min_share=0.1, max_starvation_s=3.0, max_queue_requests=6, order="shortest"),
)
NAMES = ("a", "b")


class Conservation(RuleBasedStateMachine):
    """Two executors that are as rude as they like, under a batcher that must not lose count."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage.build(
            tiers=TIERS,
            size=3,
            wait_s=0.2,
            executors=NAMES,
            ready=capacity(kv_tokens=400),
            model=model(a=0.02, c=0.03, d=0.001),
        )
        self.known: list[Request] = []
        self.streamed: dict[str, list[int]] = {}
        self.told: list[Ended] = []
        self.rejected = 0
        # What the workers really hold, attempt by attempt, with the tokens that they have made.
        self.held: dict[str, dict[Key, tuple[Submit, int]]] = {name: {} for name in NAMES}
        self.stale: list[tuple[str, int, Report]] = []
        # What they were told to let go, and have not yet.
        self.releases: dict[str, list[Key]] = {name: [] for name in NAMES}
        self.poll(0.0)

    def poll(self, later: float) -> None:
        self.stage.now += later
        before = {name: len(held.seats) for name, held in self.stage.batcher.executors.items()}
        plan = self.stage.batcher.poll(self.stage.now)
        for name, work in plan.work.items():
            seats = self.stage.batcher.executors[name]
            assert not work.submit or before[name] + len(work.submit) <= seats.size_limit
            for submit in work.submit:
                self.held[name][Key(submit.request_id, submit.attempt)] = (submit, 0)
            self.releases[name] += work.release
        self.told += plan.ended
        assert plan.wake_at is None or plan.wake_at > self.stage.now

    def report(self, name: str, report: Report) -> None:
        incarnation = self.stage.incarnation[name]
        now = self.stage.now
        for request, ids, _ in self.stage.batcher.on_report(name, incarnation, report, now):
            self.streamed.setdefault(request.id, []).extend(ids)
        self.stale = [*self.stale[-5:], (name, incarnation, report)]

    @rule(
        tier=st.sampled_from(["paid", "free", "offline"]),
        prompt=st.integers(1, 80),
        new=st.integers(1, 20),
        start_in=st.none() | st.floats(0.0, 5.0),
        finish_in=st.none() | st.floats(0.0, 9.0),
    )
    def arrive(
        self, tier: str, prompt: int, new: int, start_in: float | None, finish_in: float | None
    ) -> None:
        now = self.stage.now
        try:
            request = self.stage.arrive(
                tier,
                prompt=prompt,
                new=new,
                start_by=None if start_in is None else now + start_in,
                finish_by=None if finish_in is None else now + finish_in,
            )
        except HeadwayError:
            self.rejected += 1
        else:
            self.known.append(request)

    @rule(later=st.floats(0.0, 2.0))
    def time_passes(self, later: float) -> None:
        self.poll(later)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), outcome=st.sampled_from([Outcome.CANCELLED, Outcome.FINISHED]))
    def cancel(self, data: st.DataObject, outcome: Outcome) -> None:
        request = data.draw(st.sampled_from(self.known))
        over = request.outcome is not None
        assert self.stage.batcher.cancel(request.id, self.stage.now, outcome, "asked") != over

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def step(self, data: st.DataObject, name: str) -> None:
        """Every sequence gets a token; some finish, some are given back."""
        tokens, finished, returned = [], [], []
        for key, (submit, made) in list(self.held[name].items()):
            index = len(submit.tokens) - submit.prompt_length + made
            tokens.append(Tokens(key.request_id, key.attempt, index, [index]))
            self.held[name][key] = (submit, made + 1)
            fate = data.draw(st.sampled_from(["on", "on", "stop", "back"]))
            if fate == "stop" or made + 1 == submit.max_new_tokens:
                finished.append(Finished(key.request_id, key.attempt, "stop"))
                del self.held[name][key]
            elif fate == "back":
                returned.append(Returned(key.request_id, key.attempt, "preempted"))
                del self.held[name][key]
        self.report(name, Report(epoch=0, tokens=tokens, finished=finished, returned=returned))
        self.poll(0.0)

    @rule(name=st.sampled_from(NAMES))
    def let_go(self, name: str) -> None:
        """A worker reads what it was told: each key is acknowledged once, held or not."""
        keys, self.releases[name] = self.releases[name], []
        for key in keys:
            self.held[name].pop(key, None)
        self.report(name, Report(epoch=0, steps=0, released=keys))
        self.poll(0.0)

    @rule(name=st.sampled_from(NAMES))
    def die_and_come_back(self, name: str) -> None:
        self.held[name] = {}
        self.releases[name] = []
        self.stage.lose(name)
        self.poll(0.1)
        self.stage.start(name, capacity(kv_tokens=400))
        self.poll(0.1)

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_message_comes_twice_or_too_late(self, data: st.DataObject) -> None:
        name, incarnation, report = data.draw(st.sampled_from(self.stale))
        again = Report(epoch=0, tokens=report.tokens, released=report.released)
        streamed = self.stage.batcher.on_report(name, incarnation, again, self.stage.now)
        assert streamed == []

    @rule(size=st.integers(1, 6), wait_s=st.floats(0.0, 1.0))
    def limits_change(self, size: int, wait_s: float) -> None:
        self.stage.batcher.set_limits("default", Limits(size, 8192, wait_s), 1)
        self.poll(0.0)

    @rule(
        name=st.sampled_from(["paid", "free", "offline"]),
        order=st.sampled_from(["edf", "fcfs", "shortest"]),
        late=st.sampled_from(["last", "drop"]),
        promised=st.sampled_from([Targets(), Targets(ttft_s=2.0, itl_s=0.05), Targets(e2e_s=4.0)]),
        most=st.integers(1, 5),
    )
    def tiers_change(
        self, name: str, order: Order, late: Late, promised: Targets, most: int
    ) -> None:
        tiers = [queue.tier for queue in self.stage.batcher.queues.values()]
        there = self.stage.batcher.queued(), self.stage.batcher.running()
        changed: dict[str, Any] = {
            "order": order,
            "late": late,
            "targets": promised,
            "max_queue_requests": most,
        }
        self.stage.batcher.retier(
            [
                replace(tier, max_seats=most, **changed) if tier.name == name else tier
                for tier in tiers
            ]
        )
        assert (self.stage.batcher.queued(), self.stage.batcher.running()) == there
        self.poll(0.0)

    @invariant()
    def every_request_is_counted_once(self) -> None:
        batcher = self.stage.batcher
        assert batcher.book.offered == len(self.known) + self.rejected
        assert batcher.book.offered == (
            batcher.book.outcomes.total() + batcher.queued() + batcher.running()
        )

    @invariant()
    def every_end_is_told_once(self) -> None:
        told = [ended.request.id for ended in self.told]
        assert len(told) == len(set(told))
        self.poll(0.0)
        told = [ended.request.id for ended in self.told]
        assert sorted(told) == sorted(r.id for r in self.known if r.outcome is not None)

    @invariant()
    def tokens_are_streamed_in_order_and_none_twice(self) -> None:
        for request in self.known:
            assert self.streamed.get(request.id, []) == list(range(len(request.tokens)))

    @invariant()
    def bounds_hold(self) -> None:
        batcher = self.stage.batcher
        for seats in batcher.executors.values():
            assert seats.by_tier.get("paid", 0) <= 5
            assert len(seats.seats) == sum(seats.by_tier.values())
            assert seats.reserved_tokens == sum(
                seat.request.work_tokens for seat in seats.seats.values()
            )
            assert seats.prompt_tokens == sum(seat.left for seat in seats.prefilling.values())
            assert seats.trials == sum(seat.trial for seat in seats.seats.values())
            holdings = [
                (seat.request.remaining_tokens, len(seat.request.prompt) + len(seat.request.tokens))
                for seat in seats.seats.values()
            ]
            assert len(seats.seats) <= 1 or peak_tokens(holdings) <= 400
        for queue in batcher.queues.values():
            assert queue.reserved.requests == queue.reserved.tokens == queue.reserved.size == 0

    @invariant()
    def seats_that_are_asked_back_are_so_once(self) -> None:
        for name, seats in self.stage.batcher.executors.items():
            going = {
                seat.key for seat in seats.seats.values() if seat.state is not SeatState.RUNNING
            }
            # One that ended by itself meanwhile is asked for in vain.
            assert going <= set(self.releases[name])
            assert len(self.releases[name]) == len(set(self.releases[name]))

    @invariant()
    def nobody_is_preempted_too_often_or_for_its_equal(self) -> None:
        for request in self.known:
            assert request.preemptions <= MAX_PREEMPTIONS
            assert request.tier != "paid" or not request.preemptions

    @invariant()
    def nobody_waits_beside_a_free_seat_for_ever(self) -> None:
        """With work waiting, seats free and no hold to end, something must run."""
        batcher = self.stage.batcher
        self.poll(0.0)
        plan = batcher.poll(self.stage.now)
        assert not plan.work
        idle = all(not seats.seats for seats in batcher.executors.values())
        assert not (batcher.queued() and idle and plan.wake_at is None)


Conservation.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestConservation = Conservation.TestCase
