"""Every key that is live reaches the part that goes by it; what was learnt and decided stays."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from controller.asking import Named
from controller.config import Config
from controller.config_diff import RESTART, Change
from controller.config_keys import all_paths, sections_at
from controller.errors import ConfigError, Forbidden, Unauthorized
from controller.succession import GOOD_ANSWERS
from executor.contract import StepSample
from gateway.asking import MAX_ABANDONED
from gateway.in_force import notes
from policies.contract import Limits, Proposal, Signals, TierLimits
from tests.gateway.blocked import Blocked
from tests.gateway.desk_rig import Heard, Rig

KEY, TOKEN = "k-1", "t-1"
SHA256, TOKEN_SHA256 = (hashlib.sha256(text.encode()).hexdigest() for text in (KEY, TOKEN))
SIMULATED = {"kind": "simulated", "model": "sim"}
MINE = {"name": "mine", "tier": "paid", "sha256": SHA256}
TIERS: dict[str, Any] = {
    "paid": {"priority": 2, "service_tier": "priority", "targets": {"ttft": "1s"}},
    "free": {"priority": 1, "service_tier": "default"},
}
Probe = Callable[[Rig], Any]


def loop(rig: Rig) -> Any:
    return rig.parts.ticker.loops["default"]


def front(rig: Rig) -> Any:
    return rig.parts.in_force._front


def caller(key: str | None) -> Probe:
    return lambda rig: front(rig).keyring.caller(None if key is None else f"Bearer {key}")


def guard(name: str) -> Probe:
    return lambda rig: (
        getattr(loop(rig).guard._config, name),
        getattr(loop(rig).guard._gates.config, name),
    )


def setting(name: str) -> Probe:
    return lambda rig: getattr(front(rig).settings, name)


def tier(name: str) -> Probe:
    """As queue and observer have it."""

    def seen(rig: Rig) -> Any:
        one = rig.batcher.queues["paid"].tier
        assert rig.parts.desk._observer.tiers["paid"].tier == one
        return getattr(one, name)

    return seen


def own_policies(rig: Rig) -> dict[str, tuple[str, dict[str, Any]]]:
    named = {one.tier.name: one.succession.policy for one in loop(rig).tiers}
    return {tier: (policy.name, dict(policy.parameters)) for tier, policy in named.items()}


def targets(name: str) -> Probe:
    return lambda rig: getattr(tier("targets")(rig), name)


def door(rig: Rig) -> str:
    try:
        front(rig).door.check(f"Bearer {TOKEN}", "127.0.0.1")
    except Forbidden:
        return "shut"
    return "open"


def who(rig: Rig) -> tuple[str, str]:
    known = caller(KEY)(rig)
    return known.client, known.tier


def logged(rig: Rig) -> list[tuple[str, str]]:
    told: Any = rig.parts.in_force._set_up_logs
    return list(told.told)


def limits(rig: Rig) -> Limits:
    found: Limits = loop(rig).limits
    return found


# Key: what a file says, where it says it, and what is seen of it then.
LIVE: dict[str, tuple[Any, Probe, Any]] = {
    "server.drain_timeout": ("7s", lambda rig: rig.parts.in_force.config.server.drain_timeout, 7.0),
    "server.keep_alive_after": ("7s", setting("keep_alive_after_s"), 7.0),
    "server.max_body": ("1KiB", setting("max_body_bytes"), 1024),
    "server.stream_buffer": ("1KiB", setting("stream_buffer_bytes"), 1024),
    "server.slow_reader_after": ("7s", setting("slow_reader_after_s"), 7.0),
    "server.expected_new_tokens": (7, setting("expected_new_tokens"), 7),
    "server.access_log": (True, setting("access_log"), True),
    "server.watch_config": (True, lambda rig: rig.parts.in_force.config.server.watch_config, True),
    "auth.keys.name": ([MINE | {"name": "ours"}], who, ("ours", "paid")),
    "auth.keys.tier": ([MINE | {"tier": "free"}], who, ("mine", "free")),
    "auth.keys.sha256": ([MINE], who, ("mine", "paid")),
    "auth.keys.env": (
        [{"name": "e", "tier": "paid", "env": "SECRET"}],
        lambda rig: caller("by-env")(rig).client,
        "e",
    ),
    "auth.default_tier": ("free", lambda rig: caller(None)(rig).tier, "free"),
    "auth.admin_token_sha256": ("f" * 64, door, "shut"),
    "auth.admin_token_env": ("SECRET", door, "shut"),
    "tiers.service_tier": ("flex", lambda rig: setting("tiers")(rig)["paid"].service_tier, "flex"),
    "tiers.targets.ttft": ("2s", targets("ttft_s"), 2.0),
    "tiers.targets.itl": ("2s", targets("itl_s"), 2.0),
    "tiers.targets.e2e": ("2s", targets("e2e_s"), 2.0),
    "tiers.targets.attainment": (0.5, targets("attainment"), 0.5),
    "tiers.min_share": (0.5, tier("min_share"), 0.5),
    "tiers.order": ("fcfs", tier("order"), "fcfs"),
    "tiers.late": ("drop", tier("late"), "drop"),
    "tiers.sheddable": (True, tier("sheddable"), True),
    "tiers.restart_unstreamed": (True, tier("restart_unstreamed"), True),
    "tiers.max_seats": (7, tier("max_seats"), 7),
    "tiers.max_queue_requests": (70, tier("max_queue_requests"), 70),
    "tiers.max_queue_tokens": (7000, tier("max_queue_tokens"), 7000),
    "tiers.max_queue_size": ("9MiB", tier("max_queue_bytes"), 9 * 2**20),
    "tiers.wait_timeout": ("7ms", tier("wait_timeout_s"), 0.007),
    "tiers.policy.type": ({"type": "aimd"}, own_policies, {"paid": ("aimd", {})}),
    "tiers.policy.parameters": (
        {"type": "aimd", "parameters": {"growth": 0.25}},
        own_policies,
        {"paid": ("aimd", {"growth": 0.25})},
    ),
    "tiers.start_within": (
        "7s",
        lambda rig: (
            tier("start_within_s")(rig),
            setting("tiers")(rig)["paid"].start_within_s,
        ),
        (7.0, 7.0),
    ),
    "tiers.finish_within": (
        "7s",
        lambda rig: (
            tier("finish_within_s")(rig),
            setting("tiers")(rig)["paid"].finish_within_s,
        ),
        (7.0, 7.0),
    ),
    "tiers.max_starvation": ("7s", tier("max_starvation_s"), 7.0),
    "limits.max_batch_size": (7, limits, Limits(7, 1024, 0.0)),
    "limits.max_batch_tokens": (700, limits, Limits(4, 700, 0.0)),
    "limits.wait_timeout": ("7ms", limits, Limits(4, 1024, 0.007)),
    "envelope.max_batch_size": (
        [2, 7],
        lambda rig: (
            loop(rig).guard.envelope.low.max_batch_size,
            loop(rig).guard.envelope.high.max_batch_size,
        ),
        (2, 7),
    ),
    "envelope.max_batch_tokens": (
        [70, 1700],
        lambda rig: (
            loop(rig).guard.envelope.low.max_batch_tokens,
            loop(rig).guard.envelope.high.max_batch_tokens,
        ),
        (70, 1700),
    ),
    "envelope.wait_timeout": (
        ["0", "7ms"],
        lambda rig: (
            loop(rig).guard.envelope.low.wait_timeout_s,
            loop(rig).guard.envelope.high.wait_timeout_s,
        ),
        (0.0, 0.007),
    ),
    "control.interval": ("200ms", lambda rig: rig.parts.ticker._interval_s, 0.2),
    "control.policy.type": ("aimd", lambda rig: loop(rig).policy.name, "aimd"),
    "control.policy.parameters": (
        {"type": "aimd", "parameters": {"growth": 0.25}},
        lambda rig: getattr(getattr(loop(rig).policy.policy, "_parameters", None), "growth", None),
        0.25,
    ),
    "control.mode": ("observe", lambda rig: loop(rig).mode, "observe"),
    "control.decide_timeout": ("7s", lambda rig: loop(rig)._asker._timeout_s(), 7.0),
    "control.shadows.type": (
        [{"type": "aimd"}],
        lambda rig: list(loop(rig).shadows.by_label),
        ["aimd"],
    ),
    "control.shadows.parameters": (
        [{"type": "aimd", "parameters": {"growth": 0.25}}],
        lambda rig: [dict(one.parameters) for one in loop(rig).shadows.by_label.values()],
        [{"growth": 0.25}],
    ),
    "control.hold": ("join_gain", lambda rig: rig.batcher._holder.rule, "join_gain"),
    "control.fallback": ("aimd", lambda rig: loop(rig).succession.fallback.name, "aimd"),
    "control.fast_window": ("4s", lambda rig: loop(rig)._source.windows.fast_s, 4.0),
    "control.slow_window": ("31s", lambda rig: loop(rig)._source.windows.slow_s, 31.0),
    "control.max_window": ("50s", lambda rig: loop(rig)._source.windows.at_most_s, 50.0),
    "control.min_samples": (
        7,
        lambda rig: (loop(rig)._source.windows.min_samples, loop(rig).guard._gates.min_samples),
        (7, 7),
    ),
    "control.history": (7, lambda rig: loop(rig).decisions.maxlen, 7),
    "control.guard.stale_ticks": (7, guard("stale_ticks"), (7, 7)),
    "control.guard.binding": (0.7, guard("binding"), (0.7, 0.7)),
    "control.guard.cooldown": ("7s", guard("cooldown"), (7.0, 7.0)),
    "control.guard.cooldown_steps": (7.0, guard("cooldown_steps"), (7.0, 7.0)),
    "control.guard.slew": (0.7, guard("slew"), (0.7, 0.7)),
    "control.guard.gpu_busy": (0.7, guard("gpu_busy"), (0.7, 0.7)),
    "control.guard.flat_gain": (0.7, guard("flat_gain"), (0.7, 0.7)),
    "control.guard.kv_high": (0.7, guard("kv_high"), (0.7, 0.7)),
    "control.guard.oom_keep": (0.7, guard("oom_keep"), (0.7, 0.7)),
    "control.guard.oom_probe_after": ("7s", guard("oom_probe_after"), (7.0, 7.0)),
    "control.guard.reversals": (4, guard("reversals"), (4, 4)),
    "control.guard.reversal_moves": (
        9,
        lambda rig: loop(rig).guard._memory.signs["max_batch_size"].maxlen,
        9,
    ),
    "control.guard.least_batch_size": (7, guard("least_batch_size"), (7, 7)),
    "control.guard.least_batch_tokens": (7, guard("least_batch_tokens"), (7, 7)),
    "control.guard.least_wait": ("7ms", guard("least_wait"), (0.007, 0.007)),
    "log.level": ("debug", logged, [("debug", "auto")]),
    "log.format": ("json", logged, [("info", "json")]),
}


class Logs:
    """Keeps what it was told, and sets up nothing."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def __call__(self, level: str, style: str) -> None:
        self.told.append((level, style))


