from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from email import message_from_bytes
from itertools import chain
from pathlib import Path
from zipfile import ZipFile

import pytest

from gateway.names import PACKAGES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built of what git would ship, in a folder of its own."""
    source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
    # Symbolic links, so that setuptools leaves its traces there and not in the project.
    for name in ("pyproject.toml", "LICENSE", "README.md", *PACKAGES):
        if (ROOT / name).exists():
            (source / name).symlink_to(ROOT / name)
    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, built],
        cwd=source,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (made,) = built.glob("*.whl")
    return made


def test_the_wheel_has_the_packages_and_neither_tests_nor_configs(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_refuses_to_be_uploaded_and_carries_the_licence(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (about,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        metadata = message_from_bytes(archive.read(about))
        licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert "Private :: Do Not Upload" in metadata.get_all("Classifier", [])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert len(licences) == 1


def test_the_wheel_installs_into_a_clean_environment_and_runs_there(
    wheel: Path, tmp_path: Path
) -> None:
    """Its dependencies are borrowed from here by a path file, so that nothing is downloaded."""
    home = tmp_path / "env"
    venv.create(home, with_pip=False, symlinks=True)
    (site,) = home.glob("lib/python*/site-packages")
    # pip works inside the new environment: from outside, with a prefix, it would take the
    # installed project for an older version and remove it.
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    install = [*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)]
    subprocess.run(install, check=True, timeout=60)
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed))
    done = subprocess.run(
        [home / "bin" / "headway", "check", ROOT / "configs" / "simulated.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.stdout.startswith(f"ok: {ROOT / 'configs' / 'simulated.yaml'}\n")
    found = subprocess.run(
        [home / "bin" / "python", "-c", "import controller; print(controller.__file__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout.strip() == str(site / "controller" / "__init__.py")


def test_every_dependency_is_pinned_without_a_local_version() -> None:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert re.fullmatch(r"[0-9][0-9a-z.]*", version), line
            pinned[_normal(name)] = version
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    wanted = [*project["dependencies"], *extras]
    names = {_normal(re.split(r"[<>=\[ ]", one)[0]) for one in wanted}
    assert names - set(pinned) == set()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
