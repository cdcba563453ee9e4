"""When an engine behind HTTP is there, when it is taken out, and when it is asked again.

It has the same face and speaks the same messages as an executor in a process, from within the
daemon's event loop: nothing here computes or blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from executor.contract import Fault, Loading, Ready, TextModel, Work
from executor.process import Events, RestartPolicy, State
from executor.upstream_exchange import Connection, Exchange
from executor.upstream_probe import About, Probe, Unreachable
from executor.upstream_settings import UpstreamSettings
from executor.upstream_talk import Lines


class UpstreamExecutor:
    """One engine behind HTTP, out of service whenever it is not there or makes no progress.

    With work in flight and no token for `stall_after_s` it is taken out; then, and when it cannot
    be reached, it is asked again with the pauses of `restart`. `clock` is monotonic, in seconds.
    """

    def __init__(
        self,
        name: str,
        settings: UpstreamSettings,
        events: Events,
        *,
        restart: RestartPolicy | None = None,
        stall_after_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.name = name
        self.state = State.STOPPED
        self.words = "not started"
        self.incarnation = 0
        self._settings = settings
        self._events = events
        self._restart = restart or RestartPolicy()
        self._stall_after_s = stall_after_s
        self._clock = clock
        self._sleep = sleep
        self._task: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None
        self._down: asyncio.Future[str] | None = None
        self._losses = 0
        self._ready_at = 0.0

    @property
    def ready(self) -> bool:
        """See Executor."""
        return self.state is State.READY

    @property
    def pid(self) -> int | None:
        """None: it is no process of ours."""
        return None

    @property
    def restarts(self) -> int:
        """See Executor."""
        return max(0, self.incarnation - 1)

    def start(self) -> None:
        """See Executor."""
        if self._task is None:
            self._set(State.STARTING, f"asks {self._settings.url}")
            self._task = asyncio.get_running_loop().create_task(self._supervise())
            self._task.add_done_callback(self._on_supervisor_done)

    def send(self, work: Work) -> None:
        """See Executor."""
        if self.ready and self._exchange is not None:
            self._exchange.send(work)

    def fault(self, fault: Fault) -> None:
        """Nothing: somebody else's engine does not misbehave on demand."""

    async def stop(self, grace_s: float) -> None:
        """See Executor. There is nothing to wait for: the engine goes on without us."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        self._set(State.STOPPED, "stopped")

    def check_progress(self, now: float, in_flight: int) -> None:
        """See Executor."""
        if not self.ready or self._exchange is None:
            return
        still_s = self._exchange.still_s(now, in_flight)
        if still_s >= self._stall_after_s:
            self._lose(f"stalled: {still_s:.1f} s without a token, {in_flight} in flight")

    def view(self, now: float) -> dict[str, Any]:
        """What it is, and what it says of itself."""
        there = self._exchange
        return {
            "url": self._settings.url,
            "engine": None if there is None else there.about.dialect.name,
            "engine_model": None if there is None else there.about.model,
            "scrape": None if there is None else there.view(now),
        }

    async def _supervise(self) -> None:
        async with self._session() as (session, lines):
            settings = self._settings
            connection = Connection(settings, session, lines, Probe(session, settings))
            while True:
                self.incarnation += 1
                about = await self._find(connection.probe)
                reason = await self._serve(connection, about)
                delay_s = self._count_loss(reason)
                self._set(State.LOST, f"{reason}; asked again in {delay_s:g} s")
                self._tell_lost(reason, delay_s)
                await self._sleep(delay_s)

    async def _find(self, probe: Probe) -> About:
        """Ask until it is there."""
        tries = 0
        while True:
            try:
                return await probe.about()
            except Unreachable as error:
                tries += 1
                words = f"waits for {self._settings.url}: {error}"
                if words != self.words:
                    self._set(State.LOADING, words)
                    self._events.on_loading(self.name, Loading(words))
                await self._sleep(self._restart.delay_s(tries))

    async def _serve(self, connection: Connection, about: About) -> str:
        """One incarnation while it is there; answers why it was taken out."""
        self._ready_at = self._clock()
        self._down = asyncio.get_running_loop().create_future()
        self._exchange = Exchange(
            connection,
            about,
            name=self.name,
            incarnation=self.incarnation,
            events=self._events,
            clock=self._clock,
            lose=self._lose,
        )
        self._set(State.READY, f"{about.capacity.model} on {about.capacity.device}")
        ready = Ready(capacity=about.capacity, text=TextModel(kind="engine"))
        try:
            try:
                self._events.on_ready(self.name, self.incarnation, ready)
            except Exception as error:
                self._report_error(f"on_ready of executor {self.name} raised", error)
                self._lose(f"handler: {error!r}")
            return await self._down
        finally:
            exchange, self._exchange = self._exchange, None
            await exchange.close()

    def _lose(self, reason: str) -> None:
        """Take it out: from here on it is given nothing."""
        if self._down is not None and not self._down.done():
            self._down.set_result(reason)
            self._set(State.LOST, reason)

    def _count_loss(self, reason: str) -> float:
        """Seconds until it is asked again."""
        healthy_s = self._clock() - self._ready_at
        # One that stalls again and again may take a long time to do so each time.
        if healthy_s >= self._restart.healthy_after_s and not reason.startswith("stalled"):
            self._losses = 0
        self._losses += 1
        return self._restart.delay_s(self._losses)

    def _tell_lost(self, reason: str, delay_s: float) -> None:
        try:
            self._events.on_lost(self.name, self.incarnation, reason, delay_s)
        except Exception as error:
            # Whoever could not bear to hear of it still wants the engine back.
            self._report_error(f"on_lost of executor {self.name} raised", error)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[tuple[aiohttp.ClientSession, Lines]]:
        settings = self._settings
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        # The ledger bounds what is in flight; a queue of connections would be one behind the queue.
        # Each has one use: engines close idle ones when they like, llama.cpp at once, and then
        # nobody could tell a request that was lost from one that never arrived.
        lines = Lines(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s)
        async with aiohttp.ClientSession(
            connector=lines, headers=headers, timeout=timeout
        ) as session:
            yield session, lines

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
