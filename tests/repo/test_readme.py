"""Every command of the README does what it says, against a daemon that is really running."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    joined = "\n".join(blocks("bash")).replace("\\\n", " ")
    return [line.split("   #")[0].strip() for line in joined.splitlines() if line.strip()]


@contextmanager
def daemon() -> Iterator[str]:
    """The daemon on the simulated executor; yields its address."""
    with subprocess.Popen(
        [BIN / "headway", "serve", "-c", "configs/simulated.yaml", "--port", "0"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"listens on (http://\S+)", line):
                    yield found.group(1)
                    break
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with daemon() as at:
        subprocess.run(
            [
                "curl",
                "-sf",
                "--retry",
                "50",
                "--retry-delay",
                "0",
                "--retry-all-errors",
                "--retry-max-time",
                "20",
                f"{at}/readyz",
            ],
            check=True,
            capture_output=True,
        )
        yield at


def run(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_shows_commands() -> None:
    assert len(commands()) >= 6
    assert len(blocks("python")) == 1
    assert len(blocks("yaml")) == 1


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_make_targets_exist(command: str) -> None:
    assert "pip install" in run([*shlex.split(command), "--dry-run", "--always-make"])


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("curl ")])
def test_curl_lines_are_answered(command: str, address: str) -> None:
    words = shlex.split(command.replace("http://127.0.0.1:8080", address))
    assert run([words[0], "-sf", *words[1:]]).startswith(('{"id"', '{"decisions"'))


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("headway check")])
def test_files_that_are_checked_are_right(command: str) -> None:
    words = shlex.split(command)
    assert run([str(BIN / words[0]), *words[1:]]).startswith("ok: ")


def test_serve_is_shown_with_options_and_files_that_exist() -> None:
    shown = [shlex.split(c) for c in commands() if c.startswith("headway serve")]
    usage = run([str(BIN / "headway"), "serve", "--help"])
    assert len(shown) == 4
    for words in shown:
        option, value = words[2:4]
        assert option in usage
        assert value in ("DIR", "URL") or (ROOT / value).is_file()


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("headway simulate")])
def test_simulations_are_played(command: str) -> None:
    words = shlex.split(command)
    assert "goodput, req/s" in run([str(BIN / words[0]), *words[1:]])


def test_no_other_kind_of_command_is_shown() -> None:
    tested = ("make ", "curl ", "headway check ", "headway serve ", "headway simulate ")
    assert [c for c in commands() if not c.startswith(tested)] == []


def test_the_python_example_runs(address: str) -> None:
    code = blocks("python")[0].replace("http://127.0.0.1:8080", address)
    assert run([sys.executable, "-c", code]).strip().endswith("| priority")


def test_the_configuration_example_is_right(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(blocks("yaml")[0])
    assert run([str(BIN / "headway"), "check", str(file)]).startswith("ok: ")


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    missing = [t for t in targets if not t.startswith("http") and not (ROOT / t).exists()]
    assert missing == []
