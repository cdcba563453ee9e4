"""The child program: be one executor, step by step, for as long as the daemon holds the other end.

`python -m executor.worker --fd N`: N is an inherited socket. What is heavy is imported here only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from types import MappingProxyType
from typing import cast

import msgspec

from executor.contract import (
    Begin,
    Broken,
    ContinuousSettings,
    Fault,
    Loading,
    PaddedSettings,
    Report,
    SimulatedSettings,
    Stop,
    ToExecutor,
    Work,
)
from executor.engine import Engine
from executor.wire import Channel, Disconnected, WireError

# How long a freed seat waits for the daemon's answer. Without it the seat idles for a step; the
# daemon answers within a millisecond or two, also on a slow machine.
ANSWER_WAIT_MS = 3

ENGINES = MappingProxyType(
    {
        "simulated": ("executor.simulated:SimulatedEngine", SimulatedSettings),
        "continuous": ("executor.continuous:ContinuousEngine", ContinuousSettings),
        "padded": ("executor.padded:PaddedEngine", PaddedSettings),
    }
)


class Unusable(Exception):
    """What was asked for can never work; the message says why."""


def build(begin: Begin) -> Engine:
    """The engine that was asked for, not loaded yet. Raises Unusable."""
    if begin.kind not in ENGINES:
        known = ", ".join(sorted(ENGINES))
        raise Unusable(f"no executor of kind {begin.kind!r}, there are {known}")
    path, record = ENGINES[begin.kind]
    module, _, name = path.partition(":")
    try:
        settings = msgspec.convert(begin.settings, record)
        return cast(Engine, getattr(importlib.import_module(module), name)(settings))
    except msgspec.ValidationError as error:
        raise Unusable(f"settings of executor {begin.name!r} ({begin.kind}): {error}") from error
    except ImportError as error:
        raise Unusable(f"executors of kind {begin.kind!r} cannot be imported: {error}") from error


def first_words(channel: Channel[ToExecutor]) -> tuple[Begin, list[ToExecutor]]:
    """What to be, and what else came with that. Raises Disconnected, WireError."""
    messages: list[ToExecutor] = []
    while not messages:
        messages = channel.receive(None)
    begin, *rest = messages
    if not isinstance(begin, Begin):
        raise WireError(f"the first record was {type(begin).__name__}, not Begin")
    return begin, rest


def load(channel: Channel[ToExecutor], engine: Engine) -> None:
    """Make it ready and say so. Raises Unusable, Disconnected and whatever loading raises."""

    def progress(stage: str, fraction: float | None) -> None:
        channel.send(Loading(stage, fraction))

    try:
        ready = engine.load(progress)
    except ValueError as error:
        raise Unusable(str(error)) from error
    # Nothing of the model is garbage until the end. A full collection over the objects of torch
    # and transformers takes 170 ms, which is a step that everybody waits for.
    gc.collect()
    gc.freeze()
    channel.send(ready)


def serve(channel: Channel[ToExecutor], engine: Engine, messages: list[ToExecutor]) -> None:
    """Apply, step, report, until told to stop. Raises Disconnected.

    `messages` came before the first look. Waits only where there is nothing to step, and a moment
    where a seat has just been freed or the daemon said that it waits for steps.
    """
    is_awaited = False
    while True:
        for message in messages:
            if isinstance(message, Work):
                engine.apply(message)
                is_awaited = message.wait
            elif isinstance(message, Fault):
                inject(engine, message)
            elif isinstance(message, Stop):
                return
            else:
                raise WireError("a second Begin")
        if engine.has_work():
            report = engine.step()
            channel.send(report)
            wait_ms = ANSWER_WAIT_MS if is_awaited or _freed_a_seat(report) else 0
            messages = channel.receive(wait_ms if engine.has_work() else None)
        else:
            messages = channel.receive(None)


def inject(engine: Engine, fault: Fault) -> None:
    """Misbehave as told, if this engine can; a drill that it cannot do changes nothing."""
    try:
        engine.inject(fault)
    except ValueError as error:
        print(f"fault {fault.kind!r} was not injected: {error}", file=sys.stderr)


def _freed_a_seat(report: Report) -> bool:
    return bool(report.finished or report.released or report.returned)


def run(channel: Channel[ToExecutor]) -> int:
    """One executor from its first words to its last; the exit code."""
    try:
        begin, messages = first_words(channel)
        engine = build(begin)
        load(channel, engine)
        serve(channel, engine, messages)
        engine.close()
    except Disconnected:
        return 0
    except Exception as error:
        fatal = isinstance(error, Unusable)
        words = str(error) if fatal else f"{type(error).__name__}: {error}"
        with contextlib.suppress(Disconnected):
            channel.send(Broken(words, fatal))
        # What can never work is explained by its words; after them, since stderr may be broken.
        if not fatal:
            traceback.print_exc()
        return 1
    return 0


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent is gone, also in the middle of a step.

    Elsewhere the end of the connection ends it, at the next look.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> int:
    """The program. The daemon alone tells when to stop: terminals, service managers and `timeout`
    signal the whole group, and while the daemon drains its executors are needed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    die_with_parent()
    parser = argparse.ArgumentParser(prog="executor.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    sock = socket.socket(fileno=parser.parse_args().fd)
    sock.set_inheritable(False)
    return run(Channel(sock, ToExecutor))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # What an engine holds was let go by `close`; the interpreter's own tidying takes torch half a
    # second, and a parent that is gone waits for nobody.
    os._exit(code)
