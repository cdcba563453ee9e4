"""What docs/policies.md says is so: its example runs as it stands, its tables are the code's."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from policies.reference import markdown
from policies.registry import TYPES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/policies.md").read_text()
HEADWAY = [sys.executable, "-c", "from gateway.cli import main; main()"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the example as the page tells to write it."""
    package = tmp_path / "acme_batching"
    package.mkdir()
    (package / "rules.py").write_text(blocks("python")[0])
    (tmp_path / "acme.yaml").write_text(blocks("yaml")[-1])
    return tmp_path


def run(words: list[str], folder: Path) -> str:
    done = subprocess.run(
        [*HEADWAY, *words], cwd=folder, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_reference_is_what_the_code_says() -> None:
    assert PAGE.endswith(f"`headway policies list --markdown`.\n\n{markdown()}")


def test_the_table_has_every_type() -> None:
    table = PAGE.partition("| type | when to use it |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == sorted(TYPES)


def test_the_example_has_fifteen_lines() -> None:
    (example,) = blocks("python")
    assert len(blocks("python")) == 1
    (policy,) = (node for node in ast.parse(example).body if isinstance(node, ast.ClassDef))
    lines = example.splitlines()[policy.lineno - 1 : policy.end_lineno]
    assert len([line for line in lines if line.strip()]) == 15


@pytest.mark.parametrize("command", commands())
def test_every_command_of_the_page_succeeds(command: str, folder: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "headway"
    told = run(words, folder)
    expected = {
        "test": "acme_batching.rules:LongQueue: ok",
        "show": "per_seat: float [0..], default 1.0",
        "acme.yaml": "policy     acme_batching.rules:LongQueue",
        "--executor": "goodput, req/s",
    }
    assert expected[words[1]] in told


def test_the_configuration_is_found_from_another_folder(folder: Path) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    assert run(["check", str(folder / "acme.yaml")], elsewhere).startswith("ok: ")


@pytest.mark.parametrize("number", range(2))
def test_the_other_configurations_are_right(number: int, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(blocks("yaml")[number])
    assert run(["check", "own.yaml"], tmp_path).startswith("ok: ")


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert [t for t in targets if not (ROOT / "docs" / t).exists()] == []
