"""The single writer: what sinks hear and in which order, and what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from controller.errors import NotReady
from controller.request import Ended, Outcome
from executor.contract import Key
from gateway.dispatcher import REMEMBERED, Dispatcher
from tests.gateway.desk_rig import Heard, Rig


@pytest.fixture
async def rig() -> Rig:
    """Ready, with four seats and no hold."""
    rig = Rig()
    rig.ready()
    return rig


@dataclass
class Stopper(Heard):
    """Finds its stop string in the first token, and says so from within."""

    rig: Rig | None = None
    name: str = ""

    def on_tokens(self, ids: list[int], now: float) -> None:
        super().on_tokens(ids, now)
        assert self.rig is not None
        self.rig.desk.cancel(self.name, Outcome.FINISHED, "stop")


@dataclass
class Broken(Heard):
    """Raises when it gets tokens, or when it is told the end."""

    at_end: bool = False

    def on_tokens(self, ids: list[int], now: float) -> None:
        super().on_tokens(ids, now)
        if not self.at_end:
            raise UnicodeError("a sink with a mistake in it")

    def on_end(self, ended: Ended) -> None:
        super().on_end(ended)
        if self.at_end:
            raise UnicodeError("a sink with a mistake in it")


class TestSinks:
    async def test_they_hear_tokens_in_order_and_the_end_last(self, rig: Rig) -> None:
        heard = Heard()
        rig.offer("a", heard)
        rig.report({"a": [5]})
        rig.report({"a": [6, 7]})
        rig.report({"a": [8]}, finished=["a"])
        assert heard.log == [[5], [6, 7], [8], (Outcome.FINISHED, "length")]
        assert rig.conserved()

    async def test_one_that_cancels_from_within_is_told_its_end_once(self, rig: Rig) -> None:
        heard = Stopper(rig=rig, name="a")
        rig.offer("a", heard)
        rig.report({"a": [5]})
        assert heard.log == [[5], (Outcome.FINISHED, "stop")]
        assert rig.wire.released == [Key("a", 1)]
        rig.report({}, released=[Key("a", 1)])
        assert heard.log == [[5], (Outcome.FINISHED, "stop")]
        assert len(rig.batcher.executors["main"].seats) == 0

    async def test_a_cancel_from_within_takes_no_text_from_one_that_ends_in_the_same_step(
        self, rig: Rig
    ) -> None:
        stopper, other = Stopper(rig=rig, name="a"), Heard()
        rig.offer("a", stopper)
        rig.offer("b", other)
        rig.report({"a": [5], "b": [6]}, finished=["b"])
        assert other.log == [[6], (Outcome.FINISHED, "length")]
        assert stopper.log == [[5], (Outcome.FINISHED, "stop")]

    async def test_a_cancel_of_a_sibling_from_within_is_heard_by_that_one(self, rig: Rig) -> None:
        first, second = Stopper(rig=rig, name="b"), Heard()
        rig.offer("a", first)
        rig.offer("b", second)
        rig.report({"a": [5], "b": [6]})
        assert second.log[-1] == (Outcome.FINISHED, "stop")
        assert [entry for entry in second.log if isinstance(entry, tuple)] == second.log[-1:]

    async def test_one_that_raises_fails_alone(self, rig: Rig) -> None:
        broken, other = Broken(), Heard()
        rig.offer("a", broken)
        rig.offer("b", other)
        rig.report({"a": [5], "b": [6]})
        rig.report({"b": [7]}, finished=["b"])
        assert broken.log == [[5], (Outcome.FAILED, "sink_failed")]
        assert other.log == [[6], [7], (Outcome.FINISHED, "length")]
        assert rig.wire.released == [Key("a", 1)]
        assert rig.outcomes() == {"failed": 1, "finished": 1}
        assert rig.conserved()

    async def test_one_that_loses_its_last_text_does_not_come_to_a_clean_end(
        self, rig: Rig
    ) -> None:
        broken = Broken()
        rig.offer("a", broken)
        rig.report({"a": [5]}, finished=["a"])
        assert broken.log == [[5], (Outcome.FAILED, "sink_failed")]

    async def test_one_that_raises_at_its_end_keeps_no_end_from_the_others(self, rig: Rig) -> None:
        broken, other = Broken(at_end=True), Heard()
        rig.offer("a", broken)
        rig.offer("b", other)
        rig.report({"a": [5], "b": [6]}, finished=["a", "b"])
        assert other.log == [[6], (Outcome.FINISHED, "length")]
        rig.offer("c", other)
        assert rig.wire.begun == ["a", "b", "c"]

    async def test_one_may_ask_for_more_from_within_its_end(self, rig: Rig) -> None:
        again = Heard()

        class Chain(Heard):
            def on_end(self, ended: Ended) -> None:
                rig.offer("b", again)

        rig.offer("a", Chain())
        rig.report({"a": [5]}, finished=["a"])
        rig.report({"b": [6]}, finished=["b"])
        assert again.log == [[6], (Outcome.FINISHED, "length")]


class TestEmpty:
    async def test_it_is_empty_when_nobody_waits_runs_or_is_on_the_way_in(self, rig: Rig) -> None:
        empty = rig.dispatcher.empty
        assert empty.is_set()
        permit = rig.desk.reserve("paid", requests=1, tokens=5, size=5)
        assert not empty.is_set()
        rig.desk.give_back(permit)
        assert empty.is_set()
        rig.offer("a", Heard())
        assert not empty.is_set()
        rig.report({"a": [5]}, finished=["a"])
        assert empty.is_set()

    async def test_what_is_refused_leaves_it_empty(self, rig: Rig) -> None:
        rig.batcher.drain()
        with pytest.raises(Exception, match="shutting down"):
            rig.desk.reserve("paid", requests=1, tokens=5, size=5)
        assert rig.dispatcher.empty.is_set()


class TestLoss:
    async def test_what_ran_goes_on_where_it_was_in_the_next_incarnation(self, rig: Rig) -> None:
        heard = Heard()
        rig.offer("a", heard)
        rig.report({"a": [5, 6]})
        rig.lose()
        assert heard.log == [[5, 6]]
        rig.ready()
        submit = rig.wire.works[-1].submit[0]
        assert (submit.attempt, submit.tokens, submit.prompt_length) == (2, [1, 2, 3, 5, 6], 3)
        assert submit.max_new_tokens == 8
        rig.report({"a": [7]}, finished=["a"])
        assert heard.log == [[5, 6], [7], (Outcome.FINISHED, "length")]

    async def test_with_every_executor_gone_for_good_all_fail_and_it_gives_up(self) -> None:
        pair = [{"kind": "simulated", "model": "m", "name": name} for name in ("x", "y")]
        rig = Rig(executors=pair)
        rig.ready("x")
        rig.ready("y")
        heard = Heard()
        rig.offer("a", heard)
        rig.lose("x", restart_in_s=None)
        assert not rig.dispatcher.given_up.is_set()
        assert heard.log == []
        rig.lose("y", restart_in_s=None)
        assert heard.log == [(Outcome.FAILED, "executor_lost")]
        assert rig.dispatcher.given_up.is_set()
        with pytest.raises(NotReady, match="does not come back"):
            rig.desk.reserve("paid", requests=1, tokens=5, size=5)

    async def test_a_restart_is_expected_to_take_as_long_as_the_last_load(self) -> None:
        tiers = {"paid": {"priority": 1, "start_within": "4s"}}
        rig = Rig(tiers=tiers)
        rig.clock.now += 3.0
        rig.ready()
        rig.lose(restart_in_s=0.5)
        # Half a second of pause and three of loading are within the four that this tier waits.
        rig.desk.give_back(rig.desk.reserve("paid", requests=1, tokens=5, size=5))
        # The pause is no part of the load: the next estimate is not longer for it.
        rig.clock.now += 3.5
        rig.ready()
        rig.lose(restart_in_s=2.0)
        with pytest.raises(NotReady, match="back in 5 s") as caught:
            rig.desk.reserve("paid", requests=1, tokens=5, size=5)
        assert caught.value.retry_after_s == 5.0
        assert rig.dispatcher.empty.is_set()


class TestMemory:
    async def test_after_two_thousand_requests_nothing_of_them_is_left(self, rig: Rig) -> None:
        for index in range(500):
            names = [f"r{index}-{part}" for part in range(4)]
            for name in names:
                rig.offer(name, Heard(), finish_by=rig.clock.now + 5, start_by=rig.clock.now + 5)
            done, gone, stopped, lost = names
            rig.clock.now += 0.01
            rig.report({name: [5] for name in names})
            rig.desk.cancel(gone, Outcome.CANCELLED, "disconnect")
            rig.desk.cancel(stopped, Outcome.FINISHED, "stop")
            keys = [Key(name, 1) for name in (gone, stopped)]
            rig.report({done: [6], lost: [6]}, finished=[done, lost], released=keys)
        assert rig.outcomes() == {"finished": 1500, "cancelled": 500}
        assert rig.conserved()
        assert rig.batcher.book.requests == {}
        seats = rig.batcher.executors["main"]
        assert (len(seats.seats), seats.reserved_tokens, sum(seats.by_tier.values())) == (0, 0, 0)
        for queue in rig.batcher.queues.values():
            held = queue.reserved
            assert (held.requests, held.tokens, held.size) == (0, 0, 0)
            assert (len(queue), queue.tokens, queue.size) == (0, 0, 0)
        assert len(rig.dispatcher.remembered) == REMEMBERED
        assert _inside(rig.dispatcher, "_sinks") == {}
        assert _inside(_inside(rig.dispatcher, "_observer"), "_segments") == {}
        assert len(_inside(rig.batcher.book, "_finish_by")) <= 64
        assert len(_inside(rig.batcher.queues["paid"], "_heap")) <= 64


def _inside(part: Any, name: str) -> Any:
    """What is kept where nothing else shows it: only a leak would."""
    return vars(part)[name]


def test_a_dispatcher_can_be_built_without_a_loop() -> None:
    assert isinstance(Rig().dispatcher, Dispatcher)
