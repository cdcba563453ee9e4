from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.config import Config
from controller.config_executors import ContinuousExecutor
from controller.config_load import load
from controller.errors import ConfigError

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a configuration file and gives its path."""

    def written(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return written


def refusal(path: Path | None, **given: dict[str, str]) -> list[str]:
    """The lines of the error that loading raises, the file's folder left out."""
    with pytest.raises(ConfigError) as caught:
        load(path, env=given.get("env", {}), overrides=given.get("flags"))
    folder = f"{path.parent}/" if path else ""
    return str(caught.value).replace(folder, "").splitlines()


def test_nothing_given_is_the_defaults() -> None:
    assert load(None, env={"PATH": "/bin", "HEADWAY_KEY": "a secret, not a setting"}) == Config()


def test_an_empty_file_is_the_defaults(write: Write) -> None:
    assert load(write("# nothing yet\n"), env={}) == Config()


def test_a_flag_overrules_the_environment_which_overrules_the_file(write: Write) -> None:
    path = write("server: {port: 1, host: localhost, drain_timeout: 1s}\n")
    env = {"HEADWAY__SERVER__PORT": "2", "HEADWAY__SERVER__DRAIN_TIMEOUT": "2s"}
    server = load(path, env=env, overrides={"server.port": "3"}).server
    assert (server.host, server.drain_timeout, server.port) == ("localhost", 2.0, 3)
    assert server.keep_alive_after == 5.0


def test_a_variable_changes_one_tier_and_leaves_the_others() -> None:
    config = load(None, env={"HEADWAY__TIERS__PAID__MAX_SEATS": "4"})
    assert {name: tier.max_seats for name, tier in config.tiers.items()} == {
        "paid": 4,
        "free": None,
        "offline": None,
    }
    assert config.tiers["free"] == Config().tiers["free"]


def test_a_variable_finds_a_tier_whose_name_has_capitals_and_dashes(write: Write) -> None:
    path = write("tiers: {Pay-Roll: {priority: 1}}\nauth: {default_tier: Pay-Roll}\n")
    config = load(path, env={"HEADWAY__TIERS__PAY_ROLL__PRIORITY": "7"})
    assert {name: tier.priority for name, tier in config.tiers.items()} == {"Pay-Roll": 7}


def test_a_file_that_names_tiers_names_all_of_them(write: Write) -> None:
    path = write("tiers: {gold: {priority: 1}}\nauth: {default_tier: gold}\n")
    assert list(load(path, env={}).tiers) == ["gold"]


def test_a_list_item_is_reached_by_its_number() -> None:
    config = load(None, env={}, overrides={"executors.0.model": '"/models/12"'})
    executor = config.executors[0]
    assert isinstance(executor, ContinuousExecutor)
    assert (executor.model, executor.max_seqs) == ("/models/12", 64)


def test_a_whole_mapping_may_stand_in_a_variable_and_a_longer_name_refines_it() -> None:
    env = {
        "HEADWAY__CONTROL__POLICY__PARAMETERS__BACKOFF": "0.8",
        "HEADWAY__CONTROL__POLICY": "{type: aimd, parameters: {growth: 0.1}}",
    }
    policy = load(None, env=env).control.policy
    assert dict(policy.parameters) == {"growth": 0.1, "backoff": 0.8}


def test_an_unknown_key_names_its_line_its_path_and_the_nearest_known_one(write: Write) -> None:
    assert refusal(write("server:\n  host: localhost\n  prot: 1\n")) == [
        "mine.yaml:3: server.prot: unknown key; did you mean port?"
    ]


def test_an_unknown_variable_is_an_error_too() -> None:
    env = {"HEADWAY__SERVER__PROT": "1", "HEADWAY__SERVR__PORT": "1"}
    assert refusal(None, env=env) == [
        "environment HEADWAY__SERVER__PROT: server.prot: unknown key; did you mean port?",
        "environment HEADWAY__SERVR__PORT: servr: unknown key; did you mean server?",
    ]


def test_a_key_in_the_wrong_section_is_told_where_it_belongs(write: Write) -> None:
    assert refusal(write("min_share: 0.1\n")) == [
        "mine.yaml:1: min_share: unknown key; it belongs at tiers.min_share"
    ]


def test_an_unknown_key_that_resembles_none_is_told_what_is_known(write: Write) -> None:
    assert refusal(write("log: {colour: red}\n")) == [
        "mine.yaml:1: log.colour: unknown key; known here: format, level"
    ]


def test_keys_of_an_executor_are_those_of_its_kind(write: Write) -> None:
    text = "executors:\n- kind: simulated\n  num_blocks: 3\n  kv_token: 9\n"
    assert refusal(write(text)) == [
        "mine.yaml:3: executors.0.num_blocks: unknown key; another kind of executors has it",
        "mine.yaml:4: executors.0.kv_token: unknown key; did you mean kv_tokens?",
    ]


def test_every_mistake_is_told_at_once_in_the_order_of_the_file(write: Write) -> None:
    text = """\
server:
  port: 70000
  drain_timeout: 5
  access_log: 1
limits: {max_batch_size: 128, max_batch_tokens: many}
log:
tiers:
  paid: {priority: 1, service_tier: gold}
  free: {priority: 1}
auth: {default_tier: gold}
executors:
- {kind: simulated, utilization: 7}
"""
    assert refusal(write(text)) == [
        "mine.yaml:2: server.port: should be less than or equal to 65535; given 70000",
        "mine.yaml:3: server.drain_timeout: needs its unit: write 5s for 5 seconds or 5ms for "
        "5 milliseconds; given 5",
        "mine.yaml:4: server.access_log: should be a valid boolean; given 1",
        "mine.yaml:5: limits.max_batch_tokens: should be a valid integer; given 'many'",
        "mine.yaml:5: limits.max_batch_size: 128 is outside the envelope [1, 64]",
        "mine.yaml:6: log: should be a mapping of keys; given nothing",
        "mine.yaml:8: tiers.paid.service_tier: should be 'priority', 'default', 'flex', "
        "'scale' or 'fast'; given 'gold'",
        "mine.yaml:9: tiers.free.priority: priority 1 is taken by tiers.paid",
        "mine.yaml:10: auth.default_tier: there is no tier 'gold'; there are paid, free",
        "mine.yaml:12: executors.0.utilization: should be a fraction from 0 to 1, or model, or "
        "null; given 7",
    ]


