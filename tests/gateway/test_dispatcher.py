"""The single writer: what sinks hear and in which order, and what it keeps."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

import pytest

from controller.errors import NotReady
from controller.request import Ended, Outcome
from executor.contract import Key, Logprobs
from gateway.dispatcher import REMEMBERED, Dispatcher
from tests.gateway.desk_rig import Heard, Rig


@pytest.fixture
async def rig() -> Rig:
    """Ready, with four seats and no hold."""
    rig = Rig()
    await rig.ready()
    return rig


@dataclass
class Stopper(Heard):
    """Finds its stop string in the first token, and says so from within."""

    rig: Rig | None = None
    name: str = ""

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        super().on_tokens(ids, now, logprobs)
        assert self.rig is not None
        self.rig.desk.cancel(self.name, Outcome.FINISHED, "stop")


@dataclass
class Broken(Heard):
    """Raises when it gets tokens, or when it is told the end."""

    at_end: bool = False

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        super().on_tokens(ids, now, logprobs)
        if not self.at_end:
            raise UnicodeError("a sink with a mistake in it")

    def on_end(self, ended: Ended) -> None:
        super().on_end(ended)
        if self.at_end:
            raise UnicodeError("a sink with a mistake in it")


class TestSinks:
    async def test_they_hear_tokens_in_order_and_the_end_last(self, rig: Rig) -> None:
        heard = Heard()
        await rig.offer("a", heard)
        await rig.report({"a": [5]})
        await rig.report({"a": [6, 7]})
        await rig.report({"a": [8]}, finished=["a"])
        assert heard.log == [[5], [6, 7], [8], (Outcome.FINISHED, "length")]
        assert rig.conserved()

    async def test_one_that_cancels_from_within_is_told_its_end_once(self, rig: Rig) -> None:
        heard = Stopper(rig=rig, name="a")
        await rig.offer("a", heard)
        await rig.report({"a": [5]})
        assert heard.log == [[5], (Outcome.FINISHED, "stop")]
        assert rig.wire.released == [Key("a", 1)]
        await rig.report({}, released=[Key("a", 1)])
        assert heard.log == [[5], (Outcome.FINISHED, "stop")]
        assert len(rig.batcher.executors["main"].seats) == 0

    async def test_a_cancel_from_within_takes_no_text_from_one_that_ends_in_the_same_step(
        self, rig: Rig
    ) -> None:
        stopper, other = Stopper(rig=rig, name="a"), Heard()
        await rig.offer("a", stopper)
        await rig.offer("b", other)
        await rig.report({"a": [5], "b": [6]}, finished=["b"])
        assert other.log == [[6], (Outcome.FINISHED, "length")]
        assert stopper.log == [[5], (Outcome.FINISHED, "stop")]

    async def test_a_cancel_of_a_sibling_from_within_is_heard_by_that_one(self, rig: Rig) -> None:
        first, second = Stopper(rig=rig, name="b"), Heard()
        await rig.offer("a", first)
        await rig.offer("b", second)
        await rig.report({"a": [5], "b": [6]})
        assert second.log[-1] == (Outcome.FINISHED, "stop")
        assert [entry for entry in second.log if isinstance(entry, tuple)] == second.log[-1:]

    async def test_one_that_raises_fails_alone(self, rig: Rig) -> None:
        broken, other = Broken(), Heard()
        await rig.offer("a", broken)
        await rig.offer("b", other)
        await rig.report({"a": [5], "b": [6]})
        await rig.report({"b": [7]}, finished=["b"])
        assert broken.log == [[5], (Outcome.FAILED, "sink_failed")]
        assert other.log == [[6], [7], (Outcome.FINISHED, "length")]
        assert rig.wire.released == [Key("a", 1)]
        assert rig.outcomes() == {"failed": 1, "finished": 1}
        assert rig.conserved()

    async def test_one_that_loses_its_last_text_does_not_come_to_a_clean_end(
        self, rig: Rig
    ) -> None:
        broken = Broken()
        await rig.offer("a", broken)
        await rig.report({"a": [5]}, finished=["a"])
        assert broken.log == [[5], (Outcome.FAILED, "sink_failed")]

    async def test_one_that_raises_at_its_end_keeps_no_end_from_the_others(self, rig: Rig) -> None:
        broken, other = Broken(at_end=True), Heard()
        await rig.offer("a", broken)
        await rig.offer("b", other)
        await rig.report({"a": [5], "b": [6]}, finished=["a", "b"])
        assert other.log == [[6], (Outcome.FINISHED, "length")]
        await rig.offer("c", other)
        assert rig.wire.begun == ["a", "b", "c"]

    async def test_one_may_ask_for_more_from_within_its_end(self, rig: Rig) -> None:
        again = Heard()

        class Chain(Heard):
            def on_end(self, ended: Ended) -> None:
                rig.offer_now("b", again)

        await rig.offer("a", Chain())
        await rig.report({"a": [5]}, finished=["a"])
        await rig.report({"b": [6]}, finished=["b"])
        assert again.log == [[6], (Outcome.FINISHED, "length")]


class TestEmpty:
    async def test_it_is_empty_when_nobody_waits_runs_or_is_on_the_way_in(self, rig: Rig) -> None:
        empty = rig.dispatcher.empty
        assert empty.is_set()
        permit = rig.desk.reserve("paid", requests=1, tokens=5, size=5)
        assert not empty.is_set()
        rig.desk.give_back(permit)
        assert empty.is_set()
        await rig.offer("a", Heard())
        assert not empty.is_set()
        await rig.report({"a": [5]}, finished=["a"])
        assert empty.is_set()

    async def test_what_is_refused_leaves_it_empty(self, rig: Rig) -> None:
        rig.batcher.drain()
        with pytest.raises(Exception, match="shutting down"):
            rig.desk.reserve("paid", requests=1, tokens=5, size=5)
        assert rig.dispatcher.empty.is_set()


class TestLoss:
    async def test_what_ran_goes_on_where_it_was_in_the_next_incarnation(self, rig: Rig) -> None:
        heard = Heard()
        await rig.offer("a", heard)
        await rig.report({"a": [5, 6]})
        await rig.lose()
        assert heard.log == [[5, 6]]
        await rig.ready()
        submit = rig.wire.works[-1].submit[0]
        assert (submit.attempt, submit.tokens, submit.prompt_length) == (2, [1, 2, 3, 5, 6], 3)
        assert submit.max_new_tokens == 8
        await rig.report({"a": [7]}, finished=["a"])
        assert heard.log == [[5, 6], [7], (Outcome.FINISHED, "length")]

    async def test_with_every_executor_gone_for_good_all_fail_and_it_gives_up(self) -> None:
        pair = [{"kind": "simulated", "model": "m", "name": name} for name in ("x", "y")]
        rig = Rig(executors=pair)
        await rig.ready("x")
        await rig.ready("y")
        heard = Heard()
        await rig.offer("a", heard)
        await rig.lose("x", restart_in_s=None)
        assert not rig.dispatcher.given_up.is_set()
        assert heard.log == []
        await rig.lose("y", restart_in_s=None)
        assert heard.log == [(Outcome.FAILED, "executor_lost")]
        assert rig.dispatcher.given_up.is_set()
        with pytest.raises(NotReady, match="does not come back"):
            rig.desk.reserve("paid", requests=1, tokens=5, size=5)

    async def test_a_restart_is_expected_to_take_as_long_as_the_last_load(self) -> None:
        tiers = {"paid": {"priority": 1, "start_within": "4s"}}
        rig = Rig(tiers=tiers)
        rig.clock.now += 3.0
        await rig.ready()
        await rig.lose(restart_in_s=0.5)
        # Half a second of pause and three of loading are within the four that this tier waits.
        rig.desk.give_back(rig.desk.reserve("paid", requests=1, tokens=5, size=5))
        # The pause is no part of the load: the next estimate is not longer for it.
        rig.clock.now += 3.5
        await rig.ready()
        await rig.lose(restart_in_s=2.0)
        with pytest.raises(NotReady, match="back in 5 s") as caught:
            rig.desk.reserve("paid", requests=1, tokens=5, size=5)
        assert caught.value.retry_after_s == 5.0
        assert rig.dispatcher.empty.is_set()


class TestMemory:
    async def test_after_two_thousand_requests_nothing_of_them_is_left(self, rig: Rig) -> None:
        for index in range(500):
            names = [f"r{index}-{part}" for part in range(4)]
            for name in names:
                await rig.offer(
                    name, Heard(), finish_by=rig.clock.now + 5, start_by=rig.clock.now + 5
                )
            done, gone, stopped, lost = names
            rig.clock.now += 0.01
            await rig.report({name: [5] for name in names})
            await rig.cancel(gone, Outcome.CANCELLED, "disconnect")
            await rig.cancel(stopped, Outcome.FINISHED, "stop")
            keys = [Key(name, 1) for name in (gone, stopped)]
            await rig.report({done: [6], lost: [6]}, finished=[done, lost], released=keys)
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
        listeners = vars(rig.dispatcher)["_observer"], rig.parts.ticker
        for part in (rig.dispatcher, rig.batcher, rig.batcher.book, *listeners, seats):
            assert {name: n for name, n in sizes(part).items() if n > 64} in (
                {},
                {"remembered": REMEMBERED},
            )
        assert max(sizes(rig.batcher.queues["paid"]).values()) <= 64


def sizes(part: object) -> dict[str, int]:
    """How much is in everything that an object keeps: what nothing else shows, only a leak does."""
    slots = getattr(part, "__slots__", ())
    kept = {name: getattr(part, name) for name in slots} or vars(part)
    return {name: len(held) for name, held in kept.items() if isinstance(held, Sized)}


def test_a_dispatcher_can_be_built_without_a_loop() -> None:
    assert isinstance(Rig().dispatcher, Dispatcher)
