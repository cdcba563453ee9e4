from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policies.contract import Cause, Limits, Signals
from policies.registry import build, problems
from tests.policies.signals import LIMITS, itl, seen

MONDAY = 1_736_121_600.0  # 2025-01-06 00:00 UTC
HOUR, DAY = 3600.0, 86_400.0
NIGHT = {
    "name": "night",
    "days": ["mon", "fri"],
    "from": "22:00",
    "to": "06:00",
    "limits": {"max_batch_size": 48, "wait_timeout_s": 0.04},
}


def at(wall_s: float | None, signals: Signals | None = None) -> Signals:
    return replace(signals or seen(), wall_s=wall_s)


def schedule(*entries: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"inner": {"type": "static"}, "entries": list(entries), **others}


def held(parameters: dict[str, Any], wall_s: float | None) -> int:
    """B at an instant, 16 being what is in force and what the inner policy wants."""
    return build("schedule", parameters).decide(at(wall_s), LIMITS).limits.max_batch_size


def test_an_entry_holds_its_limits_and_says_so() -> None:
    proposal = build("schedule", schedule(NIGHT)).decide(at(MONDAY + 23 * HOUR), LIMITS)
    assert proposal.limits == replace(LIMITS, max_batch_size=48, wait_timeout_s=0.04)
    assert proposal.reason == (
        "'night' holds max_batch_size 48, wait_timeout_s 0.04; as configured"
    )


@pytest.mark.parametrize(
    ("hours", "size"),
    [
        (21.99, 16),
        (22, 48),
        (24 + 5.99, 48),  # Tuesday morning: the night that began on Monday
        (24 + 6, 16),
        (24 + 23, 16),  # Tuesday night is not named
        (1, 16),  # nor Sunday's
        (5 * 24 + 3, 48),  # Saturday morning: Friday's
        (6 * 24 + 3, 16),
    ],
)
def test_an_entry_begins_on_its_days_and_may_pass_midnight(hours: float, size: int) -> None:
    assert held(schedule(NIGHT), MONDAY + hours * HOUR) == size


def test_without_a_time_of_day_the_inner_policy_decides() -> None:
    assert held(schedule(NIGHT), None) == 16


def test_hours_are_those_of_the_time_zone_and_its_summer_time() -> None:
    berlin = schedule(NIGHT, timezone="Europe/Berlin")
    assert [held(berlin, MONDAY + h * HOUR) for h in (20.9, 21)] == [16, 48]
    july = MONDAY + 26 * 7 * DAY
    assert [held(berlin, july + h * HOUR) for h in (19.9, 20)] == [16, 48]


def test_the_first_entry_that_applies_counts_and_a_whole_day_is_what_stands_for_itself() -> None:
    weekend = {"name": "weekend", "days": ["sat"], "limits": {"max_batch_size": 64}}
    saturday = MONDAY + 5 * DAY + 3 * HOUR
    assert held(schedule(NIGHT, weekend), saturday) == 48
    assert held(schedule(weekend, NIGHT), saturday) == 64
    assert held(schedule(weekend), saturday + DAY) == 16


def test_what_an_entry_leaves_out_is_the_inner_policys() -> None:
    waits = {"name": "waits", "limits": {"wait_timeout_s": 0.04}}
    policy = build("schedule", {"entries": [waits]})
    room = seen(itl(0.05, state="room"))
    proposal = policy.decide(at(MONDAY, room), LIMITS)
    assert proposal.limits == replace(LIMITS, max_batch_size=17, wait_timeout_s=0.04)


def test_tokens_are_never_below_the_size_that_is_held() -> None:
    big = {"name": "big", "limits": {"max_batch_size": 2000}}
    limits = build("schedule", schedule(big)).decide(at(MONDAY), LIMITS).limits
    assert limits.max_batch_tokens == 2000


def evening() -> tuple[Any, Limits]:
    """A schedule around `aimd` whose night is in force."""
    policy = build("schedule", {"entries": [NIGHT]})
    night = policy.decide(at(MONDAY + 23 * HOUR), LIMITS).limits
    return policy, policy.decide(at(MONDAY + 23 * HOUR), night).limits


