"""The child's loop waits only where it should, and its process ends when it should."""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from executor import worker
from executor.contract import (
    Begin,
    Broken,
    Fault,
    Finished,
    FromExecutor,
    Key,
    Loading,
    Ready,
    Report,
    Sampling,
    SimulatedSettings,
    Stop,
    Submit,
    ToExecutor,
    Work,
)
from executor.engine import Progress
from executor.simulated import SimulatedEngine
from executor.wire import Channel, Disconnected

SILENCE: list[ToExecutor] = []


class Script(Channel[ToExecutor]):
    """A channel whose other side is written down beforehand; remembers waits and reports."""

    def __init__(self, *answers: list[ToExecutor]) -> None:
        self._answers = iter(answers)
        self.waits_ms: list[int | None] = []
        self.sent: list[msgspec.Struct] = []

    def send(self, message: msgspec.Struct) -> None:
        self.sent.append(message)

    def receive(self, timeout_ms: int | None) -> list[ToExecutor]:
        self.waits_ms.append(timeout_ms)
        return next(self._answers)


def submit(name: str, output: int) -> Submit:
    return Submit(name, 1, [1, 2, 3], 3, output, Sampling())


def serve(*answers: list[ToExecutor]) -> Script:
    script = Script(*answers, [Stop()])
    worker.serve(script, SimulatedEngine(SimulatedSettings()), [])
    return script


def test_it_looks_without_waiting_while_steps_run_and_waits_for_ever_when_idle() -> None:
    script = serve([Work(1, 64, [submit("a", 3)])], SILENCE, SILENCE)
    assert script.waits_ms == [None, 0, 0, None]


def test_a_freed_seat_waits_a_millisecond_for_its_answer_before_the_next_step() -> None:
    script = serve(
        [Work(1, 64, [submit("a", 1), submit("b", 3)])],
        [Work(2, 64, [submit("c", 2)])],
        SILENCE,
    )
    assert script.waits_ms == [None, worker.ANSWER_WAIT_MS, 0, None]
    seen = [report for report in script.sent if isinstance(report, Report)]
    who = ["".join(tokens.request_id for tokens in report.tokens) for report in seen]
    assert who == ["ab", "bc", "bc"]
    assert [report.epoch for report in seen] == [1, 2, 2]


def test_everything_that_has_arrived_is_applied_before_one_step() -> None:
    script = serve(
        [
            Work(1, 64, [submit("a", 1)]),
            Work(2, 64, [submit("b", 1)]),
            Work(3, 64, [], [Key("a", 1)]),
        ]
    )
    reports = [report for report in script.sent if isinstance(report, Report)]
    assert [(report.epoch, report.finished, report.released) for report in reports] == [
        (3, [Finished("b", 1, "length")], [Key("a", 1)])
    ]


def test_a_frame_that_is_not_complete_yet_changes_nothing() -> None:
    script = serve(SILENCE, [Work(1, 64, [submit("a", 1)])])
    assert script.waits_ms == [None, None, None]


def test_a_fault_that_an_engine_cannot_have_is_said_and_changes_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Healthy(SimulatedEngine):
        def inject(self, fault: Fault) -> None:
            raise ValueError("a real device fails by itself")

    script = Script([Fault("oom"), Work(1, 64, [submit("a", 1)])], [Stop()])
    worker.serve(script, Healthy(SimulatedSettings()), [])
    assert len(script.sent) == 1
    said = capfd.readouterr().err
    assert said == "fault 'oom' was not injected: a real device fails by itself\n"


# How it ends


class Breaks(SimulatedEngine):
    """Fails where `settings.model` says."""

    def __init__(self, settings: SimulatedSettings) -> None:
        super().__init__(settings)
        self._where = settings.model

    def load(self, progress: Progress) -> Ready:
        if self._where == "load":
            raise RuntimeError("the device is busy")
        if self._where == "settings":
            raise ValueError("no such folder: /nowhere")
        return super().load(progress)

    def step(self) -> Report:
        raise KeyError("block 7")


def converse(monkeypatch: pytest.MonkeyPatch, *messages: ToExecutor) -> tuple[int, FromExecutor]:
    """Let a worker with breaking engines hear all this; its exit code and its last words."""
    engines = {
        "breaks": ("tests.executor.test_worker:Breaks", SimulatedSettings),
        "lacks": ("no_such_package:Engine", SimulatedSettings),
    }
    monkeypatch.setattr(worker, "ENGINES", MappingProxyType(engines))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        parent: Channel[FromExecutor] = Channel(ours, FromExecutor)
        for message in messages:
            parent.send(message)
        code = worker.run(Channel(theirs, ToExecutor))
        gc.unfreeze()  # what a worker keeps for ever are all objects of this process
        return code, parent.receive(None)[-1]


