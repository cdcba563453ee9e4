from __future__ import annotations

from typing import Any

import pytest

from controller.config import Config
from controller.config_checks import cross_check, is_loopback
from controller.config_tree import dotted

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
KEY = {"name": "acme", "tier": "paid", "sha256": DIGEST}


def told(written: dict[str, Any]) -> list[str]:
    """What the cross-checks say about the defaults with these sections instead."""
    config = Config.model_validate(written)
    return [f"{dotted(problem.path)}: {problem.message}" for problem in cross_check(config)]


def tier(name: str, **changed: object) -> dict[str, Any]:
    """The default tiers with one changed."""
    tiers = Config().model_dump()["tiers"]
    tiers[name] |= changed
    return {"tiers": tiers}


def test_the_defaults_contradict_nothing() -> None:
    assert told({}) == []


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (
            {"limits": {"max_batch_size": 65}},
            "limits.max_batch_size: 65 is outside the envelope [1, 64]",
        ),
        (
            {"limits": {"wait_timeout": "60ms"}},
            "limits.wait_timeout: 60ms is outside the envelope [0, 50ms]",
        ),
        (
            {
                "limits": {"max_batch_size": 8, "max_batch_tokens": 4},
                "envelope": {"max_batch_tokens": [1, 2048]},
            },
            "limits.max_batch_tokens: 4 tokens in a step are fewer than max_batch_size 8: "
            "each running sequence needs one",
        ),
        (
            {"envelope": {"max_batch_tokens": [8, 32]}, "limits": {"max_batch_tokens": 32}},
            "envelope.max_batch_tokens: high 32 is below the high of max_batch_size, 64, which "
            "could never be reached",
        ),
        (
            {"envelope": {"max_batch_size": [1, 96]}},
            "envelope.max_batch_size: high 96 is more than max_seqs 64 of executor 'main'",
        ),
        (
            {"envelope": {"max_batch_tokens": [64, 4096]}},
            "envelope.max_batch_tokens: high 4096 is more than max_step_tokens 2048 of executor "
            "'main'",
        ),
        (
            {"executors": [{"kind": "continuous", "num_blocks": 40}]},
            "executors.0.num_blocks: 40 blocks of KV hold fewer sequences than the high of "
            "max_batch_size, 64: each needs at least one",
        ),
        (
            {"executors": [{"kind": "continuous", "num_blocks": 400, "kv_memory": "1GiB"}]},
            "executors.0.kv_memory: is given beside num_blocks: one of them says how large KV is",
        ),
        (
            {"executors": [{"kind": "continuous", "kv_fraction": 0.5, "kv_memory": "1GiB"}]},
            "executors.0.kv_fraction: is given beside kv_memory: one of them says how large KV is",
        ),
        (
            {"executors": [{"kind": "simulated", "kv_tokens": 40}]},
            "executors.0.kv_tokens: 40 tokens of KV hold fewer sequences than the high of "
            "max_batch_size, 64: each needs at least one",
        ),
        (
            {"executors": [{"kind": "continuous"}, {"kind": "continuous"}]},
            "executors.1.name: name main is taken by executors.0",
        ),
        (
            {"executors": [{"kind": "continuous"}, {"kind": "simulated", "name": "b"}]},
            "executors.1.group: simulated cannot share the limits of group 'default', which is "
            "continuous: give it a group of its own",
        ),
        (
            tier("paid", max_queue_requests=63),
            "tiers.paid.max_queue_requests: 63 waiting requests can never fill a batch of 64, "
            "the high of max_batch_size",
        ),
        (
            tier("paid", max_queue_tokens=2000),
            "tiers.paid.max_queue_tokens: 2000 waiting tokens can never fill a step of 2048, "
            "the high of max_batch_tokens",
        ),
        (
            tier("paid", max_queue_size=2**20),
            "tiers.paid.max_queue_size: 1MiB is less than server.max_body, 8MiB: the longest "
            "body could never wait",
        ),
        (
            tier("paid", max_seats=65),
            "tiers.paid.max_seats: 65 is more than the high of max_batch_size, 64",
        ),
        (
            tier("paid", wait_timeout=0.2),
            "tiers.paid.wait_timeout: 200ms is outside the envelope [0, 50ms]",
        ),
        (
            tier("free", finish_within=30.0),
            "tiers.free.finish_within: 30s is shorter than start_within, 1m",
        ),
        (
            tier("paid", targets={"attainment": 0.9}),
            "tiers.paid.targets: names no metric: give ttft, itl or e2e, or leave targets out",
        ),
        (
            tier("paid", min_share=0.9),
            "tiers: min_share sums to 1.05 (paid 0.9 + free 0.1 + offline 0.05), at most 1 can "
            "be given",
        ),
        (tier("free", priority=20), "tiers.free.priority: priority 20 is taken by tiers.paid"),
        (
            tier("free", service_tier="flex"),
            "tiers.offline.service_tier: service_tier flex is taken by tiers.free",
        ),
        (
            {"auth": {"default_tier": "gold"}},
            "auth.default_tier: there is no tier 'gold'; there are paid, free, offline",
        ),
        (
            {"auth": {"keys": [KEY | {"tier": "gold"}]}},
            "auth.keys.0.tier: there is no tier 'gold'; there are paid, free, offline",
        ),
        (
            {"auth": {"keys": [KEY | {"env": "ACME_KEY"}]}},
            "auth.keys.0: key 'acme' needs one of sha256 and env, both is given",
        ),
        (
            {"auth": {"keys": [{"name": "acme", "tier": "paid"}]}},
            "auth.keys.0: key 'acme' needs one of sha256 and env, neither is given",
        ),
        (
            {"auth": {"keys": [KEY, KEY | {"sha256": DIGEST[::-1]}]}},
            "auth.keys.1.name: name acme is taken by auth.keys.0",
        ),
        (
            {"server": {"host": "0.0.0.0"}},
            "server.host: 0.0.0.0 is reachable from outside and auth.keys is empty: bind "
            "127.0.0.1, or name keys",
        ),
        (
            {"control": {"slow_window": "2s"}},
            "control.slow_window: 2s is shorter than fast_window, 3s",
        ),
        (
            {"control": {"guard": {"reversals": 6}}},
            "control.guard.reversals: 6 changes of direction cannot be exceeded in 6 moves",
        ),
        (
            {"control": {"policy": {"type": "amid"}}},
            "control.policy.type: unknown policy 'amid'; did you mean aimd? (your own: "
            "module:Class)",
        ),
        (
            {"control": {"policy": {"type": "threshold", "parameters": {"queue_low": 2}}}},
            "control.policy.parameters: queue_low 2 should be below queue_high 1",
        ),
        (
            {"control": {"fallback": "statics"}},
            "control.fallback: unknown policy 'statics'; did you mean static? (your own: "
            "module:Class)",
        ),
        (
            {"executors": []},
            "executors: is empty: name at least one, or leave it out for the default",
        ),
    ],
)
def test_a_contradiction_is_told_with_both_sides(written: dict[str, Any], message: str) -> None:
    assert told(written) == [message]


