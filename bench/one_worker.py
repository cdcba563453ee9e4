"""One executor's process with nobody else around: started as the daemon does, heard, and ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from executor.child import Child, spawn
from executor.contract import Begin, Broken, FromExecutor, Loading, Ready, Report

Told = Callable[[str], None]


class WorkerFailed(Exception):
    """The executor could not be started, died or stood still; the message says which."""


@dataclass(slots=True, eq=False)
class OneWorker:
    """A worker that is ready. `stall_after_s`: a step takes less than this, or it never ends."""

    ready: Ready
    stall_after_s: float
    _child: Child
    _messages: asyncio.Queue[FromExecutor | str]

    @property
    def pid(self) -> int:
        """Its process."""
        return self._child.pid

    def send(self, message: msgspec.Struct) -> None:
        """Tell it something; it listens between two steps."""
        self._child.send(message)

    async def report(self) -> Report:
        """The next step that it took. Raises WorkerFailed."""
        message = await _next(self._messages, self.stall_after_s, "it took no step for")
        if not isinstance(message, Report):
            raise WorkerFailed(f"it said {type(message).__name__} where a report was due")
        return message


@asynccontextmanager
async def worker(
    begin: Begin, *, load_timeout_s: float, stall_after_s: float, told: Told
) -> AsyncIterator[OneWorker]:
    """A worker for as long as the context lasts; whatever ends it, no process is left.

    `told` hears what it does until it is ready. Raises WorkerFailed.
    """
    messages: asyncio.Queue[FromExecutor | str] = asyncio.Queue()
    try:
        child = await spawn(begin, messages.put_nowait)
    except OSError as error:
        raise WorkerFailed(f"its process cannot be started: {error}") from error
    end = asyncio.create_task(_announce_end(child, messages))
    try:
        ready = await _loaded(messages, load_timeout_s, told)
        yield OneWorker(ready, stall_after_s, child, messages)
    finally:
        await child.reaped()
        await end


async def _announce_end(child: Child, messages: asyncio.Queue[FromExecutor | str]) -> None:
    messages.put_nowait(await child.ended())


async def _loaded(
    messages: asyncio.Queue[FromExecutor | str], load_timeout_s: float, told: Told
) -> Ready:
    deadline = asyncio.get_running_loop().time() + load_timeout_s
    while True:
        left_s = max(0.0, deadline - asyncio.get_running_loop().time())
        message = await _next(messages, left_s, "it was not ready in time:", load_timeout_s)
        if isinstance(message, Ready):
            return message
        if isinstance(message, Loading):
            how_far = "" if message.fraction is None else f" ({message.fraction:.0%})"
            told(message.stage + how_far)


async def _next(
    messages: asyncio.Queue[FromExecutor | str],
    within_s: float,
    complaint: str,
    shown_s: float | None = None,
) -> FromExecutor:
    try:
        message = await asyncio.wait_for(messages.get(), within_s)
    except TimeoutError:
        waited_s = within_s if shown_s is None else shown_s
        raise WorkerFailed(f"{complaint} {waited_s:g} s") from None
    if isinstance(message, Broken):
        raise WorkerFailed(message.error)
    if isinstance(message, str):
        raise WorkerFailed(f"its process ended ({message})")
    return message
