"""The state file: what is taken up and what is not, and that a crash leaves a whole one."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from controller.errors import ConfigError
from controller.kept import MOST_BYTES, Kept, dump, load
from executor.contract import StepSample
from gateway import keeping
from gateway.keeping import Keeper, write
from policies.contract import Limits
from tests.gateway.desk_rig import CAPACITY, Rig

AIMD = {"policy": {"type": "aimd"}, "hold": "fixed"}
START = Limits(4, 1024, 0.0)
MOVED = Limits(13, 700, 0.002)
OTHER = msgspec.structs.replace(CAPACITY, model="other")
STEP = StepSample(0.02, 2, 2, 100, 0, 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def a_rig(file: Path, *, control: dict[str, Any] | None = None, **sections: Any) -> Rig:
    return Rig(control={**(control or AIMD), "state_file": str(file)}, **sections)


def keeper(rig: Rig) -> Keeper:
    assert rig.parts.keeper is not None
    return rig.parts.keeper


def content(file: Path) -> bytes:
    return file.read_bytes()


def state(data: bytes) -> Kept:
    """A file's state, read at the instant at which it was written."""
    return load(data, now=msgspec.json.decode(data)["saved_at"])


def loop(rig: Rig) -> Any:
    return rig.parts.ticker.loops["default"]


def model(rig: Rig, name: str = "main") -> Any:
    return rig.parts.desk._observer.executors[name].model


async def learn(rig: Rig, *, limits: Limits = MOVED) -> None:
    """Something that is worth keeping."""
    await rig.ready()
    for _ in range(30):
        model(rig).learn(STEP)
    loop(rig).begin_again(limits)
    loop(rig).guard.ceiling.recall(900.0, 500.0, rig.clock.now)


