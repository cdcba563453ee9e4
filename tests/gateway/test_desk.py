"""What the desk answers operators: readiness with reasons, state, limits by hand, metrics."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from controller.errors import Draining, InvalidRequest, NotReady
from controller.request import Outcome
from executor.contract import Report, Returned
from executor.process import State
from policies.contract import Limits
from tests.gateway.desk_rig import Heard, Rig


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.parts.ticker.tick()
    await rig.ready()
    return rig


class TestReadiness:
    async def test_before_the_first_executor_is_ready_it_says_what_is_going_on(self) -> None:
        rig = Rig()
        rig.parts.ticker.tick()
        ready, told = rig.desk.readiness()
        assert not ready
        assert told["reasons"] == ["no executor is ready (main: not started)"]
        with pytest.raises(NotReady, match="still loading"):
            rig.desk.reserve("paid", requests=1, tokens=1, size=1)
        with pytest.raises(NotReady, match="still loading"):
            rig.desk.model()

    async def test_with_one_executor_of_two_it_is_ready(self) -> None:
        pair = [{"kind": "simulated", "model": "m", "name": name} for name in ("x", "y")]
        rig = Rig(executors=pair)
        rig.parts.ticker.tick()
        await rig.ready("x")
        assert rig.desk.readiness()[0]
        await rig.lose("x")
        assert not rig.desk.readiness()[0]
        await rig.ready("y")
        assert rig.desk.readiness()[0]

    async def test_while_it_drains_it_is_not_ready_and_takes_nothing(self, rig: Rig) -> None:
        rig.batcher.drain()
        assert rig.desk.readiness()[1]["reasons"] == ["draining: nothing new is taken"]
        with pytest.raises(Draining):
            rig.desk.reserve("paid", requests=2, tokens=1, size=1)
        assert rig.outcomes() == {"rejected": 2}
        assert rig.conserved()


class TestState:
    async def test_it_is_json_and_adds_up(self, rig: Rig) -> None:
        for name in "abcdef":
            await rig.offer(name, Heard())
        await rig.report({"a": [1], "b": [2]}, finished=["a"])
        await rig.cancel("b", Outcome.CANCELLED, "disconnect")
        state = msgspec.json.decode(msgspec.json.encode(rig.desk.state()))
        assert state["requests"] == {
            "offered": 6,
            "queued": 1,
            "running": 3,
            "finished": 1,
            "rejected": 0,
            "expired": 0,
            "cancelled": 1,
            "failed": 0,
        }
        # Whoever was cancelled keeps the seat until the executor has let go of it.
        assert state["executors"]["main"]["running"] == 4
        assert state["tiers"]["paid"]["queued"] == 1
        assert state["executors"]["main"]["kv"] == 20 / 100_000

    async def test_what_a_lost_executor_held_is_not_shown_as_held(self, rig: Rig) -> None:
        await rig.offer("a", Heard())
        await rig.report({"a": [1]})
        await rig.lose()
        assert rig.desk.state()["executors"]["main"]["kv"] is None
        assert b'headway_kv_usage_ratio{executor="main"} NaN' in rig.desk.metrics()
        assert b"headway_kv_cache_usage_ratio NaN" in rig.desk.metrics()
        await rig.ready()
        assert rig.desk.state()["executors"]["main"]["kv"] is None

    async def test_restarts_are_counted_once_each(self, rig: Rig) -> None:
        process = rig.parts.processes["main"]
        for incarnation, line in (
            (0, b'headway_worker_restarts_total{executor="main"} 0.0'),
            (1, b'headway_worker_restarts_total{executor="main"} 0.0'),
            (3, b'headway_worker_restarts_total{executor="main"} 2.0'),
            (3, b'headway_worker_restarts_total{executor="main"} 2.0'),
        ):
            process.incarnation = incarnation
            assert line in rig.desk.metrics()
        assert process.state is State.STOPPED


class TestRequests:
    async def test_each_part_of_its_time_is_told_also_after_its_end(self, rig: Rig) -> None:
        for name in "abcd":
            await rig.offer(name, Heard())
        rig.clock.now += 1.0
        await rig.offer("e", Heard())
        rig.clock.now += 2.0
        waiting = rig.desk.request("e")
        assert waiting is not None
        assert (waiting["state"], waiting["queue_s"], waiting["prefill_s"]) == ("queued", 2.0, None)
        await rig.report({"a": [1]}, finished=["a"])
        rig.clock.now += 0.5
        await rig.report({"e": [1]})
        rig.clock.now += 0.25
        await rig.report({"e": [2]}, finished=["e"])
        seen: dict[str, Any] = rig.desk.request("e") or {}
        spent = [seen[f"{part}_s"] for part in ("queue", "hold", "prefill", "decode", "total")]
        assert spent == [2.0, 0.0, 0.5, 0.25, 2.75]
        assert (seen["state"], seen["outcome"], seen["reason"]) == ("ended", "finished", "length")
        assert rig.desk.request("nobody") is None

    async def test_it_shows_its_deadlines_from_its_arrival_on_and_who_it_gave_way_to(self) -> None:
        tiers = {"paid": {"priority": 1, "targets": {"ttft": "2s"}}, "free": {"priority": 0}}
        rig = Rig(tiers=tiers)
        await rig.ready()
        await rig.offer("a", Heard(), start_by=103.0, finish_by=160.25)
        await rig.offer("b", Heard(), tier="free")
        rig.clock.now += 1.0
        preempted = [Returned(name, 1, "preempted") for name in "ab"]
        rig.batcher.book.requests["b"].preemptions = 1
        rig.dispatcher.on_report("main", 1, Report(epoch=0, returned=preempted))
        a, b = (rig.desk.request(name) or {} for name in "ab")
        assert (a["start_by_s"], a["finish_by_s"]) == (3.0, 60.25)
        assert (b["start_by_s"], b["finish_by_s"], b["due_s"]) == (None, None, None)
        assert (b["attempt"], b["preemptions"], b["faults"]) == (1, 1, 0)


class TestLimitsByHand:
    async def test_they_are_in_force_when_the_call_returns(self, rig: Rig) -> None:
        assert rig.desk.pin({"max_batch_size": 2}, 60.0) == Limits(2, 1024, 0.0)
        assert rig.desk.pin({"wait_timeout_s": 0.01}, 60.0) == Limits(2, 1024, 0.01)
        shown = rig.desk.state()["groups"]["default"]
        assert (shown["epoch"], shown["pinned_for_s"]) == (2, 60.0)
        assert rig.desk.release() == Limits(4, 1024, 0.0)
        shown = rig.desk.state()["groups"]["default"]
        assert (shown["epoch"], shown["pinned_for_s"]) == (3, None)

    async def test_a_step_is_never_smaller_than_the_batch(self, rig: Rig) -> None:
        limits = rig.desk.pin({"max_batch_size": 64, "max_batch_tokens": 64}, 60.0)
        assert limits == Limits(64, 64, 0.0)

    async def test_every_group_has_them(self) -> None:
        pair = [
            {"kind": "simulated", "model": "m", "name": name, "group": name} for name in ("x", "y")
        ]
        rig = Rig(executors=pair)
        rig.desk.pin({"max_batch_size": 3}, 60.0)
        groups = rig.desk.state()["groups"]
        assert {name: shown["limits"]["max_batch_size"] for name, shown in groups.items()} == {
            "x": 3,
            "y": 3,
        }

    async def test_one_group_may_have_them_alone(self) -> None:
        pair = [
            {"kind": "simulated", "model": "m", "name": name, "group": name} for name in ("x", "y")
        ]
        own = {"envelope": {"max_batch_size": [1, 8]}, "limits": {"max_batch_size": 5}}
        rig = Rig(executors=pair, groups={"y": own})

        def sizes() -> list[int]:
            groups = rig.desk.state()["groups"]
            return [groups[name]["limits"]["max_batch_size"] for name in ("x", "y")]

        assert sizes() == [4, 5]
        assert rig.desk.pin({"max_batch_size": 7}, 60.0, group="y").max_batch_size == 7
        assert sizes() == [4, 7]
        # 9 is within the envelope of x, and not within that of y: then neither has it.
        with pytest.raises(InvalidRequest, match="should be a whole number from 1 to 8"):
            rig.desk.pin({"max_batch_size": 9}, 60.0)
        assert sizes() == [4, 7]
        rig.desk.release(group="y")
        assert sizes() == [4, 5]
        with pytest.raises(InvalidRequest, match="group: there is no 'z'; there are x, y"):
            rig.desk.release(group="z")

    @pytest.mark.parametrize("value", [65, 0, -1, 2.0, True, "8", None, float("nan")])
    async def test_a_size_that_is_no_whole_number_of_the_envelope_is_refused(
        self, rig: Rig, value: Any
    ) -> None:
        with pytest.raises(InvalidRequest, match="should be a whole number from 1 to 64") as caught:
            rig.desk.pin({"max_batch_size": value}, 60.0)
        assert caught.value.param == "max_batch_size"
        assert rig.desk.state()["groups"]["default"]["pinned_for_s"] is None

    @pytest.mark.parametrize("value", [0.051, -0.001, "5ms", float("inf"), float("nan"), False])
    async def test_a_wait_outside_the_envelope_is_refused(self, rig: Rig, value: Any) -> None:
        with pytest.raises(InvalidRequest, match=r"should be seconds from 0.0 to 0.05"):
            rig.desk.pin({"wait_timeout_s": value}, 60.0)


async def test_decisions_come_newest_first_and_are_json(rig: Rig) -> None:
    rig.desk.pin({"max_batch_size": 2}, 60.0)
    told = msgspec.json.decode(msgspec.json.encode(rig.desk.decisions(10)))
    assert [decision["number"] for decision in told] == [2, 1]
    assert [decision["moved"] for decision in told] == [True, False]
    assert told[0]["guard"][-1]["code"] == "pinned"
    assert told[0]["text"] == (
        "B 4 -> 2: held by hand for another 60 s (B pinned: the policy wants 4)"
    )
