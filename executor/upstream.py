"""When an engine behind HTTP is there, taken out and asked again, and what it is given meanwhile.

It has the same face and speaks the same messages as an executor in a process, from within the
daemon's event loop: nothing here computes or blocks.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from executor.contract import Fault, Key, Loading, Ready, Refusal, Returned, TextModel, Work
from executor.conversation import (
    Broken,
    Conversation,
    Failed,
    Full,
    Lines,
    Refused,
)
from executor.dialects import body, rank
from executor.probe import About, Probe, Unreachable
from executor.process import Events, RestartPolicy, State
from executor.scrape import Scraper
from executor.telling import Telling
from executor.upstream_settings import UpstreamSettings

# Servers close idle connections after 5 s and more: who comes first avoids a race.
KEEP_ALIVE_S = 4.0
# What is added to a client's request, and left out where an engine refuses it.
_OURS = ("priority", "stream_options")
_UNEXPECTED = re.compile(r"[Uu]nexpected (?:fields|keys)[^{]*\{([^}]*)\}")


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
        self._lines: Lines | None = None
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._about: About | None = None
        self._down: asyncio.Future[str] | None = None
        self._scraper: Scraper | None = None
        self._telling: Telling | None = None
        self._talks: dict[Key, Conversation] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubt: asyncio.Task[None] | None = None
        self._without: set[str] = set()
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

    def send(self, work: Work) -> None:
        """See Executor."""
        if not self.ready or self._telling is None:
            return
        self._telling.epoch = work.epoch
        for key in work.release:
            talk = self._talks.get(key)
            if talk is None:
                self._telling.released(key)
            else:
                self._telling.forget(talk)
                talk.let_go()
        for submit in work.submit:
            assert self._lines is not None
            talk = Conversation(submit, self._telling, self._lines)
            self._talks[talk.key] = talk
            self._telling.begin()
            task = asyncio.get_running_loop().create_task(self._converse(talk))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def fault(self, fault: Fault) -> None:
        """An engine of somebody else does not misbehave on demand."""

    async def stop(self, grace_s: float) -> None:
        """See Executor."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self._hang_up()
        if self._session is not None:
            await self._session.close()
        self._set(State.STOPPED, "stopped")

    def check_progress(self, now: float, in_flight: int) -> None:
        """See Executor."""
        if not self.ready or self._telling is None:
            return
        if in_flight == 0:
            self._telling.moved_at = now
        still_s = now - self._telling.moved_at
        if still_s >= self._stall_after_s:
            self._lose(f"stalled: {still_s:.1f} s without a token, {in_flight} in flight")

    def view(self, now: float) -> dict[str, Any]:
        """What it is, and what it says of itself."""
        about, scraper = self._about, self._scraper
        return {
            "url": self._settings.url,
            "engine": None if about is None else about.dialect.name,
            "engine_model": None if about is None else about.model,
            "scrape": None if scraper is None else scraper.view(now, len(self._talks)),
        }

    # --- its life ---------------------------------------------------------------------------

    async def _supervise(self) -> None:
        self._open()
        while True:
            self.incarnation += 1
            await self._bring_up()
            assert self._down is not None
            reason = await self._down
            delay_s = self._count_loss(reason)
            self._set(State.LOST, f"{reason}; asked again in {delay_s:g} s")
            await self._hang_up()
            self._tell_lost(reason, delay_s)
            await self._sleep(delay_s)

    def _open(self) -> None:
        settings = self._settings
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.api_key:
            headers["Authorization"] = f"Bearer {settings.api_key}"
        self._lines = Lines(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s)
        self._session = aiohttp.ClientSession(
            connector=self._lines, headers=headers, timeout=timeout
        )
        self._probe = Probe(self._session, settings)

    async def _bring_up(self) -> None:
        """Ask until it is there, and say so."""
        tries = 0
        while True:
            try:
                about = await self._probe.about()
                break
            except Unreachable as error:
                tries += 1
                pause_s = self._restart.delay_s(tries)
                words = f"waits for {self._settings.url}: {error}"
                if words != self.words:
                    self._set(State.LOADING, words)
                    self._events.on_loading(self.name, Loading(words))
                await self._sleep(pause_s)
        self._about, self._ready_at = about, self._clock()
        self._down = asyncio.get_running_loop().create_future()
        self._scraper = Scraper(
            self._probe.metrics,
            interval_s=self._settings.scrape_interval_s,
            clock=self._clock,
            sleep=self._sleep,
        )
        self._telling = Telling(
            self.name,
            self.incarnation,
            self._events,
            scraper=self._scraper,
            capacity=about.capacity,
            clock=self._clock,
            on_error=lambda error: self._lose(f"handler: {error!r}"),
            talks=self._talks,
        )
        self._spawn(self._scraper.run())
        self._set(State.READY, f"{about.capacity.model} on {about.capacity.device}")
        try:
            self._events.on_ready(
                self.name,
                self.incarnation,
                Ready(capacity=about.capacity, text=TextModel(kind="engine")),
            )
        except Exception as error:
            self._report_error(f"on_ready of executor {self.name} raised", error)
            self._lose(f"handler: {error!r}")

    def _lose(self, reason: str) -> None:
        if self._down is not None and not self._down.done():
            self._down.set_result(reason)
            # From here on it is given nothing.
            self._set(State.LOST, reason)

    async def _hang_up(self) -> None:
        """End everything that goes on with it; nothing more is told of that."""
        if self._telling is not None:
            self._telling.close()
        self._telling, self._scraper, self._doubt = None, None, None
        self._talks = {}
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

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

    # --- what goes on with it ---------------------------------------------------------------

    async def _converse(self, talk: Conversation) -> None:
        """One attempt from its beginning to its end."""
        end = await self._ask(talk)
        if isinstance(end, Broken) and not talk.released.is_set():
            # One connection may break by itself, or all of them because the engine is gone.
            await self._is_there()
        if isinstance(end, Full):
            # It keeps its seat for the pause: nobody else would fare better.
            try:
                async with asyncio.timeout(end.pause_s):
                    await talk.released.wait()
            except TimeoutError:
                pass
        telling = self._telling
        if self._talks.pop(talk.key, None) is None or telling is None:
            return
        if talk.released.is_set():
            telling.released(talk.key)
        elif end is not None:
            telling.returned(talk, _returned(talk, end))
        telling.rest()

    async def _ask(self, talk: Conversation) -> Any:
        settings, about = self._settings, self._about
        assert about is not None
        assert self._session is not None
        assert talk.submit.ask is not None
        ask = talk.submit.ask
        while True:
            priority = rank(about.dialect, talk.submit.priority, settings.priorities)
            content = body(
                ask, about.dialect, model=about.model, priority=priority, without=self._without
            )
            try:
                end = await talk.hold(self._session, settings.url + ask.path, content)
            except asyncio.CancelledError:
                # Let go before there was a connection to say so on.
                if not talk.released.is_set() or self._telling is None:
                    raise
                return None
            if not isinstance(end, Refused):
                return end
            if not (fields := self._refused_fields(end.refusal)):
                return end
            self._without |= fields
            if self._telling is not None:
                named = ", ".join(sorted(fields))
                self._telling.warn(f"the engine refuses {named}: left out from now on")

    def _refused_fields(self, refusal: Refusal) -> set[str]:
        """Fields that an engine names as the reason, and that were not left out yet: any of those
        that it does not know, else only those that were added here."""
        words = f"{refusal.param} {refusal.message}"
        if (found := _UNEXPECTED.search(words)) is not None:
            named = {name.strip(" '\"") for name in found[1].split(",")}
        else:
            named = {name for name in _OURS if name in words}
        return named - self._without - {"", "messages", "prompt", "model", "stream"}

    async def _is_there(self) -> None:
        """Ask the engine whether it is there, once for all who doubt it; it is lost if not."""
        if self._doubt is None or self._doubt.done():
            self._doubt = self._spawn(self._look())
        await asyncio.shield(self._doubt)

    async def _look(self) -> None:
        try:
            await self._probe.alive()
        except Unreachable as error:
            self._lose(f"disconnected: {error}")

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _report_error(self, message: str, error: BaseException) -> None:
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": message, "exception": error})

    def _set(self, state: State, words: str) -> None:
        self.state = state
        self.words = words


def _returned(talk: Conversation, end: Refused | Full | Failed | Broken) -> Returned:
    """What it means for the request that an attempt ended so."""
    request_id, attempt = talk.key.request_id, talk.key.attempt
    if isinstance(end, Refused):
        told = end.refusal
        return Returned(request_id, attempt, "refused", told.message, True, True, told)
    if isinstance(end, Full):
        return Returned(request_id, attempt, "unavailable", end.words, alone=True)
    fatal = isinstance(end, Failed) and end.fatal
    return Returned(request_id, attempt, "error", end.words, fatal, alone=True)