def test_when_it_ends_limits_go_back_to_what_they_were_until_they_are_there() -> None:
    policy, night = evening()
    assert (night.max_batch_size, night.wait_timeout_s) == (48, 0.04)
    morning = at(MONDAY + 30 * HOUR)
    assert policy.decide(morning, night).limits == LIMITS
    # The guard let a part of it through: the rest is proposed again.
    part = replace(LIMITS, wait_timeout_s=0.02)
    assert policy.decide(morning, part).limits == LIMITS
    policy.decide(morning, LIMITS)
    # They were there: what somebody moves now stays moved.
    assert policy.decide(morning, part).limits == part


def test_what_the_inner_policy_shrinks_meanwhile_shrinks_from_what_is_in_force() -> None:
    low = {"name": "low", "to": "06:00", "limits": {"max_batch_size": 4}}
    policy = build("schedule", {"entries": [low]})
    policy.decide(at(MONDAY), LIMITS)
    breach = seen(itl(0.16, state="breach", misses=12, cause=Cause.DECODE))
    in_force = replace(LIMITS, max_batch_size=4)
    # `aimd` was given 16 and says 14; 4 are in force, and a breach must not raise them.
    assert policy.decide(at(MONDAY + 7 * HOUR, breach), in_force).limits.max_batch_size == 4
    assert policy.decide(at(MONDAY + 7 * HOUR), in_force).limits.max_batch_size == 4


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (
            {"inner": {"type": "amid"}},
            [
                (
                    ("inner", "type"),
                    "unknown policy 'amid'; did you mean aimd? (your own: module:Class)",
                )
            ],
        ),
        (
            {"inner": {"type": "aimd", "parameters": {"backoff": 2}}},
            [
                (
                    ("inner", "parameters", "backoff"),
                    "should be at least 0.1 and at most 0.99; given 2",
                )
            ],
        ),
        (
            {"inner": "aimd"},
            [(("inner",), "should be a mapping with type, parameters; given 'aimd'")],
        ),
        ({"entries": {}}, [(("entries",), "should be a list; given {}")]),
        (
            {"entries": [NIGHT, {**NIGHT, "name": "b", "days": ["Monday"]}]},
            [
                (
                    ("entries", 1, "days", 0),
                    "should be one of mon, tue, wed, thu, fri, sat, sun; given 'Monday'",
                )
            ],
        ),
        (
            # What YAML makes of 22:00 without quotes.
            {"entries": [{**NIGHT, "from": 1320}]},
            [(("entries", 0, "from"), "should be a text, in quotes; given 1320")],
        ),
        (
            {"entries": [{**NIGHT, "from": "25:00", "to": "6 am"}]},
            [
                (
                    ("entries", 0, "from"),
                    "should be a time of day in quotes, such as \"22:00\"; given '25:00'",
                ),
                (
                    ("entries", 0, "to"),
                    "should be a time of day in quotes, such as \"22:00\"; given '6 am'",
                ),
            ],
        ),
        (
            {"entries": [{**NIGHT, "to": "22:00"}]},
            [
                (
                    ("entries", 0, "to"),
                    "22:00 is when it begins: write 00:00 to 24:00 for a whole day",
                )
            ],
        ),
        (
            {"entries": [{**NIGHT, "limits": {}}]},
            [
                (
                    ("entries", 0, "limits"),
                    "should name one of max_batch_size, max_batch_tokens, wait_timeout_s",
                )
            ],
        ),
        (
            {"entries": [{**NIGHT, "limits": {"max_batch_size": 0}}]},
            [(("entries", 0, "limits", "max_batch_size"), "should be at least 1; given 0")],
        ),
        (
            {"entries": [{"name": "x", "limit": {}}]},
            [
                (("entries", 0, "limit"), "unknown parameter; did you mean limits?"),
                (("entries", 0, "limits"), "is required"),
            ],
        ),
        (
            {"entries": [NIGHT, NIGHT]},
            [(("entries", 1, "name"), "'night' stands there already")],
        ),
    ],
)
def test_what_is_wrong_is_told_by_its_path(
    given: dict[str, Any], wrong: list[tuple[tuple[str | int, ...], str]]
) -> None:
    assert problems("schedule", given) == wrong


def test_a_time_zone_that_does_not_exist_is_told() -> None:
    ((path, message),) = problems("schedule", {"timezone": "Europe/Bärlin"})
    assert path == ("timezone",)
    assert message.startswith("'Europe/Bärlin' is no time zone known here: ")
