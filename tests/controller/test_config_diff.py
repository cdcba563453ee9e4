from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.config import Config
from controller.config_diff import ABSENT, RESTART, Change, changes
from controller.config_load import Source
from controller.errors import ConfigError

DIGEST, OTHER = "a" * 64, "b" * 64
SIMULATED = {"kind": "simulated"}


def config(**sections: Any) -> Config:
    return Config.model_validate({"executors": [SIMULATED], **sections})


def found(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [str(change) for change in changes(config(**old), config(**new))]


def test_nothing_differs_between_equals() -> None:
    assert found({}, {"limits": {"max_batch_size": 16}}) == []


def test_each_key_is_told_as_a_file_would_have_it() -> None:
    old = {"control": {"interval": "250ms"}, "server": {"max_body": "8MiB"}}
    new = {
        "control": {"interval": "1s", "policy": {"parameters": {"step": 2}}},
        "server": {"max_body": "64KiB", "access_log": True},
        "envelope": {"max_batch_size": [2, 64]},
    }
    assert found(old, new) == [
        "server.max_body: 8MiB -> 64KiB",
        "server.access_log: false -> true",
        "envelope.max_batch_size: [1, 64] -> [2, 64]",
        "control.interval: 250ms -> 1s",
        "control.policy.parameters.step: (none) -> 2",
    ]


def test_keys_go_by_their_names_and_their_hashes_are_not_shown() -> None:
    mine = {"name": "mine", "tier": "paid", "sha256": DIGEST}
    yours = {"name": "yours", "tier": "free", "env": "YOURS"}
    both = changes(
        config(auth={"keys": [mine, yours]}),
        config(auth={"keys": [{**yours, "tier": "paid"}, {**mine, "sha256": OTHER}]}),
    )
    assert [str(change) for change in both] == [
        "auth.keys.mine.sha256: (not shown) -> (not shown)",
        "auth.keys.yours.tier: free -> paid",
    ]
    (added,) = changes(config(auth={"keys": [yours]}), config(auth={"keys": [yours, mine]}))
    assert added.view() == {
        "key": "auth.keys.mine",
        "new": {"tier": "paid", "sha256": "(not shown)", "env": None},
    }
    assert added.old is ABSENT
    told = [*map(str, both), str(added), *map(repr, both), repr(added)]
    assert not any(DIGEST in text or OTHER in text for text in told)


@pytest.mark.parametrize(
    ("path", "restart"),
    [
        (("server", "port"), True),
        (("server", "max_body"), False),
        (("tiers", "paid"), True),
        (("tiers", "paid", "priority"), True),
        (("tiers", "paid", "targets"), False),
        (("tiers", "paid", "targets", "ttft"), False),
        (("executors", 0, "restart", "first_delay"), True),
        (("executors", 1), True),
        (("record", "path"), True),
        (("control", "state_file"), True),
        (("control", "policy", "type"), False),
    ],
)
def test_what_is_taken_at_the_start_only_is_known(path: tuple[Any, ...], restart: bool) -> None:
    why = Change(path, 1, 2).restart
    assert (why in RESTART.values()) == restart == (why is not None)


def test_each_key_is_found_where_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "auth:\n  keys:\n    - {name: a, tier: paid, env: A}\n    - name: b\n      tier: free\n"
        "      env: B\nlimits: {max_batch_size: 4}\n"
    )
    loaded = Source(file, {"HEADWAY__LOG__LEVEL": "debug"}, {"server.port": "1"}).read()
    places: dict[tuple[str | int, ...], str] = {
        ("auth", "keys", "b", "tier"): f"{file}:5",
        ("auth", "keys", 1, "tier"): f"{file}:5",
        ("auth", "keys", "b", "sha256"): f"{file}:4",
        ("limits", "max_batch_size"): f"{file}:7",
        ("log", "level"): "environment HEADWAY__LOG__LEVEL",
        ("server", "port"): "flag server.port",
        ("record", "path"): str(file),
    }
    assert {path: loaded.at(path) for path in places} == places


def test_the_content_of_a_file_has_a_digest_and_a_file_that_is_gone_has_none(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("{}")
    source = Source(file, {})
    before = source.digest()
    file.write_text("{} ")
    assert source.digest() != before
    file.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        source.digest()