async def test_a_restart_goes_on_with_what_was_learnt(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    second = a_rig(file)
    assert loop(second).limits == START
    with capture_logs() as logs:
        await second.ready()
    assert model(second).estimate() == model(first).estimate()
    assert loop(second).limits == MOVED
    tokens, left_s = loop(second).guard.ceiling.known(second.clock.now)
    assert (tokens, left_s) == (900.0, pytest.approx(500.0, abs=1.0))
    (told,) = [one for one in logs if one["event"] == "state taken up"]
    assert (told["executor"], told["steps"]) == ("main", 30)


async def test_what_is_measured_before_ready_comes_on_top(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    second = a_rig(file)
    rig_model = model(first)
    assert rig_model.estimate() is not None  # as every tick asks for
    rig_model.learn(STEP, weight=5.0)
    keeper(second).recall("main", CAPACITY)
    second.parts.desk._observer.warmed_up("main", [STEP])
    assert model(second).estimate() == rig_model.estimate()


async def test_an_executor_that_comes_back_keeps_what_it_has_learnt_since(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    second = a_rig(file)
    await second.ready()
    model(second).learn(STEP)
    loop(second).begin_again(START)
    before = model(second).estimate()
    await second.lose()
    await second.ready()
    assert model(second).estimate() == before
    assert loop(second).limits == START


async def test_another_model_begins_anew_and_says_why(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    second = a_rig(file)
    with capture_logs() as logs:
        await second.ready(capacity=OTHER)
    assert model(second).estimate() is None
    assert loop(second).limits == START
    assert loop(second).guard.ceiling.known(second.clock.now) is None
    assert [(one["log_level"], one["why"]) for one in logs if "why" in one] == [
        ("warning", "its model was 'm' and is 'other'")
    ]


async def test_limits_that_are_configured_otherwise_now_are_begun_with(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    limits = {"max_batch_size": 5, "max_batch_tokens": 1024, "wait_timeout": "0s"}
    second = a_rig(file, limits=limits)
    await second.ready()
    assert loop(second).limits == Limits(5, 1024, 0.0)
    assert model(second).estimate() == model(first).estimate()


@pytest.mark.parametrize(
    "control", [{"policy": {"type": "static"}}, {"policy": {"type": "aimd"}, "mode": "observe"}]
)
async def test_where_no_policy_moves_them_limits_are_as_configured(
    file: Path, control: dict[str, Any]
) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    second = a_rig(file, control=control)
    await second.ready()
    assert loop(second).limits == START


async def test_limits_stay_in_an_envelope_that_is_narrower_now(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    keeper(first).save()
    envelope = {"max_batch_size": [1, 8], "max_batch_tokens": [800, 2048], "wait_timeout": [0, 0]}
    second = a_rig(file, envelope=envelope)
    await second.ready()
    assert loop(second).limits == Limits(8, 800, 0.0)


async def test_limits_by_hand_are_not_kept(file: Path) -> None:
    first = a_rig(file)
    await learn(first)
    first.desk.pin({"max_batch_size": 2}, 60.0)
    kept = keeper(first).kept()
    assert kept is not None
    assert kept.groups["default"].limits.max_batch_size == MOVED.max_batch_size


async def test_of_executors_that_were_never_ready_what_was_known_stays_known(file: Path) -> None:
    pair = [{"kind": "simulated", "model": "m", "name": name} for name in ("main", "y")]
    first = a_rig(file, executors=pair)
    await learn(first)
    await first.ready("y")
    model(first, "y").learn(STEP)
    keeper(first).save()
    before = content(file)
    second = a_rig(file, executors=pair)
    keeper(second).save()
    assert content(file) == before
    await second.ready()
    keeper(second).save()
    assert state(content(file)).executors == state(before).executors


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (b"{", "it is broken: Input data was truncated"),
        (b"x" * (MOST_BYTES + 5), f"it has {MOST_BYTES + 1} bytes, and no state has more"),
        (b'{"version": 0}', "it is of version 0, and this code writes 1"),
    ],
)
async def test_what_cannot_be_used_is_left_aside_with_a_warning_and_written_over(
    file: Path, given: bytes, why: str
) -> None:
    write(file, given)
    with capture_logs() as logs:
        rig = a_rig(file)
    (warning,) = logs
    assert (warning["event"], warning["log_level"]) == ("state not used", "warning")
    assert warning["why"].startswith(why)
    await learn(rig)
    keeper(rig).save()
    assert state(content(file)).executors["main"].model == "m"


def test_what_is_no_file_keeps_nobody_waiting(file: Path) -> None:
    os.mkfifo(file)
    with capture_logs() as logs:
        a_rig(file)
    assert [one["why"] for one in logs] == ["it is no file"]


def test_a_folder_that_is_missing_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"control.state_file: there is no folder .*/missing$"):
        a_rig(tmp_path / "missing" / "state.json")


class TestTheFile:
    def test_nobody_else_may_read_it(self, file: Path) -> None:
        file.write_text("old")
        file.chmod(0o666)
        write(file, b"new")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert [one.name for one in file.parent.iterdir()] == ["state.json"]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_crash_while_it_is_written_leaves_the_old_one(
        self, file: Path, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(file, b"old")

        def crash(*args: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, step, crash)
        with pytest.raises(KeyboardInterrupt):
            write(file, b"new and longer")
        assert file.read_bytes() == b"old"
        monkeypatch.undo()
        write(file, b"newer")
        assert file.read_bytes() == b"newer"
        assert [one.name for one in file.parent.iterdir()] == ["state.json"]

    async def test_a_disk_that_fails_is_told_once_and_tried_again(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rig = a_rig(file)
        await learn(rig)

        def fail(*args: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", fail)
        with capture_logs() as logs:
            keeper(rig).save()
            keeper(rig).save()
        assert [(one["event"], one["why"]) for one in logs] == [
            ("state not written", "No space left on device")
        ]
        monkeypatch.undo()
        keeper(rig).save()
        assert state(content(file)).executors["main"].model == "m"

    async def test_it_is_written_again_and_again(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(keeping, "SAVE_EVERY_S", 0.001)
        rig = a_rig(file)
        await learn(rig)
        written, save = asyncio.Event(), keeper(rig)._write
        loop_ = asyncio.get_running_loop()

        def told(kept: Any) -> None:
            save(kept)
            loop_.call_soon_threadsafe(written.set)

        monkeypatch.setattr(keeper(rig), "_write", told)
        task = asyncio.create_task(keeper(rig).run())
        for _ in range(2):
            await written.wait()
            written.clear()
        task.cancel()
        await asyncio.wait({task})
        assert dump(state(content(file))) == content(file)
