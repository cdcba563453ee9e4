"""When an executor's process is started, given up and started again, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from executor.child import Child, spawn
from executor.contract import Begin, Broken, Fault, FromExecutor, Loading, Ready, Report, Stop, Work

REAP_WAIT_S = 5.0


class State(StrEnum):
    """Where an executor's process is in its life."""

    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How long to wait before the next start: `first_s`, doubled at each loss, at most `cap_s`.

    A process that was ready for `healthy_after_s` had a good life: its loss counts as the first.
    """

    first_s: float = 0.5
    factor: float = 2.0
    cap_s: float = 30.0
    healthy_after_s: float = 60.0

    def delay_s(self, losses: int) -> float:
        """Seconds to wait after the `losses`-th loss in a row, counted from 1."""
        exponent = min(losses - 1, 64)  # far beyond any cap, and no float overflows
        return float(min(self.cap_s, self.first_s * self.factor**exponent))


class Events(Protocol):
    """Who is told. Called on the event loop; what raises here costs this incarnation its life."""

    def on_loading(self, name: str, loading: Loading) -> None:
        """It says what it is doing before it is ready."""

    def on_ready(self, name: str, incarnation: int, ready: Ready) -> None:
        """It takes work from now on."""

    def on_report(self, name: str, incarnation: int, report: Report) -> None:
        """A step was taken. The worker waits for an answer (`send`) if a seat was freed."""

    def on_lost(self, name: str, incarnation: int, reason: str, restart_in_s: float | None) -> None:
        """It is gone with everything that it was given; no report of it comes after this.

        `reason` is `code: words`, the code one of `killed` (by a signal from outside), `exited`,
        `broken` (it said so itself), `stalled`, `load_timeout`, `garbled`, `handler` (one of these
        methods raised), `disconnected`, `not_started`. `restart_in_s` None: it does not come back.
        """


class ExecutorProcess:
    """One executor in a child process, restarted with back-off for as long as that can help.

    `kind` and `settings` are a row of `executor.worker.ENGINES` and the fields of its record.
    With work in flight and no report for `stall_after_s` it is killed and restarted; likewise when
    it is not ready `load_timeout_s` after its start. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        settings: dict[str, Any],
        events: Events,
        *,
        restart: RestartPolicy | None = None,
        stall_after_s: float = 30.0,
        load_timeout_s: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self._begin = Begin(name, kind, settings)
        self._events = events
        self._restart = restart or RestartPolicy()
        self._stall_after_s = stall_after_s
        self._load_timeout_s = load_timeout_s
        self._clock = clock
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._child: Child | None = None
        self._stopping = False
        self._broken: Broken | None = None
        self._losses = 0
        self._started_at = 0.0
        self._ready_at: float | None = None
        self._moved_at = 0.0
        self.state = State.STOPPED
        self.words = "not started"
        self.incarnation = 0

    @property
    def ready(self) -> bool:
        """Whether it takes work now."""
        return self.state is State.READY

    @property
    def pid(self) -> int | None:
        """The process id while there is a living process."""
        alive = self.state in (State.STARTING, State.LOADING, State.READY)
        return self._child.pid if alive and self._child is not None else None

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return max(0, self.incarnation - 1)

    def start(self) -> None:
        """Begin to start it, on the running event loop; harmless when it was started before."""
        if self._task is None:
            self._set(State.STARTING, "starting a process")
            self._task = asyncio.get_running_loop().create_task(self._supervise())
            self._task.add_done_callback(self._on_supervisor_done)

    def send(self, work: Work) -> None:
        """Write to the worker at once. Dropped when it is not ready: `on_lost` has said so."""
        if self.ready and self._child is not None:
            self._child.send(work)

    def fault(self, fault: Fault) -> None:
        """Let a simulated executor misbehave. Dropped when it is not ready."""
        if self.ready and self._child is not None:
            self._child.send(fault)

    async def stop(self, grace_s: float) -> None:
        """End it for good: after its current step, by force after `grace_s`. No `on_lost` comes.

        One that is not ready has nothing to finish and is killed at once.
        """
        self._stopping = True
        if self._task is not None:
            if self.ready and self._child is not None:
                self._child.send(Stop())
                await asyncio.wait({self._task}, timeout=grace_s)
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._child is not None:
            with contextlib.suppress(TimeoutError):  # the kernel itself cannot end it yet
                await asyncio.wait_for(self._child.reaped(), REAP_WAIT_S)
        self._set(State.STOPPED, "stopped")

    def check_progress(self, now: float, in_flight: int) -> None:
        """Kill it if it is stuck; to be called at every tick with the sequences that it holds."""
        if self._child is None:
            return
        if self.state is State.READY:
            if in_flight == 0:
                self._moved_at = now
            still_s = now - self._moved_at
            if still_s >= self._stall_after_s:
                self._child.kill(f"stalled: {still_s:.1f} s without a step, {in_flight} in flight")
        elif self.state in (State.STARTING, State.LOADING):
            loading_s = now - self._started_at
            if loading_s >= self._load_timeout_s:
                self._child.kill(f"load_timeout: not ready after {loading_s:.1f} s")

    def view(self, now: float) -> dict[str, Any]:
        """Nothing: all that there is to say of a process is its state."""
        return {}

    async def _supervise(self) -> None:
        while True:
            reason = await self._live()
            if self._stopping:
                return
            delay_s = self._count_loss()
            back = "does not come back" if delay_s is None else f"back in {delay_s:g} s"
            self._set(State.LOST, f"{reason}; {back}")
            self._tell_lost(reason, delay_s)
            if delay_s is None:
                return
            await self._sleep(delay_s)
            if self._child is not None:
                await self._child.reaped()
                self._child = None

    async def _live(self) -> str:
        """One incarnation from its birth to its end; answers why it ended."""
        self.incarnation += 1
        self._started_at = self._clock()
        self._ready_at = None
        self._broken = None
        self._set(State.STARTING, "starting a process")
        try:
            self._child = await spawn(self._begin, self._on_message)
        except OSError as error:
            return f"not_started: {error}"
        reason = await self._child.ended()
        return reason if self._broken is None else f"broken: {self._broken.error}"

    def _on_message(self, message: FromExecutor) -> None:
        if isinstance(message, Report):
            self._moved_at = self._clock()
            self._events.on_report(self.name, self.incarnation, message)
        elif isinstance(message, Loading):
            how_far = "" if message.fraction is None else f" ({message.fraction:.0%})"
            self._set(State.LOADING, message.stage + how_far)
            self._events.on_loading(self.name, message)
        elif isinstance(message, Ready):
            self._ready_at = self._moved_at = self._clock()
            self._set(State.READY, f"{message.capacity.model} on {message.capacity.device}")
            self._events.on_ready(self.name, self.incarnation, message)
        else:
            self._broken = message

    def _count_loss(self) -> float | None:
        """Seconds until the next start, or None if there is none."""
        if self._broken is not None and self._broken.fatal:
            return None
        if self._ready_at is not None:
            healthy_s = self._clock() - self._ready_at
            if healthy_s >= self._restart.healthy_after_s:
                self._losses = 0
        self._losses += 1
        return self._restart.delay_s(self._losses)

    def _tell_lost(self, reason: str, delay_s: float | None) -> None:
        try:
            self._events.on_lost(self.name, self.incarnation, reason, delay_s)
        except Exception as error:
            # Whoever could not bear to hear of it still wants the executor back.
            self._report_error(f"on_lost of executor {self.name} raised", error)

    def _on_supervisor_done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._set(State.LOST, f"its supervisor failed: {error!r}")
            self._report_error(f"the supervisor of executor {self.name} failed", error)

    def _report_error(self, message: str, error: BaseException) -> None:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": message, "exception": error})

    def _set(self, state: State, words: str) -> None:
        self.state = state
        self.words = words