def test_a_contradiction_with_a_value_that_is_wrong_by_itself_is_not_told(write: Write) -> None:
    # 128 contradicts the default envelope, but this envelope was meant to be another one.
    text = "limits: {max_batch_size: 128}\nenvelope: {max_batch_size: [1, many]}\n"
    assert refusal(write(text)) == [
        "mine.yaml:2: envelope.max_batch_size.1: should be a valid integer; given 'many'"
    ]


def test_a_missing_key_is_told_at_what_lacks_it(write: Write) -> None:
    text = "tiers:\n  paid:\n    min_share: 0.1\nauth: {default_tier: paid}\n"
    assert refusal(write(text)) == ["mine.yaml:2: tiers.paid.priority: is required"]


def test_the_kind_of_an_executor_is_required_and_one_of_those_there_are(write: Write) -> None:
    assert refusal(write("executors:\n- name: a\n- {name: b, kind: vllm}\n")) == [
        "mine.yaml:2: executors.0.kind: is required",
        "mine.yaml:3: executors.1.kind: should be one of 'continuous', 'padded', 'simulated', "
        "'upstream'; given 'vllm'",
    ]


def test_what_stands_in_place_of_a_digest_is_not_shown(write: Write) -> None:
    text = "auth: {keys: [{name: a, tier: paid, sha256: my-very-secret-key}]}\n"
    assert refusal(write(text)) == [
        "mine.yaml:1: auth.keys.0.sha256: string should match pattern '^[0-9a-f]{64}$'; given "
        "what is not shown here"
    ]


def test_a_key_that_stands_twice_is_refused_with_both_lines(write: Write) -> None:
    assert refusal(write("server:\n  port: 1\n  host: a\n  port: 2\n")) == [
        "mine.yaml:4: server.port: stands in line 2 already"
    ]


def test_what_is_no_yaml_is_refused_with_line_and_column(write: Write) -> None:
    (told,) = refusal(write("server:\n  port: [1, 2\nlog: {}\n"))
    assert told.startswith("mine.yaml:3:4: not valid YAML: ")


def test_an_alias_inside_its_own_anchor_is_refused(write: Write) -> None:
    assert refusal(write("server: &here {host: *here}\n")) == [
        "mine.yaml:1: an alias (`*name`) stands inside its own anchor"
    ]


def test_a_key_that_is_no_name_is_refused(write: Write) -> None:
    assert refusal(write("? [a, b]\n: 1\n")) == [
        "mine.yaml:1: a key should be a name, not a collection"
    ]


def test_a_file_that_is_a_list_is_refused(write: Write) -> None:
    assert refusal(write("- server\n")) == [
        "mine.yaml: should be a mapping of sections such as `server:`"
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone.yaml") == [
        "gone.yaml: cannot be read: No such file or directory"
    ]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert refusal(tmp_path / "pipe.yaml") == [
        "pipe.yaml: cannot be read: should be a regular file"
    ]
    assert refusal(tmp_path)[0].endswith(": cannot be read: Is a directory")


def test_a_flag_that_leads_nowhere_is_named() -> None:
    assert refusal(None, flags={"executors.1.model": "x", "server.port": "[1"}) == [
        "flag executors.1.model: executors.1.model: there is no such list item",
        "flag server.port: server.port:1:3: not valid YAML: expected ',' or ']', but got "
        "'<stream end>'",
    ]


def test_anchors_and_merges_of_yaml_work(write: Write) -> None:
    text = """\
tiers:
  paid: &tier {priority: 1, max_queue_requests: 70}
  free: {<<: *tier, priority: 2}
auth: {default_tier: free}
"""
    tiers = load(write(text), env={}).tiers
    assert (tiers["free"].priority, tiers["free"].max_queue_requests) == (2, 70)


def test_an_unknown_policy_parameter_names_its_line(write: Write) -> None:
    text = "control:\n  policy:\n    type: aimd\n    parameters:\n      backof: 0.9\n"
    assert refusal(write(text)) == [
        "mine.yaml:5: control.policy.parameters.backof: unknown parameter; did you mean backoff?"
    ]


def test_an_unknown_policy_type_is_told_where_the_type_was_written(write: Write) -> None:
    path = write("control:\n  policy:\n    type: amid\n")
    told = "control.policy.type: unknown policy {!r}; {} (your own: module:Class)"
    assert refusal(path) == [f"mine.yaml:3: {told.format('amid', 'did you mean aimd?')}"]
    name = "HEADWAY__CONTROL__POLICY__TYPE"
    assert refusal(path, env={name: "stattic"}) == [
        f"environment {name}: {told.format('stattic', 'did you mean static?')}"
    ]


def test_parameters_that_contradict_each_other_are_told_where_they_were_written(
    write: Write,
) -> None:
    text = "control:\n  policy:\n    type: threshold\n    parameters: {queue_low: 2}\n"
    assert refusal(write(text)) == [
        "mine.yaml:4: control.policy.parameters: queue_low 2 should be below queue_high 1"
    ]