def config(**sections: Any) -> Config:
    base: dict[str, Any] = {
        "auth": {"default_tier": "paid"},
        "tiers": TIERS,
        "limits": {"max_batch_size": 4, "max_batch_tokens": 1024, "wait_timeout": "0s"},
        "control": {"policy": {"type": "static"}, "hold": "fixed"},
        "executors": [SIMULATED],
    }
    return Config.model_validate(base | sections)


def a_rig(**sections: Any) -> Rig:
    rig = Rig(tiers=TIERS, **sections)
    rig.parts.in_force._environ = {"SECRET": "by-env"}
    rig.parts.in_force._set_up_logs = Logs()
    return rig


def put(rig: Rig, new: Config) -> None:
    rig.parts.in_force.apply(rig.parts.in_force.prepare(new))


def with_key(key: str, value: Any) -> Config:
    """The rig's configuration with one key changed."""
    section, *path = key.split(".")
    written = config().model_dump(mode="json")
    place = written[section]
    if section == "tiers":
        place = place["paid"]
    if key.startswith("auth.keys"):
        path = ["keys"]
    if key.startswith("control.shadows"):
        path = ["shadows"]
    if key == "control.policy.parameters" or key.startswith("tiers.policy"):
        path = ["policy"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return Config.model_validate(written)


@pytest.mark.parametrize("key", LIVE)
async def test_a_live_key_is_in_force_at_once(key: str) -> None:
    value, probe, expected = LIVE[key]
    rig = a_rig()
    await rig.ready()
    try:
        before = probe(rig)
    except Unauthorized:
        before = None
    put(rig, with_key(key, value))
    assert before != expected
    assert probe(rig) == expected
    assert rig.parts.in_force.config == with_key(key, value)


def test_every_key_either_needs_a_restart_or_is_tried_here() -> None:
    leaves = {path for path in all_paths(Config) if len(path) > 1 and not _is_section(path)}
    assert {".".join(path) for path in leaves if not _restarts(path)} == set(LIVE)


def _is_section(path: tuple[str, ...]) -> bool:
    return bool(sections_at(path)) and sections_at(path) != sections_at(path[:-1])


def _restarts(path: tuple[str, ...]) -> bool:
    full = ("tiers", "paid", *path[1:]) if path[0] == "tiers" else path
    return Change(full, 1, 2).restart in RESTART.values()


class TestLimits:
    async def test_static_holds_the_new_ones_and_after_a_pin_too(self) -> None:
        rig = a_rig()
        await rig.ready()
        rig.parts.ticker.tick()
        rig.desk.pin({"max_batch_size": 2}, 60.0)
        changed = {"max_batch_size": 9, "max_batch_tokens": 512, "wait_timeout": "1ms"}
        put(rig, config(limits=changed))
        rig.parts.ticker.tick()
        assert limits(rig).max_batch_size == 2
        rig.desk.release()
        assert limits(rig) == Limits(9, 512, 0.001)
        rig.parts.ticker.tick()
        assert limits(rig) == Limits(9, 512, 0.001)

    async def test_another_policy_goes_on_from_those_in_force(self) -> None:
        threshold = {"control": {"policy": {"type": "threshold"}, "hold": "fixed"}}
        rig = a_rig(**threshold)
        await rig.ready()
        policy = loop(rig).policy
        new = config(limits={"max_batch_size": 9}, **threshold)
        assert notes(rig.parts.in_force.config, new, {"default": "threshold"}) == [
            "limits: policy 'threshold' goes on from the limits in force; these are where it "
            "begins at the next start"
        ]
        put(rig, new)
        assert limits(rig) == Limits(4, 1024, 0.0)
        assert loop(rig).policy is policy

    async def test_an_envelope_that_is_narrower_moves_them_at_once(self) -> None:
        threshold = {"control": {"policy": {"type": "threshold"}, "hold": "fixed"}}
        rig = a_rig(**threshold)
        await rig.ready()
        for name in "abcd":
            await rig.offer(name, Heard())
        new = config(envelope={"max_batch_size": [1, 3]}, limits={"max_batch_size": 3}, **threshold)
        put(rig, new)
        assert limits(rig).max_batch_size == 3
        assert rig.wire.works[-1].epoch == loop(rig).epoch == 1
        assert rig.wire.released == []

    async def test_static_in_place_of_another_policy_holds_what_is_configured(self) -> None:
        rig = a_rig(control={"policy": {"type": "threshold"}, "hold": "fixed"})
        await rig.ready()
        loop(rig).begin_again(Limits(11, 900, 0.01))
        put(rig, config())
        assert (loop(rig).policy.name, limits(rig)) == ("static", Limits(4, 1024, 0.0))

    async def test_a_policy_that_was_put_in_force_by_hand_stays(self) -> None:
        rig = a_rig()
        await rig.ready()

        class Other:
            def decide(self, signals: Signals, limits: Limits) -> Proposal:
                return Proposal(limits, "as it is")

        by_hand = replace(loop(rig).policy, name="other", policy=Other())
        loop(rig).switch(by_hand)
        put(rig, config(limits={"max_batch_size": 9}))
        assert loop(rig).policy is by_hand
        assert limits(rig).max_batch_size == 4

    async def test_behind_a_policy_put_in_force_by_hand_they_come_with_the_rollback(self) -> None:
        rig = a_rig()
        await rig.ready()
        for _ in range(GOOD_ANSWERS):
            rig.parts.ticker.tick()
        await rig.desk.switch_policy("aimd", {})
        old, new = rig.parts.in_force.config, config(limits={"max_batch_size": 9})
        put(rig, new)
        assert limits(rig).max_batch_size == 4
        assert notes(old, new, rig.parts.in_force.policies()) == [
            "limits: policy 'aimd', put in force by hand in group 'default', goes on from the "
            "limits in force; these come with a rollback to 'static' or at the next start"
        ]
        rig.desk.roll_back_policy()
        assert limits(rig).max_batch_size == 9
        rig.parts.ticker.tick()
        assert (loop(rig).policy.name, limits(rig).max_batch_size) == ("static", 9)
        assert notes(old, new, rig.parts.in_force.policies()) == []

    async def test_a_rollback_to_static_leaves_a_pin_and_brings_its_limits_afterwards(self) -> None:
        rig = a_rig()
        await rig.ready()
        for _ in range(GOOD_ANSWERS):
            rig.parts.ticker.tick()
        await rig.desk.switch_policy("aimd", {})
        rig.desk.pin({"max_batch_size": 2}, 60.0)
        put(rig, config(limits={"max_batch_size": 9}))
        rig.desk.roll_back_policy()
        assert limits(rig).max_batch_size == 2
        rig.desk.release()
        assert limits(rig).max_batch_size == 9

    async def test_a_rollback_applies_nothing_where_the_loop_only_observes(self) -> None:
        observe = {"control": {"policy": {"type": "static"}, "mode": "observe"}}
        rig = a_rig(**observe)
        await rig.ready()
        for _ in range(GOOD_ANSWERS):
            rig.parts.ticker.tick()
        await rig.desk.switch_policy("aimd", {})
        put(rig, config(limits={"max_batch_size": 9}, **observe))
        rig.desk.roll_back_policy()
        assert limits(rig).max_batch_size == 4


class TestAfterTooManyWereAbandoned:
    """Only Headway's own are taken, wherever they are named."""

    MINE = f"{__name__}:Mine"

    @pytest.mark.parametrize(
        ("key", "sections"),
        [
            ("control.policy", {"control": {"policy": {"type": MINE}}}),
            (
                "control.fallback",
                {"control": {"policy": {"type": "static"}, "fallback": MINE}},
            ),
            (
                "control.shadows.1",
                {
                    "control": {
                        "policy": {"type": "static"},
                        "shadows": [{"type": "aimd"}, {"type": MINE}],
                    }
                },
            ),
            (
                "tiers.free.policy",
                {
                    "tiers": {
                        "paid": TIERS["paid"],
                        "free": TIERS["free"] | {"policy": {"type": MINE}},
                    }
                },
            ),
        ],
    )
    async def test_a_reload_that_names_another_is_refused_with_its_key(
        self, key: str, sections: dict[str, Any]
    ) -> None:
        rig = a_rig()
        await rig.ready()
        blocked = [Blocked() for _ in range(MAX_ABANDONED)]
        for policy in blocked:
            loop(rig).switch(Named("mine:Blocked", policy))
            rig.parts.ticker.tick()
            rig.clock.now += 1.0
            rig.parts.ticker.tick()
        with pytest.raises(ConfigError, match=f"^{key}: 4 policies were abandoned"):
            rig.parts.in_force.prepare(config(**sections))
        for policy in blocked:
            policy.let_go()
        rig.parts.in_force.prepare(config(**sections))


class Mine:
    """A policy of somebody's own."""

    @dataclass(frozen=True)
    class Parameters:
        pass

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, "as it is")


