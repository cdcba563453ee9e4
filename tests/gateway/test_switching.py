"""Which policy decides, when an operator says so, and what becomes of one that does not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from controller.asking import Named
from controller.errors import InvalidRequest
from controller.loop import ControlLoop
from controller.succession import GOOD_ANSWERS
from gateway.asking import MAX_ABANDONED
from policies.contract import Limits, Proposal, Signals
from tests.gateway.blocked import Blocked
from tests.gateway.desk_rig import Rig
from tests.gateway.test_metering import figures

MINE = f"{__name__}:Mine"


class Mine:
    """A policy of somebody's own."""

    @dataclass(frozen=True)
    class Parameters:
        size: int = 2

    def __init__(self, parameters: Parameters) -> None:
        self.size = parameters.size

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(Limits(self.size, 1024, 0.0), "mine")


class Leaving(Mine):
    """It ends whoever builds it, from the time on that is given."""

    built = 0

    @dataclass(frozen=True)
    class Parameters(Mine.Parameters):
        after: int = 0

    def __init__(self, parameters: Parameters) -> None:
        Leaving.built += 1
        if Leaving.built > parameters.after:
            raise KeyboardInterrupt if parameters.size == 1 else SystemExit(0)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.ready()
    return rig


def loop_of(rig: Rig) -> ControlLoop:
    return rig.parts.ticker.loops["default"]


class TestSwitch:
    async def test_it_is_in_force_when_the_call_returns_and_says_what_was(self, rig: Rig) -> None:
        with capture_logs() as logs:
            told = await rig.desk.switch_policy("aimd", {"growth": 0.1})
        assert told == {
            "groups": {
                "default": {
                    "policy": {"type": "aimd", "parameters": {"growth": 0.1}},
                    "before": {"type": "static", "parameters": {}},
                    "last_good": None,
                }
            }
        }
        shown = rig.desk.state()["groups"]["default"]
        assert (shown["policy"], shown["parameters"]) == ("aimd", {"growth": 0.1})
        assert [(line["event"], line["before"], line["how"]) for line in logs] == [
            ("policy switched", "static", "by hand")
        ]
        rig.parts.ticker.tick()
        assert "'aimd' in place of 'static'" in rig.desk.decisions(1)[0]["reason"]

    @pytest.mark.parametrize("after", [0, 1])
    @pytest.mark.parametrize(("size", "told"), [(1, "KeyboardInterrupt"), (2, "SystemExit: 0")])
    async def test_one_that_would_end_the_process_is_refused_with_what_it_raises(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, size: int, told: str, after: int
    ) -> None:
        monkeypatch.setattr(Leaving, "built", 0)
        before = loop_of(rig).policy
        with pytest.raises(InvalidRequest, match=f"raises {told}$") as caught:
            await rig.desk.switch_policy(f"{__name__}:Leaving", {"size": size, "after": after})
        assert caught.value.param == "type"
        assert loop_of(rig).policy is before

    async def test_every_group_has_one_of_its_own(self) -> None:
        pair = [
            {"kind": "simulated", "model": "m", "name": name, "group": name} for name in ("x", "y")
        ]
        rig = Rig(executors=pair)
        await rig.desk.switch_policy(MINE, {"size": 3})
        policies = [loop.policy.policy for loop in rig.parts.ticker.loops.values()]
        assert [policy.size for policy in policies if isinstance(policy, Mine)] == [3, 3]
        assert policies[0] is not policies[1]

    @pytest.mark.parametrize(
        ("kind", "parameters", "param", "message"),
        [
            ("aimdd", {}, "type", "type: unknown policy 'aimdd'; did you mean aimd?"),
            ("aimd", {"grow": 1}, "parameters.grow", "did you mean growth"),
            ("aimd", {"growth": "x"}, "parameters.growth", "should be a number; given 'x'"),
            ("no.such:Policy", {}, "type", "cannot be imported"),
        ],
    )
    async def test_what_cannot_be_built_changes_nothing_and_names_the_key(
        self, rig: Rig, kind: str, parameters: dict[str, Any], param: str, message: str
    ) -> None:
        with pytest.raises(InvalidRequest) as caught:
            await rig.desk.switch_policy(kind, parameters)
        assert caught.value.param == param
        assert message in str(caught.value)
        assert loop_of(rig).policy.name == "static"

    async def test_limits_by_hand_stay_as_they_are(self, rig: Rig) -> None:
        rig.desk.pin({"max_batch_size": 3}, 60.0)
        await rig.desk.switch_policy(MINE, {})
        rig.parts.ticker.tick()
        shown = rig.desk.state()["groups"]["default"]
        assert (shown["limits"]["max_batch_size"], shown["pinned_for_s"]) == (3, 60.0)

    async def test_rolling_back_brings_the_last_good_one(self, rig: Rig) -> None:
        with pytest.raises(InvalidRequest, match="rollback: there is no policy to go back to"):
            rig.desk.roll_back_policy()
        for _ in range(GOOD_ANSWERS):
            rig.parts.ticker.tick()
        told = await rig.desk.switch_policy("aimd", {})
        assert told["groups"]["default"]["last_good"] == {"type": "static", "parameters": {}}
        told = rig.desk.roll_back_policy()
        assert told["groups"]["default"]["policy"]["type"] == "static"
        assert told["groups"]["default"]["before"]["type"] == "aimd"