def test_the_same_key_twice_is_told() -> None:
    keys = [KEY, KEY | {"name": "other"}]
    assert told({"auth": {"keys": keys}}) == [
        f"auth.keys.1.sha256: sha256 {DIGEST} is taken by auth.keys.0"
    ]


def test_any_address_may_be_bound_once_there_are_keys() -> None:
    assert told({"server": {"host": "0.0.0.0"}, "auth": {"keys": [KEY]}}) == []


@pytest.mark.parametrize(
    ("host", "only_here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("::", False),
        ("10.0.0.1", False),
        ("example.org", False),
    ],
)
def test_loopback_is_told_from_what_others_reach(host: str, only_here: bool) -> None:
    assert is_loopback(host) is only_here


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match=r"should be \[low, high\], and 9 is above 3"):
        Config.model_validate({"envelope": {"max_batch_size": [9, 3]}})


def test_seats_of_all_tiers_together_that_never_fill_a_batch_are_refused() -> None:
    tiers = Config().model_dump()["tiers"]
    for name, seats in (("paid", 16), ("free", 16), ("offline", 8)):
        tiers[name] |= {"max_seats": seats}
    assert told({"tiers": tiers}) == [
        "envelope.max_batch_size: high 64 can never be reached: max_seats sum to 40 "
        "(paid 16 + free 16 + offline 8)"
    ]
    # One tier without a cap can fill it alone.
    tiers["offline"] |= {"max_seats": None}
    assert told({"tiers": tiers}) == []