class TestTiersOfTheirOwn:
    def own(self, free: str | None) -> dict[str, Any]:
        policy = None if free is None else {"type": free}
        return {"paid": TIERS["paid"], "free": TIERS["free"] | {"policy": policy}}

    async def test_a_tier_that_had_one_has_the_common_limits_again(self) -> None:
        rig = a_rig()
        await rig.ready()
        put(rig, config(tiers=self.own("static")))
        loop(rig).tiers[0].succession.switch(Named("static", Two()))
        rig.parts.ticker.tick()
        assert limits(rig).tiers == {"free": TierLimits(2, 0.0)}
        put(rig, config(tiers=self.own(None)))
        assert (limits(rig), loop(rig).tiers) == (Limits(4, 1024, 0.0), ())

    async def test_one_that_stays_goes_on_within_the_new_bounds_of_its_tier(self) -> None:
        rig = a_rig()
        await rig.ready()
        put(rig, config(tiers=self.own("static")))
        control = loop(rig).tiers[0]
        tiers = self.own("static")
        put(rig, config(tiers=tiers | {"free": tiers["free"] | {"max_seats": 3}}))
        assert loop(rig).tiers[0] is control
        assert control.tier.max_seats == 3
        assert rig.parts.desk._observer.executors["main"].watched[0].max_seats == 3

    async def test_a_pin_holds_and_what_it_held_for_the_tier_goes_with_the_policy(self) -> None:
        rig = a_rig()
        await rig.ready()
        put(rig, config(tiers=self.own("static")))
        loop(rig).tiers[0].succession.switch(Named("static", Two()))
        rig.parts.ticker.tick()
        rig.desk.pin({"max_batch_size": 3}, 60.0)
        put(rig, config(tiers=self.own(None)))
        rig.parts.ticker.tick()
        assert limits(rig) == Limits(3, 1024, 0.0)
        rig.desk.release()
        assert limits(rig) == Limits(4, 1024, 0.0)


