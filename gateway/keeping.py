"""The file in which what was learnt outlives a restart: when it is read and written, and how."""

from __future__ import annotations

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from controller.core import Core
from controller.errors import ConfigError
from controller.kept import (
    MOST_BYTES,
    VERSION,
    Ceiling,
    Kept,
    KeptExecutor,
    KeptGroup,
    KeptLimits,
    Unusable,
    dump,
    load,
    model_of,
    remaining,
)
from controller.loop import ControlLoop
from executor.contract import Capacity
from policies.contract import Limits

SAVE_EVERY_S = 60.0
# Its limits are the configured ones, whatever they were before.
STATIC = "static"


class Keeper:
    """Owns the state file of a daemon. What cannot be used is told and left aside, never a failure.

    `kinds` are those of the executors, `begins_with` the limits that are configured. What is kept
    of an executor is taken up when it is ready for the first time, if it is still the same.
    """

    def __init__(
        self,
        path: Path,
        core: Core,
        *,
        kinds: Mapping[str, str],
        begins_with: Limits,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError where the folder of the file is missing."""
        self._path = path
        self._core = core
        self._kinds = kinds
        self._begins_with = _limits(begins_with)
        self._clock = clock
        self._wall = wall
        self._ready: dict[str, Capacity] = {}
        self._taken_up: set[str] = set()
        self._failing = False
        self._one_at_a_time = threading.Lock()
        self._log: Any = structlog.get_logger("headway.state")
        if not path.parent.is_dir():
            raise ConfigError(f"control.state_file: there is no folder {path.parent}")
        self._old = self._read()

    def _read(self) -> Kept | None:
        try:
            data = read(self._path)
            return None if data is None else load(data, now=self._wall())
        except Unusable as error:
            self._log.warning("state not used", path=str(self._path), why=str(error))
            return None

    # --- at the start -----------------------------------------------------------------------

    def recall(self, executor: str, capacity: Capacity) -> None:
        """An executor is ready: the first time, take up what is kept of it and of its group."""
        first, self._ready[executor] = executor not in self._ready, capacity
        if not first or self._old is None or (kept := self._old.executors.get(executor)) is None:
            return
        kind = self._kinds[executor]
        try:
            model = model_of(kept, kind=kind, model=capacity.model, device=capacity.device)
        except Unusable as error:
            self._log.warning("state not used", executor=executor, why=str(error))
            return
        self._core.observer.executors[executor].model = model
        group = self._core.batcher.executors[executor].group
        age_s = round(max(0.0, self._wall() - self._old.saved_at))
        self._log.info("state taken up", executor=executor, steps=kept.sums.samples, age_s=age_s)
        if group not in self._taken_up and (of_group := self._old.groups.get(group)) is not None:
            self._taken_up.add(group)
            self._take_up(self._core.loops[group], of_group, saved_at=self._old.saved_at)

    def _take_up(self, loop: ControlLoop, kept: KeptGroup, *, saved_at: float) -> None:
        if (ceiling := kept.ceiling) is not None:
            left_s = remaining(ceiling, saved_at=saved_at, now=self._wall())
            loop.guard.ceiling.recall(ceiling.tokens, left_s, self._clock())
        # Who configures other limits wants to begin with these, and who observes moves none.
        moves = loop.policy.name != STATIC and loop.mode == "apply"
        if moves and kept.began_with == self._begins_with:
            was = kept.limits
            loop.begin_again(Limits(was.max_batch_size, was.max_batch_tokens, was.wait_timeout_s))

    # --- while it runs ----------------------------------------------------------------------

    async def run(self) -> None:
        """Write it every minute, until cancelled."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            if (kept := self.kept()) is not None:
                await asyncio.to_thread(self._write, kept)

    def save(self) -> None:
        """Write it now."""
        if (kept := self.kept()) is not None:
            self._write(kept)

    def kept(self) -> Kept | None:
        """What is known now; of executors that were not ready yet, what was known before. None:
        none was ready, and there is nothing to say."""
        if not self._ready:
            return None
        old, core, now = self._old, self._core, self._clock()
        executors = {} if old is None else dict(old.executors)
        groups = {} if old is None else dict(old.groups)
        for name, capacity in self._ready.items():
            if (sums := core.observer.executors[name].model.sums()) is not None:
                kind = self._kinds[name]
                executors[name] = KeptExecutor(kind, capacity.model, capacity.device, sums)
            group = core.batcher.executors[name].group
            loop = core.loops[group]
            # What somebody's hand holds for a while, nobody has learnt.
            limits = loop.limits if loop.pin is None else loop.pin.before
            ceiling = loop.guard.ceiling.known(now)
            groups[group] = KeptGroup(
                limits=_limits(limits),
                began_with=self._begins_with,
                ceiling=None if ceiling is None else Ceiling(*ceiling),
            )
        here = core.batcher.executors
        return Kept(
            version=VERSION,
            saved_at=self._wall(),
            executors={name: one for name, one in executors.items() if name in here},
            groups={name: one for name, one in groups.items() if name in core.loops},
        )

    def _write(self, kept: Kept) -> None:
        try:
            with self._one_at_a_time:
                write(self._path, dump(kept))
        except OSError as error:
            if not self._failing:
                self._log.error("state not written", path=str(self._path), why=error.strerror)
            self._failing = True
        else:
            self._failing = False


def read(path: Path) -> bytes | None:
    """The content of a state file, None where there is none. Raises Unusable."""
    try:
        # What is no file (a pipe, a device) might keep whoever opens it waiting.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unusable("it is no file")
        with path.open("rb") as file:
            return file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror}") from error


def write(path: Path, data: bytes) -> None:
    """Put a file in place at once: whatever happens, there is the old content or the new. Nobody
    but its owner may read it. Raises OSError."""
    new = path.with_name(f"{path.name}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(new, flags, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    os.replace(new, path)


def _limits(limits: Limits) -> KeptLimits:
    return KeptLimits(limits.max_batch_size, limits.max_batch_tokens, limits.wait_timeout_s)
