"""Who goes before whom, whatever comes: by priority, but for what is owed and who starves."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from controller.listener import Listener
from controller.request import Ended, Request
from controller.scheduler import Pick, Turn
from controller.tiers import Targets, Tier
from tests.controller.stage import Stage, model

TIERS = (
    Tier("paid", 2, Targets(ttft_s=1.0)),
    Tier("free", 1, Targets(ttft_s=5.0), min_share=0.25, max_starvation_s=8.0),
    Tier("offline", 0, min_share=0.1, max_starvation_s=5.0),
)
RANK = {tier.name: tier.priority for tier in TIERS}


class Witness(Listener):
    """Keeps its own account of who waits, since when without progress."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = dict.fromkeys(RANK, 0)
        self.since: dict[str, float] = {}

    def offered(self, request: Request, now: float) -> None:
        self.waiting[request.tier] += 1

    def given_back(self, request: Request, reason: str, now: float) -> None:
        self.waiting[request.tier] += 1

    def dispatched(self, request: Request, now: float) -> None:
        self.waiting[request.tier] -= 1

    def ended(self, ended: Ended, now: float) -> None:
        if ended.request.attempt == 0:
            self.waiting[ended.request.tier] -= 1


class Turns(RuleBasedStateMachine):
    """One executor with few seats, and more traffic than it can serve."""

    def __init__(self) -> None:
        super().__init__()
        self.witness = Witness()
        self.stage = Stage.build(
            tiers=TIERS, size=3, listeners=(self.witness,), model=model(a=0.05)
        )
        self.owed: dict[str, float] = dict.fromkeys(RANK, 0.0)
        scheduler = self.stage.batcher.scheduler
        self.pick: Callable[..., Pick | None] = scheduler.pick
        setattr(scheduler, "pick", self.judged)  # noqa: B010  # every pick passes by us
        self.picks = 0

    def judged(self, now: float, *rest: object) -> Pick | None:
        """Ask the scheduler, and hold its answer against the rules."""
        queues, scheduler = self.stage.batcher.queues, self.stage.batcher.scheduler
        owed = dict(scheduler.owed())
        patience = {
            name: now - account.starves_at
            for name, account in scheduler._accounts.items()
            if account.starves_at < math.inf and queues[name].waiting
        }
        pick = self.pick(now, *rest)
        waiting = [name for name, queue in queues.items() if queue.waiting]
        assert (pick is None) == (not waiting)
        if pick is None:
            return None
        self.picks += 1
        request, turn = pick
        name = request.tier
        assert request is queues[name].head()
        starved = [tier for tier, over in patience.items() if over >= 0]
        if starved:
            assert turn is Turn.STARVED
            assert patience[name] == max(patience.values())
        elif turn is Turn.SHARE:
            assert owed[name] >= request.work_tokens
        else:
            # No inversion beyond that: nobody of a higher tier waits.
            assert turn is Turn.PRIORITY
            assert all(RANK[tier] <= RANK[name] for tier in waiting)
        return pick

    @rule(
        tier=st.sampled_from([tier.name for tier in TIERS]),
        prompt=st.integers(1, 100),
        new=st.integers(1, 60),
        client=st.sampled_from("ab"),
    )
    def arrive(self, tier: str, prompt: int, new: int, client: str) -> None:
        self.stage.arrive(tier, prompt=prompt, new=new, client=client)
        self.stage.poll()

    @rule(later=st.floats(0.01, 3.0), done=st.integers(0, 2))
    def step(self, later: float, done: int) -> None:
        """What was asked back is let go, some finish, the others get a token."""
        stage = self.stage
        stage.now += later
        stage.acknowledge()
        running = stage.ids()
        requests = stage.batcher.book.requests
        ends = [name for name in running if requests[name].remaining_tokens <= 1] + running[:done]
        tokens = [(name, len(requests[name].tokens), [1]) for name in running]
        stage.report(tokens=tokens, finished=list(dict.fromkeys(ends)))
        stage.poll()

    @invariant()
    def who_waits_is_known(self) -> None:
        queues = self.stage.batcher.queues
        assert {name: queue.waiting for name, queue in queues.items()} == self.witness.waiting

    @invariant()
    def nobody_is_owed_who_does_not_wait_nor_less_than_nothing(self) -> None:
        self.stage.poll()
        for name, owed in self.stage.batcher.scheduler.owed().items():
            assert owed >= 0
            assert owed == 0 or self.stage.batcher.queues[name].waiting

    @invariant()
    def a_free_seat_is_taken_by_whoever_waits(self) -> None:
        seats = self.stage.batcher.executors["e"]
        assert not (seats.room() and self.stage.batcher.queued())


Turns.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestTurns = Turns.TestCase