class TestNoAnswer:
    @pytest.fixture
    async def hanging(self, rig: Rig) -> AsyncIterator[Blocked]:
        policy = Blocked()
        loop_of(rig).switch(Named("mine:Blocked", policy))
        yield policy
        policy.let_go()

    async def test_it_costs_a_reason_code_until_its_deadline_and_then_its_place(
        self, rig: Rig, hanging: Blocked
    ) -> None:
        codes = []
        for _ in range(6):
            rig.parts.ticker.tick()
            codes.append(rig.desk.decisions(1)[0]["code"])
            rig.clock.now += 0.25
        assert codes == ["slow", "slow", "slow", "slow", "hung", "kept"]
        assert rig.desk.state()["groups"]["default"]["limits"]["max_batch_size"] == 4
        ready, told = rig.desk.readiness()
        assert ready
        assert told["notes"] == [
            "policy of group 'default' failed and was replaced by 'static'",
            "1 policy does not answer and cannot be ended before the daemon is",
        ]
        seen = figures(rig.desk.metrics())
        name = 'policy="mine:Blocked"'
        assert seen[f'headway_decisions_total{{code="slow",{name}}}'] == 4
        assert seen[f'headway_decisions_total{{code="hung",{name}}}'] == 1
        assert seen[f"headway_policy_errors_total{{{name}}}"] == 1
        assert seen[f'headway_policy_replacements_total{{{name},reason="hung"}}'] == 1
        assert seen["headway_abandoned_policies"] == 1
        hanging.let_go()
        assert figures(rig.desk.metrics())["headway_abandoned_policies"] == 0

    async def test_the_failure_is_logged_once(self, rig: Rig, hanging: Blocked) -> None:
        with capture_logs() as logs:
            for _ in range(8):
                rig.parts.ticker.tick()
                rig.clock.now += 0.25
        assert [line["event"] for line in logs] == ["policy failed"]
        assert logs[0]["reason"] == (
            "policy 'mine:Blocked' is given up (no answer for 1.00 s): 'static' takes over"
        )

    async def test_after_too_many_of_them_only_headways_own_are_taken(self, rig: Rig) -> None:
        made = [Blocked() for _ in range(MAX_ABANDONED)]
        for policy in made:
            loop_of(rig).switch(Named("mine:Blocked", policy))
            rig.parts.ticker.tick()
            rig.clock.now += 1.0
            rig.parts.ticker.tick()
        with pytest.raises(InvalidRequest, match="4 policies were abandoned") as caught:
            await rig.desk.switch_policy(MINE, {})
        assert caught.value.param == "type"
        await rig.desk.switch_policy("aimd", {})
        for policy in made:
            policy.let_go()


class TestObserve:
    async def test_it_is_noted_shown_and_logged_once(self) -> None:
        rig = Rig(control={"policy": {"type": MINE}, "mode": "observe", "hold": "fixed"})
        await rig.ready()
        loop_of(rig).switch(Named("static", Mine(Mine.Parameters())))
        with capture_logs() as logs:
            rig.parts.ticker.tick()
            rig.parts.ticker.tick()
        assert [line["event"] for line in logs] == ["limits not applied"]
        assert rig.desk.readiness()[1]["notes"] == [
            "group 'default' only observes: nothing of what its policy proposes is applied"
        ]
        shown = rig.desk.state()["groups"]["default"]
        assert (shown["mode"], shown["limits"]["max_batch_size"]) == ("observe", 4)
        told = rig.desk.decisions(1)[0]
        assert (told["mode"], told["code"], told["moved"]) == ("observe", "observed", False)
        assert (told["judged"]["max_batch_size"], told["after"]["max_batch_size"]) == (2, 4)
        seen = figures(rig.desk.metrics())
        assert seen['headway_observing{group="default"}'] == 1
        assert seen['headway_judged_batch_size{group="default"}'] == 2
        assert seen['headway_limit_batch_size{group="default"}'] == 4
        assert seen['headway_decisions_total{code="observed",policy="static"}'] == 2


