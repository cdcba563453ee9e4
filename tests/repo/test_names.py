from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from gateway.names import PACKAGES, ForeignPackage, check_packages

ROOT = Path(__file__).parents[2]


def test_the_names_that_are_guarded_are_those_that_ship() -> None:
    ours = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert set(PACKAGES) == ours


def test_nothing_else_that_is_installed_ships_a_package_of_these_names() -> None:
    others = {
        f"{found.metadata['Name']}: {file}"
        for found in distributions()
        if found.metadata["Name"] != "headway"
        for file in found.files or ()
        if file.parts[0].removesuffix(".py") in PACKAGES
    }
    assert others == set()


def test_headways_own_packages_pass() -> None:
    check_packages()


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_in_front_is_named_with_its_path(name: str, tmp_path: Path) -> None:
    intruder = tmp_path / name / "__init__.py"
    intruder.parent.mkdir()
    intruder.touch()
    with pytest.raises(ForeignPackage) as caught:
        check_packages([str(tmp_path), str(ROOT)])
    assert str(caught.value).startswith(
        f"{intruder} hides Headway's own package {name!r} in {ROOT}"
    )


def test_a_module_of_one_file_is_an_intruder_too(tmp_path: Path) -> None:
    (tmp_path / "metrics.py").touch()
    with pytest.raises(ForeignPackage, match=r"metrics\.py hides Headway's own package 'metrics'"):
        check_packages([str(tmp_path), str(ROOT)])


def test_a_folder_behind_headway_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "__init__.py").touch()
    check_packages([str(ROOT), str(tmp_path)])


def test_a_package_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ForeignPackage, match="the package 'controller' of Headway cannot be found"):
        check_packages([str(tmp_path)])


def test_the_command_stops_at_an_intruder_before_it_imports_it(tmp_path: Path) -> None:
    (tmp_path / "controller.py").write_text("raise SystemExit('the intruder ran')")
    done = subprocess.run(
        [sys.executable, "-c", "from gateway.cli import main; main()", "schema"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"headway: {tmp_path / 'controller.py'} hides Headway's own")
