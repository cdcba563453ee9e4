"""What goes on with an engine behind HTTP while it is there: what it is given, and what it lets go.

One exchange is one incarnation of the engine: from the instant at which it is there until it is
taken out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from executor.contract import Key, Refusal, Returned, Submit, Work
from executor.process import Events
from executor.upstream_dialects import body, rank
from executor.upstream_probe import About, Probe, Unreachable
from executor.upstream_scrape import Scraper
from executor.upstream_settings import UpstreamSettings
from executor.upstream_talk import Broken, End, Failed, Full, Lines, Refused, Talk
from executor.upstream_telling import Telling

# What is added to a client's request, and left out where an engine refuses it.
_OURS = ("priority", "stream_options")
# Without these there is nothing to ask for.
_NEEDED = frozenset({"messages", "prompt", "model", "stream"})
_UNEXPECTED = re.compile(r"[Uu]nexpected (?:fields|keys)[^{]*\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class Connection:
    """How one engine is reached. `without` are the fields that it is known to refuse."""

    settings: UpstreamSettings
    session: aiohttp.ClientSession
    lines: Lines
    probe: Probe
    without: set[str] = field(default_factory=set)


class Exchange:
    """Everything that is under way with one incarnation. `lose` ends it, with the reason."""

    def __init__(
        self,
        connection: Connection,
        about: About,
        *,
        name: str,
        incarnation: int,
        events: Events,
        clock: Callable[[], float],
        lose: Callable[[str], None],
    ) -> None:
        self.about = about
        self._connection = connection
        self._clock = clock
        self._lose = lose
        self._talks: dict[Key, Talk] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._doubt: asyncio.Task[None] | None = None
        self._scraper = Scraper(
            connection.probe.metrics,
            interval_s=connection.settings.scrape_interval_s,
            clock=clock,
        )
        if about.metrics:
            # The first look was taken when it was found.
            with suppress(ValueError):
                self._scraper.take(about.metrics)
        self._telling = Telling(
            name,
            incarnation,
            events,
            scraper=self._scraper,
            capacity=about.capacity,
            clock=clock,
            on_error=lambda error: lose(f"handler: {error!r}"),
            talks=self._talks,
        )
        self._spawn(self._scraper.run())

    def send(self, work: Work) -> None:
        """Let go of some, begin others."""
        self._telling.epoch = work.epoch
        for key in work.release:
            talk = self._talks.get(key)
            if talk is None:
                self._telling.released(key)
            else:
                self._telling.forget(talk)
                talk.let_go()
        for submit in work.submit:
            talk = Talk(submit, self._telling, self._connection.lines)
            self._talks[talk.key] = talk
            self._telling.begin()
            self._spawn(self._converse(talk))

    def still_s(self, now: float, in_flight: int) -> float:
        """For how long work has been in flight without a token."""
        if in_flight == 0:
            self._telling.moved_at = now
        return now - self._telling.moved_at

    def view(self, now: float) -> dict[str, Any]:
        """What the engine says of itself, as JSON."""
        return self._scraper.view(now, len(self._talks))

    async def close(self) -> None:
        """End everything; nothing more is told."""
        self._telling.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _converse(self, talk: Talk) -> None:
        """One attempt from its beginning to its end."""
        end = await self._ask(talk)
        if isinstance(end, Broken) or (isinstance(end, Full) and end.doubtful):
            # One connection may break by itself, or all of them because the engine is gone.
            await self._is_there()
        if isinstance(end, Full):
            # It has answered, which is a sign of life.
            self._telling.moved_at = self._clock()
            # It keeps its seat for the pause: nobody else would fare better.
            with suppress(TimeoutError):
                async with asyncio.timeout(end.pause_s):
                    await talk.released.wait()
        if self._talks.pop(talk.key, None) is None:
            return
        if talk.released.is_set():
            self._telling.released(talk.key)
        elif end is not None:
            self._telling.returned(_returned(talk.key, end))

    async def _ask(self, talk: Talk) -> End:
        """Ask, and ask again without what the engine refuses."""
        connection = self._connection
        while True:
            url, content = self._request(talk.submit)
            try:
                end = await talk.hold(connection.session, url, content)
            except asyncio.CancelledError:
                # Let go before there was a connection to say so on.
                if talk.released.is_set():
                    return None
                raise
            if not isinstance(end, Refused):
                return end
            if not (fields := _refused_fields(end.refusal) - connection.without):
                return end
            connection.without.update(fields)
            self._telling.warn(f"the engine refuses {', '.join(sorted(fields))}: left out from now")

    def _request(self, submit: Submit) -> tuple[str, bytes]:
        settings, about, ask = self._connection.settings, self.about, submit.ask
        assert ask is not None
        content = body(
            ask,
            about.dialect,
            model=about.model,
            priority=rank(about.dialect, submit.priority, settings.priorities),
            without=self._connection.without,
        )
        return settings.url + ask.path, content

    async def _is_there(self) -> None:
        """Ask the engine whether it is there, once for all who doubt it; it is lost if not."""
        if self._doubt is None or self._doubt.done():
            self._doubt = self._spawn(self._look())
        await asyncio.shield(self._doubt)

    async def _look(self) -> None:
        try:
            await self._connection.probe.alive()
        except Unreachable as error:
            self._lose(f"disconnected: {error}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A mistake here: whoever it concerns must not wait for ever.
            self._lose(f"handler: {error!r}")


def _refused_fields(refusal: Refusal) -> set[str]:
    """Fields that an engine names as the reason: any of those that it does not know, else only
    those that were added here."""
    words = f"{refusal.param} {refusal.message}"
    if (found := _UNEXPECTED.search(words)) is not None:
        named = {name.strip(" '\"") for name in found[1].split(",")}
    else:
        named = {name for name in _OURS if name in words}
    return {name for name in named if name} - _NEEDED


def _returned(key: Key, end: Refused | Full | Failed | Broken) -> Returned:
    """What it means for the request that an attempt ended so."""
    if isinstance(end, Refused):
        told = end.refusal
        return Returned(*_parts(key), "refused", told.message, True, True, told)
    if isinstance(end, Full):
        return Returned(*_parts(key), "unavailable", end.words, alone=True)
    fatal = isinstance(end, Failed) and end.fatal
    return Returned(*_parts(key), "error", end.words, fatal, alone=True)


def _parts(key: Key) -> tuple[str, int]:
    return key.request_id, key.attempt