class TestShadows:
    async def test_what_they_say_is_shown_counted_and_their_end_logged(self) -> None:
        control = {"policy": {"type": "static"}, "hold": "fixed"}
        rig = Rig(control={**control, "shadows": [{"type": "static"}, {"type": "static"}]})
        await rig.ready()
        shadows = loop_of(rig).shadows.by_label
        assert list(shadows) == ["static", "static-2"]

        class Broken:
            def decide(self, signals: Signals, limits: Limits) -> Proposal:
                raise RuntimeError("no")

        shadows["static"] = Named("static", Mine(Mine.Parameters()))
        shadows["static-2"] = Named("static", Broken())
        with capture_logs() as logs:
            rig.parts.ticker.tick()
            rig.parts.ticker.tick()
        assert [(line["event"], line["policy"], line["reason"]) for line in logs] == [
            ("shadow dropped", "static-2", "RuntimeError: no")
        ]
        newest, first = rig.desk.decisions(2)
        assert newest["shadows"] == {
            "static": {
                "proposed": {
                    "max_batch_size": 2,
                    "max_batch_tokens": 1024,
                    "wait_timeout_s": 0.0,
                    "tiers": {},
                },
                "reason": "mine",
                "differs": True,
                "error": "",
            }
        }
        assert first["shadows"]["static-2"]["error"] == "RuntimeError: no"
        seen = figures(rig.desk.metrics())
        mine, broken = (f'{{group="default",policy="{name}"}}' for name in ("static", "static-2"))
        assert seen[f"headway_shadow_batch_size{mine}"] == 2
        assert seen[f"headway_shadow_answers_total{mine}"] == 2
        assert seen[f"headway_shadow_differences_total{mine}"] == 2
        assert seen[f"headway_shadow_answers_total{broken}"] == 0
        assert seen[f"headway_shadow_errors_total{broken}"] == 1


class TestTiers:
    async def test_a_tiers_own_policy_is_shown_and_its_limits_are_metrics(self) -> None:
        tiers = {"paid": {"priority": 1}, "free": {"priority": 0, "policy": {"type": "static"}}}
        rig = Rig(tiers=tiers)
        await rig.ready()
        (control,) = loop_of(rig).tiers
        control.succession.switch(Named("static", Mine(Mine.Parameters())))
        rig.parts.ticker.tick()
        shown = rig.desk.state()["groups"]["default"]
        assert shown["tiers"]["free"] == {"type": "static", "parameters": {}, "fallen_back": False}
        assert shown["limits"]["tiers"]["free"]["max_seats"] == 2
        told = rig.desk.decisions(1)[0]["tiers"]["free"]
        assert told["text"] == "free seats 4 -> 2: 'static' in place of 'static': mine"
        assert told["after"] == {"max_seats": 2, "wait_timeout_s": 0.0}
        seen = figures(rig.desk.metrics())
        assert seen['headway_tier_limit_seats{group="default",tier="free"}'] == 2
        assert str(seen['headway_tier_limit_seats{group="default",tier="paid"}']) == "nan"
        name = "headway_tier_limit_changes_total"
        labels = '{direction="down",limit="max_batch_size",tier="free"}'
        assert seen[name + labels] == 1


async def test_every_change_of_a_limit_is_counted_by_why_and_which_way(rig: Rig) -> None:
    loop = loop_of(rig)
    rig.desk.pin({"max_batch_size": 3}, 60.0)
    rig.desk.release()
    loop.switch(Named("static", Mine(Mine.Parameters())))
    rig.parts.ticker.tick()
    seen = figures(rig.desk.metrics())
    counted = {
        key.removeprefix("headway_limit_changes_total"): count
        for key, count in seen.items()
        if key.startswith("headway_limit_changes_total") and count
    }
    where = 'group="default",limit="max_batch_size"'
    assert counted == {
        f'{{direction="down",{where},reason="pinned"}}': 1,
        f'{{direction="up",{where},reason="unpinned"}}': 1,
        f'{{direction="down",{where},reason="policy"}}': 1,
    }


@pytest.mark.parametrize("size", [float("nan"), 10**400, 10**9])
async def test_a_decision_about_nonsense_is_still_json(rig: Rig, size: int) -> None:
    loop_of(rig).switch(Named("static", Mine(Mine.Parameters(size))))
    rig.parts.ticker.tick()
    told = msgspec.json.decode(msgspec.json.encode(rig.desk.decisions(1)))[0]
    assert told["after"]["max_batch_size"] == 4
    assert (told["code"], told["guard"][0]["limit"]) == ("held_back", "max_batch_size")
