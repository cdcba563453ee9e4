from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from pydantic import ValidationError

from controller.config import Config, ServerConfig
from controller.config_executors import ContinuousExecutor, PaddedExecutor, SimulatedExecutor
from controller.config_keys import schema
from controller.config_load import load
from controller.config_reference import markdown
from controller.tiers import Targets, Tier
from executor.contract import ContinuousSettings, PaddedSettings, SimulatedSettings

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def test_default_yaml_says_what_the_code_does_without_a_file() -> None:
    assert load(ROOT / "configs/default.yaml", env={}) == Config()


def test_default_yaml_names_every_key() -> None:
    written = yaml.safe_load((ROOT / "configs/default.yaml").read_text())
    known = json.loads(Config().model_dump_json())
    assert _paths(written) == _paths(known)


def test_default_yaml_gives_a_reason_for_every_key_at_its_first_place() -> None:
    lines = (ROOT / "configs/default.yaml").read_text().splitlines()
    seen: set[str] = set()
    for line in lines:
        key, colon, value = line.split("#")[0].partition(":")
        name = key.strip().removeprefix("- ")
        if colon and value.strip() and name not in seen:
            seen.add(name)
            assert " # " in line, f"no reason: {line}"
    assert len(seen) > 70


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_that_ships_is_right_and_names_its_schema(path: Path) -> None:
    load(path, env={})
    first = path.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=./headway.schema.json"


def test_the_schema_that_ships_is_current() -> None:
    assert json.loads((ROOT / "configs/headway.schema.json").read_text()) == schema()


def test_the_reference_that_ships_is_current() -> None:
    assert (ROOT / "docs/configuration.md").read_text() == markdown()


def test_the_schema_shows_defaults_with_their_units() -> None:
    limits = schema()["$defs"]["LimitsConfig"]["properties"]
    assert limits["wait_timeout"]["default"] == "5ms"
    assert schema()["$defs"]["ServerConfig"]["properties"]["max_body"]["default"] == "8MiB"


def test_every_key_is_described() -> None:
    for name, defined in schema()["$defs"].items():
        for key, described in defined["properties"].items():
            assert described.get("description"), f"{name}.{key}"


@pytest.mark.parametrize(
    ("executor", "settings"),
    [
        (ContinuousExecutor(kind="continuous"), ContinuousSettings),
        (PaddedExecutor(kind="padded", leave="together"), PaddedSettings),
        (SimulatedExecutor(kind="simulated", a=0.02, utilization="model"), SimulatedSettings),
    ],
)
def test_an_executors_settings_are_exactly_those_of_its_child(
    executor: ContinuousExecutor | PaddedExecutor | SimulatedExecutor,
    settings: type[msgspec.Struct],
) -> None:
    plain = executor.settings()
    assert sorted(plain) == sorted(settings.__struct_fields__)
    assert msgspec.to_builtins(msgspec.convert(plain, settings)) == msgspec.to_builtins(plain)


def test_an_executors_defaults_are_those_of_its_child() -> None:
    simulated = SimulatedExecutor(kind="simulated").settings()
    assert msgspec.convert(simulated, SimulatedSettings) == SimulatedSettings()
    continuous = ContinuousExecutor(kind="continuous", model="/models/tiny").settings()
    assert msgspec.convert(continuous, ContinuousSettings) == ContinuousSettings(
        model="/models/tiny", served_name="tiny"
    )
    padded = PaddedExecutor(kind="padded", model="/models/tiny").settings()
    assert msgspec.convert(padded, PaddedSettings) == PaddedSettings(
        model="/models/tiny", served_name="tiny"
    )


def test_a_model_is_served_under_the_name_of_its_folder_unless_one_is_given() -> None:
    folder = ContinuousExecutor(kind="continuous", model="/models/tiny/")
    named = ContinuousExecutor(kind="continuous", model="/models/tiny", served_name="mine")
    assert folder.settings()["served_name"] == "tiny"
    assert named.settings()["served_name"] == "mine"


def test_an_entry_stands_for_as_many_executors_as_it_says() -> None:
    config = Config.model_validate(
        {
            "executors": [
                {"kind": "continuous", "name": "gpu", "devices": ["cuda:0", "cuda:1"]},
                {"kind": "simulated", "name": "sim", "count": 2, "seed": 7},
                {"kind": "simulated", "name": "one"},
            ]
        }
    )
    made = config.executor_list()
    assert [one.name for one in made] == ["gpu-0", "gpu-1", "sim-0", "sim-1", "one"]
    assert [one.settings().get("device") for one in made[:2]] == ["cuda:0", "cuda:1"]
    # Each is what the child is told, and nothing of how many there are.
    assert all({"count", "devices"}.isdisjoint(one.settings()) for one in made)
    assert made[3].settings()["seed"] == 7
    assert made[4] is config.executors[2]


def test_what_a_group_leaves_out_is_what_all_have_in_common() -> None:
    config = Config.model_validate({"groups": {"default": {"policy": {"type": "aimd"}}}})
    assert config.policy_of("default").type == "aimd"
    assert config.limits_of("default") is config.limits
    assert config.envelope_of("default") is config.envelope
    assert config.policy_of("other") is config.control.policy


def test_tiers_reach_the_core_highest_priority_first_in_its_own_units() -> None:
    paid, free, offline = Config().tier_list()
    assert [tier.name for tier in (paid, free, offline)] == ["paid", "free", "offline"]
    assert free == Tier(
        name="free",
        priority=10,
        targets=Targets(ttft_s=5.0, itl_s=0.15, attainment=0.9),
        min_share=0.1,
        max_queue_bytes=64 * 2**20,
        start_within_s=60.0,
    )


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Config().server.port = 1


def test_code_gives_durations_in_seconds() -> None:
    assert ServerConfig(drain_timeout=1.5).drain_timeout == 1.5


def _paths(tree: Any, prefix: str = "") -> set[str]:
    """Dotted paths of all keys, list items by their number."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    found: set[str] = set()
    for key, value in pairs:
        path = f"{prefix}.{key}"
        found.add(path)
        if isinstance(value, dict | list):
            found |= _paths(value, path)
    return found