class Two:
    """Wants two seats."""

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(replace(limits, max_batch_size=2), "two")


class TestWhatStays:
    async def test_what_was_learnt_decided_and_pinned(self) -> None:
        rig = a_rig()
        await rig.ready()
        sample = StepSample(0.02, 2, 2, 100, 0, 0)
        observer = rig.parts.desk._observer
        observer.warmed_up("main", [sample] * 10)
        loop(rig).guard.out_of_memory(1000, rig.clock.now)
        rig.desk.pin({"max_batch_size": 3}, 60.0)
        before = (
            observer.executors["main"].model.estimate(),
            loop(rig).guard.ceiling(rig.clock.now),
            loop(rig).pin,
            list(loop(rig).decisions),
            loop(rig).epoch,
        )
        new = config(
            tiers={"paid": TIERS["paid"] | {"targets": {"ttft": "3s"}}, "free": TIERS["free"]},
            control={
                "policy": {"type": "static"},
                "hold": "join_gain",
                "guard": {"slew": 0.5},
                "history": 500,
            },
        )
        put(rig, new)
        assert before == (
            observer.executors["main"].model.estimate(),
            loop(rig).guard.ceiling(rig.clock.now),
            loop(rig).pin,
            list(loop(rig).decisions),
            loop(rig).epoch,
        )

    async def test_who_waits_has_a_seat_within_the_reload_where_there_is_one_now(self) -> None:
        rig = a_rig()
        await rig.ready()
        for name in "abcdef":
            await rig.offer(name, Heard())
        assert rig.wire.begun == list("abcd")
        put(rig, config(limits={"max_batch_size": 6}))
        assert rig.wire.begun == list("abcdef")


class TestWhatCannotBe:
    async def test_a_policy_of_which_too_many_were_abandoned_changes_nothing(self) -> None:
        rig = a_rig()
        refused = "4 policies were abandoned"
        loop(rig)._asker.refusal = lambda policy: refused if policy.name == "aimd" else None
        aimd = {"policy": {"type": "aimd"}, "hold": "fixed"}
        with pytest.raises(ConfigError, match=r"control\.policy: 4 policies were abandoned"):
            rig.parts.in_force.prepare(config(control=aimd))
        assert loop(rig).policy.name == "static"

    async def test_a_key_whose_variable_is_not_set_changes_nothing(self) -> None:
        rig = a_rig()
        before = rig.parts.in_force.config
        keys = [{"name": "x", "tier": "paid", "env": "NO_SUCH"}]
        with pytest.raises(ConfigError, match=r"auth.keys.0.env: the environment variable NO_SUCH"):
            rig.parts.in_force.prepare(config(auth={"keys": keys}, limits={"max_batch_size": 9}))
        assert rig.parts.in_force.config is before
        assert limits(rig).max_batch_size == 4
