from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway import cli, own_code
from policies.conformance import ANSWERS, BUILDS, FINITE, NO_GROWTH
from policies.registry import TYPES

MINE = """
from policies.static import Static

class Mine(Static):
    'All mine.'
"""
LEAVING = """
from policies.static import Static

class Leaving(Static):
    'Gone.'

    def decide(self, signals, limits):
        raise SystemExit(0)
"""
GREEDY = """
from dataclasses import replace
from policies.contract import Proposal
from policies.static import Static

class Greedy(Static):
    'More.'

    def decide(self, signals, limits):
        size = limits.max_batch_size + bool(signals.tiers)
        return Proposal(replace(limits, max_batch_size=size), 'more')
"""


def run(*arguments: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command, in this process."""
    result = CliRunner().invoke(cli.app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def headway(folder: Path, *arguments: str, **environ: str) -> tuple[int, str, str]:
    """The same as a command of its own, in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", *arguments],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    return done.returncode, done.stdout, done.stderr


def test_policies_are_listed_with_what_they_do() -> None:
    lines = run("policies", "list")[1].splitlines()
    assert [line.split()[0] for line in lines] == list(TYPES)
    assert lines[0] == (
        "static         Proposes the limits that were in force when it was first asked, for ever."
        "  [policies.static:Static]"
    )


def test_a_policy_is_shown_with_units_ranges_defaults_and_meaning() -> None:
    shown = run("policies", "show", "threshold")[1]
    assert (
        "  wait_step_s: float [0..1] s, default 0.001\n"
        "      W moves by this many seconds at least.\n"
    ) in shown
    assert "  up_ticks: int [1..] ticks, default 4\n" in shown
    assert run("policies", "show", "static")[1].endswith("\nIt has no parameters.\n")


def test_nested_parameters_are_shown_by_their_paths() -> None:
    shown = run("policies", "show", "schedule")[1]
    assert "  inner: mapping\n" in shown
    assert "  inner.type: str, default aimd\n" in shown
    assert "  entries: list of mapping, default []\n" in shown
    assert "  entries[].name: str, required\n" in shown
    assert "  entries[].limits.wait_timeout_s: float or null [0..] s, default null\n" in shown


def test_an_unknown_policy_is_told_the_nearest() -> None:
    assert run("policies", "show", "admd") == (
        1,
        "",
        "headway: unknown policy 'admd'; did you mean aimd? (your own: module:Class)\n",
    )


def test_a_policy_that_conforms_passes_every_check() -> None:
    status, shown, _ = run("policies", "test", "static")
    assert status == 0
    *checks, _, verdict = shown.splitlines()
    assert (len(checks), verdict) == (12, "static: ok")
    assert all(line.startswith("ok    ") for line in checks)


def test_parameters_to_test_with_are_read_as_yaml_and_checked() -> None:
    given = ("--parameters", "backoff=much", "--parameters", "severe=2")
    assert run("policies", "test", "aimd", *given) == (
        1,
        f"FAIL  {BUILDS}\n"
        "      backoff: should be a number; given 'much'\n"
        "\naimd: 1 of 1 checks fail\n",
        "",
    )
    assert run("policies", "test", "aimd", "--parameters", "backoff") == (
        1,
        "",
        "headway: --parameters backoff: should be KEY=VALUE, such as backoff=0.8\n",
    )
    assert run("policies", "test", "aimd", "--parameters", "backoff=[")[2] == (
        "headway: --parameters backoff=[: the value is not valid YAML\n"
    )
    digits = "9" * 5000
    assert run("policies", "test", "aimd", "--parameters", f"backoff={digits}")[2] == (
        f"headway: --parameters backoff={digits}: the value is not valid YAML\n"
    )


def test_a_policy_of_ones_own_that_is_wrong_fails_by_name_with_the_inputs(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(GREEDY)
    status, shown, errors = headway(tmp_path, "policies", "test", "rules:Greedy")
    assert (status, errors) == (1, "")
    assert f"FAIL  {NO_GROWTH}\n      seed 0, tick " in shown
    assert "B 16 -> 17, reached in 10% of steps; limits Limits(max_batch_size=16, " in shown
    assert f"ok    {FINITE}\n" in shown or f"FAIL  {FINITE}\n" in shown


@pytest.mark.parametrize("program", ["raise SystemExit(0)", "raise KeyboardInterrupt"])
def test_a_module_that_ends_the_command_is_no_success(program: str, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(program)
    (tmp_path / "own.yaml").write_text(
        "executors: [{name: main, kind: simulated}]\ncontrol: {policy: {type: 'rules:Mine'}}\n"
    )
    raised = program.removeprefix("raise ").replace("(0)", ": 0")
    told = f"rules of policy 'rules:Mine' cannot be imported: it raises {raised}\n"
    status, shown, errors = headway(tmp_path, "policies", "test", "rules:Mine")
    assert (status, errors) == (1, "")
    assert shown.startswith(f"FAIL  {BUILDS}\n      {told}")
    for command in (("check", "own.yaml"), ("serve", "-c", "own.yaml")):
        assert headway(tmp_path, *command) == (
            1,
            "",
            f"headway: 1 mistake in the configuration\n  own.yaml:2: control.policy.type: {told}",
        )


def test_a_policy_that_ends_the_command_when_it_is_asked_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(LEAVING)
    status, shown, errors = headway(tmp_path, "policies", "test", "rules:Leaving")
    assert (status, errors) == (1, "")
    assert f"FAIL  {ANSWERS}\n" in shown
    assert ": raises SystemExit: 0; limits " in shown


def test_a_policy_in_the_folder_of_work_is_found(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    assert headway(tmp_path, "policies", "show", "mine:Mine") == (
        0,
        "All mine.\n\nIt has no parameters.\n",
        "",
    )


def test_a_policy_beside_its_configuration_is_found_from_anywhere(tmp_path: Path) -> None:
    etc, elsewhere = tmp_path / "etc", tmp_path / "elsewhere"
    for folder in (etc, elsewhere):
        folder.mkdir()
    (etc / "mine.py").write_text(MINE)
    (etc / "own.yaml").write_text(
        "executors: [{name: main, kind: simulated}]\ncontrol: {policy: {type: 'mine:Mine'}}\n"
    )
    status, shown, errors = headway(elsewhere, "check", "../etc/own.yaml")
    assert (status, errors) == (0, "")
    assert "  policy     mine:Mine\n" in shown


def test_without_such_a_name_nothing_is_imported_from_there(tmp_path: Path) -> None:
    # The only module of this name, and it would be found.
    (tmp_path / "yaml_extras.py").write_text(MINE)
    (tmp_path / "own.yaml").write_text(
        "# control: {policy: {type: 'yaml_extras:Mine'}}\n"
        "executors: [{name: main, kind: simulated}]\n"
    )
    program = (
        "import sys\nfrom gateway.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "try:\n    import yaml_extras\nexcept ImportError:\n    print('not reached')"
    )
    done = subprocess.run(
        # -P: or Python itself would look in the folder of work.
        [sys.executable, "-P", "-c", program, "check", "own.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert done.stdout.splitlines()[-1] == "not reached", done.stderr


@pytest.mark.parametrize(
    ("words", "environ", "found"),
    [
        (["policies", "test", "mine:Mine"], {}, ["work"]),
        (["simulate", "--policy", "mine:Mine:size=3,B=4"], {}, ["work"]),
        (["serve", "--set", "control.policy.type=rules.mine:Mine"], {}, ["work"]),
        (["serve", "-c", "etc/own.yaml"], {}, ["work", "work/etc"]),
        (["serve", "--config=etc/own.yaml"], {}, ["work", "work/etc"]),
        (["serve", "--model", "x"], {"HEADWAY__CONTROL__POLICY__TYPE": "mine:Mine"}, ["work"]),
        (["serve", "--model", "x"], {"OTHER": "mine:Mine"}, []),
        (["serve", "-c", "etc/plain.yaml", "--host", "127.0.0.1"], {}, []),
        (["simulate", "--policy", "static:B=4", "--workload", "http://a/b"], {}, []),
        (["serve", "-c", "etc/none.yaml"], {}, []),
        (["serve", "-c", "etc/broken.yaml"], {}, []),
    ],
)
def test_folders_are_searched_only_for_what_is_named(
    words: list[str],
    environ: dict[str, str],
    found: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    etc = tmp_path / "work/etc"
    etc.mkdir(parents=True)
    (etc / "own.yaml").write_text("control: {policy: {type: mine:Mine}}")
    (etc / "plain.yaml").write_text("# mine:Mine\nserver: {host: '::1'}\nat: http://x:80/y")
    (etc / "broken.yaml").write_text("a: 'mine:Mine")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", ["installed"])
    own_code.reach(words, environ)
    assert sys.path == ["installed", *(str((tmp_path / folder).resolve()) for folder in found)]