@pytest.mark.parametrize(
    ("begin", "last_words"),
    [
        (Begin("x", "breaks", {"model": "load"}), Broken("RuntimeError: the device is busy")),
        (Begin("x", "breaks", {"model": "settings"}), Broken("no such folder: /nowhere", True)),
        (Begin("x", "breaks", {"model": "step"}), Broken("KeyError: 'block 7'")),
        (
            Begin("x", "lacks", {}),
            Broken(
                "executors of kind 'lacks' cannot be imported: No module named 'no_such_package'",
                True,
            ),
        ),
        (
            Begin("x", "other", {}),
            Broken("no executor of kind 'other', there are breaks, lacks", True),
        ),
        (
            Begin("x", "breaks", {"max_seqs": "many"}),
            Broken(
                "settings of executor 'x' (breaks): Expected `int`, got `str` - at `$.max_seqs`",
                True,
            ),
        ),
        (Work(1, 64), Broken("WireError: the first record was Work, not Begin")),
    ],
)
def test_its_last_words_say_what_went_wrong_and_whether_a_restart_can_help(
    monkeypatch: pytest.MonkeyPatch, begin: ToExecutor, last_words: Broken
) -> None:
    assert converse(monkeypatch, begin, Work(1, 64, [submit("a", 1)])) == (1, last_words)


@contextlib.contextmanager
def process(*flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Channel[FromExecutor]]]:
    """A real worker and the other end of its connection, killed at the end if need be."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen(
                [sys.executable, *flags, "-m", "executor.worker", "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stderr=subprocess.PIPE,
            )
        with child:
            try:
                yield child, Channel(ours, FromExecutor)
            finally:
                child.kill()


def until_ready(channel: Channel[FromExecutor], **settings: Any) -> None:
    channel.send(Begin("x", "simulated", settings))
    seen: list[FromExecutor] = []
    while not seen or not isinstance(seen[-1], Ready):
        seen += channel.receive(None)
    assert [type(message) for message in seen] == [Loading, Ready]


def answer(channel: Channel[FromExecutor]) -> list[FromExecutor]:
    """What comes back for one request of one token."""
    channel.send(Work(1, 64, [submit("a", 1)]))
    return channel.receive(None)


def test_a_stop_ends_it_and_a_simulated_executor_imports_nothing_heavy() -> None:
    with process("-X", "importtime") as (child, channel):
        until_ready(channel)
        assert [type(message) for message in answer(channel)] == [Report]
        channel.send(Stop())
        _, stderr = child.communicate()
        assert child.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in stderr.decode().splitlines()}
    assert "executor.simulation" in imported
    assert imported & {"torch", "numpy", "transformers", "aiohttp", "pydantic"} == set()


def test_it_ends_when_the_daemon_closes_the_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-m", "executor.worker", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
    with ours:
        until_ready(Channel(ours, FromExecutor))
    assert child.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_is_for_the_daemon_alone(number: signal.Signals) -> None:
    with process() as (child, channel):
        until_ready(channel)
        child.send_signal(number)
        assert [type(message) for message in answer(channel)] == [Report]
        channel.send(Stop())
        assert child.wait() == 0


def test_the_fault_exit_ends_it_at_once() -> None:
    with process() as (child, channel):
        until_ready(channel)
        channel.send(Fault("exit"))
        assert child.wait() == 70
        with pytest.raises(Disconnected):
            channel.receive(None)


PARENT = """
import socket, subprocess, sys
from executor.contract import *
from executor.wire import Channel

ours, theirs = socket.socketpair()
child = subprocess.Popen(
    [sys.executable, "-m", "executor.worker", "--fd", str(theirs.fileno())],
    pass_fds=[theirs.fileno()],
)
theirs.close()
channel = Channel(ours, FromExecutor)
channel.send(Begin("x", "simulated", {}))
while not isinstance(channel.receive(None)[-1], Ready):
    pass
channel.send(Fault("stall", 600.0))
channel.send(Work(1, 64, [Submit("a", 1, [1], 1, 9, Sampling())]))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is noticed after the step")
def test_it_does_not_outlive_a_killed_daemon_not_even_within_a_step() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        # The child holds the other end of this pipe: it ends when both are gone.
        assert parent.stderr.read() == b""
