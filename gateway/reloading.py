"""When the configuration is loaded again, and what is told of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from aiohttp import hdrs, web

from controller.config import Config
from controller.config_diff import Change, changes
from controller.config_load import Loaded, Source
from controller.errors import ConfigError
from gateway.asking import aside
from gateway.front import Front
from gateway.in_force import InForce, Prepared, notes
from gateway.own_code import reach
from gateway.switching import BUILD_TIMEOUT_S
from metrics.instruments import Instruments

# How often the file is looked at. It has to look the same twice: an editor may still be writing.
LOOK_S = 1.0

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What a reload changed."""

    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def view(self) -> dict[str, Any]:
        """As JSON."""
        return {"changed": [change.view() for change in self.changes], "notes": list(self.notes)}


class Reloader:
    """Loads the configuration again: on SIGHUP (`ask`), `POST /-/reload`, or change of the file.

    All or nothing: read and checked beside the event loop, applied on it in one go, one reload at a
    time. What is wrong, or needs a restart, changes nothing.
    """

    def __init__(
        self,
        source: Source,
        in_force: InForce,
        front: Front,
        *,
        instruments: Instruments,
        build_timeout_s: float = BUILD_TIMEOUT_S,
    ) -> None:
        self._source = source
        self._build_timeout_s = build_timeout_s
        self._in_force = in_force
        self._front = front
        self._instruments = instruments
        self._one_at_a_time = asyncio.Lock()
        self._asked = asyncio.Event()
        self._watch = FileWatch(source)
        self._log: Any = structlog.get_logger("headway.config")

    async def reload(self, why: str) -> Reloaded:
        """Load it again. Raises ConfigError that lists what is in the way, one a line, each with
        file, line and key."""
        async with self._one_at_a_time:
            try:
                done = await self._reload()
            except ConfigError as error:
                self._instruments.reload_successful.set(0)
                problems = str(error).splitlines()
                self._log.error("configuration not loaded", why=why, problems=problems)
                raise
            except Exception:
                self._instruments.reload_successful.set(0)
                raise
            self._instruments.reload_successful.set(1)
            self._instruments.reload_time.set(time.time())
            told = [str(change) for change in done.changes]
            self._log.info(
                "configuration loaded", why=why, changed=told, notes=list(done.notes) or None
            )
            return done

    async def _reload(self) -> Reloaded:
        old = self._in_force.config
        # Policies are built, which may be anybody's code: streams go on meanwhile.
        # A thread of the executor would keep the process from ending where that code hangs.
        try:
            found, prepared = await aside(
                lambda: self._prepare(old), timeout_s=self._build_timeout_s
            )
        except TimeoutError:
            raise ConfigError(
                f"{self._source.path or 'configuration'}: took longer than "
                f"{self._build_timeout_s:g} s to be read, and its policies to be imported and built"
            ) from None
        self._in_force.apply(prepared)
        told = notes(old, prepared.config, self._in_force.policies())
        return Reloaded(tuple(found), tuple(told))

    def _prepare(self, old: Config) -> tuple[list[Change], Prepared]:
        """Everything that takes time or can fail; changes nothing. Raises ConfigError."""
        self._watch.note()
        # The file may name a policy of the user's own by now.
        reach(("-c", str(self._source.path)), self._source.env)
        loaded = self._source.read()
        found = changes(old, loaded.config)
        refused = [
            f"{loaded.at(change.path)}: {change} needs a restart: {why}"
            for change in found
            if (why := change.restart) is not None
        ]
        if refused:
            raise ConfigError("\n".join(refused))
        try:
            return found, self._in_force.prepare(loaded.config)
        except ConfigError as error:
            raise ConfigError(f"{_place(loaded, str(error))}: {error}") from error

    # --- who asks for it --------------------------------------------------------------------

    def ask(self) -> None:
        """Load it soon; called by the event loop on SIGHUP, sets a flag only."""
        self._asked.set()

    async def watch(self) -> None:
        """Load it whenever it is asked for or, where `server.watch_config` is set, the file has
        changed; until cancelled."""
        while True:
            watching = self._in_force.config.server.watch_config
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if watching else None):
                    await self._asked.wait()
            try:
                if self._asked.is_set():
                    self._asked.clear()
                    await self.reload("SIGHUP")
                elif watching and await aside(
                    self._watch.has_changed, timeout_s=self._build_timeout_s
                ):
                    await self.reload("the file changed")
            except ConfigError:
                continue  # said by `reload`: the one in force stays
            except Exception:
                self._log.exception("configuration not loaded")

    async def post(self, http: web.Request) -> web.Response:
        """`POST /-/reload`, for the admin."""
        self._front.door.check(http.headers.get(hdrs.AUTHORIZATION), http.remote)
        try:
            done = await self.reload("POST /-/reload")
        except ConfigError as error:
            problems = str(error).splitlines()
            told = {
                "message": f"the configuration in force stays: {'; '.join(problems)}",
                "type": "invalid_request_error",
                "param": None,
                "code": error.code,
                "problems": problems,
            }
            return _json({"error": told}, status=400)
        return _json(done.view())


class FileWatch:
    """Whether a file has another content than when it was last read.

    Looked at are the time of change, size and number of what the path leads to, so that it does not
    matter whether an editor writes into the file, puts another in its place, or a ConfigMap turns a
    link; the content decides.
    """

    def __init__(self, source: Source, *, stat: Callable[[str], os.stat_result] = os.stat) -> None:
        self._source = source
        self._stat = stat
        self._digest: bytes | None = None
        self._seen = self._looked_at = self._stamp()
        self.note()

    def note(self) -> None:
        """The file is read now."""
        self._seen = self._stamp()
        try:
            self._digest = self._source.digest()
        except ConfigError:
            self._digest = None

    def has_changed(self) -> bool:
        """Whether it is worth reading again: changed, and the same at two looks in a row."""
        before, self._looked_at = self._looked_at, self._stamp()
        now = self._looked_at
        # One that is gone is about to be put in place again, or a mistake: what is in force stays.
        if now is None or now == self._seen or now != before:
            return False
        self._seen = now
        try:
            digest = self._source.digest()
        except ConfigError:
            return False
        changed, self._digest = digest != self._digest, digest
        return changed

    def _stamp(self) -> Stamp | None:
        if self._source.path is None:
            return None
        try:
            found = self._stat(str(self._source.path))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def _place(loaded: Loaded, message: str) -> str:
    """Where the key was written with which a message begins."""
    key = message.partition(":")[0]
    return loaded.at(tuple(int(part) if part.isdigit() else part for part in key.split(".")))


def _json(record: dict[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(record), status=status, content_type="application/json"
    )
