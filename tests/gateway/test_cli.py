from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controller.config import Config
from controller.config_executors import ContinuousExecutor, UpstreamExecutor
from controller.config_keys import schema
from controller.config_load import Source
from controller.config_reference import markdown
from controller.errors import ConfigError
from gateway import cli, daemon
from gateway.assembly import assemble

ROOT = Path(__file__).parents[2]


def run(*arguments: str | Path) -> tuple[int, str, str]:
    """Exit status, output and errors of the command."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configurations that a daemon was started with; none really starts."""
    started: list[Config] = []

    def serve(config: Config, source: Source) -> int:
        assert source.read().config == config
        started.append(config)
        return 3

    monkeypatch.setattr(daemon, "serve", serve)
    return started


def test_check_says_ok_and_what_the_configuration_amounts_to() -> None:
    path = ROOT / "configs/simulated.yaml"
    assert run("check", path) == (
        0,
        f"ok: {path}\n"
        "  listens on 127.0.0.1:8080\n"
        "  tiers      paid, free, offline\n"
        "  policy     threshold\n"
        "  executors  main (simulated, simulated-opt-13b)\n",
        "",
    )


def test_check_lists_every_mistake_and_fails(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("server:\n  prot: 1\n  port: -1\n")
    assert run("check", path) == (
        1,
        "",
        "headway: 2 mistakes in the configuration\n"
        f"  {path}:2: server.prot: unknown key; did you mean port?\n"
        f"  {path}:3: server.port: should be greater than or equal to 0; given -1\n",
    )


def test_check_sees_the_environment_as_the_daemon_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY__SERVER__PORT", "9999999")
    code, _, told = run("check", ROOT / "configs/simulated.yaml")
    assert code == 1
    assert "environment HEADWAY__SERVER__PORT: server.port: should be less than" in told


def test_serve_passes_the_configuration_on_with_flags_on_top(served: list[Config]) -> None:
    path = ROOT / "configs/simulated.yaml"
    flags = ("--port", "0", "--host", "localhost", "--set", "log.level=debug")
    assert run("serve", "-c", path, *flags)[0] == 3
    (config,) = served
    assert (config.server.host, config.server.port) == ("localhost", 0)
    assert config.log.level == "debug"
    assert config.control.policy.type == "threshold"


def test_serve_with_a_models_folder_alone_takes_the_defaults(served: list[Config]) -> None:
    assert run("serve", "--model", "/models/my: model")[0] == 3
    executor = ContinuousExecutor(kind="continuous", model="/models/my: model")
    assert served == [Config(executors=(executor,))]


def test_serve_with_an_engines_address_alone_takes_the_defaults(served: list[Config]) -> None:
    assert run("serve", "--upstream", "http://127.0.0.1:8000")[0] == 3
    assert run("serve", "--upstream", "http://127.0.0.1:8000", "--model", "theirs")[0] == 3
    bare = UpstreamExecutor(kind="upstream", url="http://127.0.0.1:8000")
    named = bare.model_copy(update={"model": "theirs"})
    assert served == [Config(executors=(bare,)), Config(executors=(named,))]


def test_serve_with_nothing_says_what_it_needs(served: list[Config]) -> None:
    assert run("serve") == (
        1,
        "",
        "headway: name a configuration with -c FILE, a model's folder with --model DIR, or an "
        "engine with --upstream URL\n",
    )
    assert served == []


def test_a_setting_without_a_value_is_refused(served: list[Config]) -> None:
    code, _, told = run("serve", "--model", "x", "--set", "log.level")
    assert (code, told) == (
        1,
        "headway: --set log.level: should be KEY=VALUE, such as log.level=debug\n",
    )


def test_schema_prints_what_editors_and_what_people_read() -> None:
    assert json.loads(run("schema")[1]) == schema()
    assert run("schema", "--markdown")[1] == markdown()


@pytest.mark.parametrize(
    "arguments", [["check", "configs/demo.yaml"], ["policies", "list"], ["--help"]]
)
def test_what_only_reads_imports_neither_server_nor_tensors(arguments: list[str]) -> None:
    program = (
        "import sys\nfrom gateway.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'aiohttp', 'asyncio', 'torch', 'transformers', 'prometheus_client', 'uvloop'}\n"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_a_model_folder_that_is_not_there_is_named_at_once(tmp_path: Path) -> None:
    missing = tmp_path / "models" / "none"
    config = Config.model_validate({"executors": [{"kind": "continuous", "model": str(missing)}]})
    with pytest.raises(ConfigError, match=f"executors.0.model: there is no folder {missing}"):
        assemble(config, environ={})


def test_simulate_hands_its_words_to_the_bench() -> None:
    status, _, errors = run("simulate", "--executor", "E9")
    assert status == 1
    assert "no executor 'E9'" in errors


def test_profile_hands_its_words_to_the_bench() -> None:
    status, _, errors = run("profile", "--out", "x.yaml")
    assert status == 1
    assert "headway: name a configuration with -c FILE" in errors


def test_diff_says_what_a_reload_would_change(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("limits: {max_batch_size: 8}\n")
    new.write_text("limits: {max_batch_size: 9}\ncontrol: {interval: 1s}\n")
    assert run("diff", old, old) == (0, "no difference\n", "")
    assert run("diff", old, new) == (
        0,
        "live     limits.max_batch_size: 8 -> 9\nlive     control.interval: 250ms -> 1s\n",
        "",
    )
    assert run("diff", old, new, "--set", "control.interval=1s")[1].splitlines() == [
        "live     limits.max_batch_size: 8 -> 9"
    ]


def test_diff_fails_where_something_needs_a_restart_or_is_wrong(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("server: {port: 1}\n")
    new.write_text("server: {port: 2, access_log: true}\n")
    assert run("diff", old, new) == (
        1,
        "restart  server.port: 1 -> 2  (the address is bound at the start)\n"
        "live     server.access_log: false -> true\n",
        "",
    )
    new.write_text("server: {port: x}\n")
    code, out, told = run("diff", old, new)
    assert (code, out) == (1, "")
    assert f"{new}:1: server.port: should be a valid integer" in told
