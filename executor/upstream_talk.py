"""One attempt at one request on an engine behind HTTP: sent, listened to, and let go."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import aiohttp
import msgspec

from executor.contract import FinishReason, Key, Refusal, Said, Submit
from executor.upstream_events import (
    DONE,
    BadStream,
    Chunk,
    Counter,
    EventParser,
    number,
    only_greets,
    parse,
    refusal,
)

# An engine that was told that nobody listens has so long to close the connection by itself.
LET_GO_S = 1.0
# What an engine that is full is left alone for, where it does not say.
PAUSE_S = 0.5
MOST_PAUSE_S = 5.0
# The engine's mistake or ours, whatever the client asked for: its words are not for the client.
_OURS = (401, 403, 407)
_FULL = (429, 503)


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine does not take this request."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Full:
    """The engine takes nothing more for the moment. `doubtful`: it may be that it does not work."""

    pause_s: float
    words: str
    doubtful: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The engine tried, and failed with this one. `fatal`: so it would with the next attempt."""

    words: str
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """The connection ended before the answer did."""

    words: str


End = Refused | Full | Failed | Broken | None


class Hearer(Protocol):
    """Who is told while the answer comes. Nothing is told of a talk that was let go."""

    def on_said(self, talk: Talk, said: Said, tokens: int) -> None:
        """An event with so many new tokens."""

    def on_finished(self, talk: Talk, reason: FinishReason) -> None:
        """The answer is complete; nothing comes after this."""


class Lines(aiohttp.TCPConnector):
    """Connections, and which of them each task has got."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._of: WeakKeyDictionary[asyncio.Task[Any], asyncio.Transport] = WeakKeyDictionary()

    async def connect(self, *args: Any, **more: Any) -> Any:
        """See the base class."""
        connection = await super().connect(*args, **more)
        task = asyncio.current_task()
        if task is not None and connection.transport is not None:
            self._of[task] = connection.transport
        return connection

    def forget(self, task: asyncio.Task[Any]) -> None:
        """This task has none."""
        self._of.pop(task, None)

    def of(self, task: asyncio.Task[Any]) -> asyncio.Transport | None:
        """The connection that a task got last."""
        return self._of.get(task)


class Talk:
    """The attempt. `told` counts the tokens that were reported, `prompt` is the length of the
    prompt, a guess until `knows_prompt`."""

    def __init__(self, submit: Submit, hearer: Hearer, lines: Lines) -> None:
        self.submit = submit
        self.key = Key(submit.request_id, submit.attempt)
        self.prompt = submit.prompt_length
        self.knows_prompt = False
        self.told_prompt = False
        self.told = 0
        self.released = asyncio.Event()
        self.finished = False
        self._hearer = hearer
        self._lines = lines
        self._counter = Counter()
        self._reason: str | None = None
        self._spoke = False
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def hold(self, session: aiohttp.ClientSession, url: str, body: bytes) -> End:
        """Ask, and listen to the end; None once it was finished, or let go."""
        task = asyncio.current_task()
        assert task is not None
        self._lines.forget(task)
        self._task = task
        # Unique there, too: what is asked again is another request.
        headers = {"X-Request-Id": f"{self.key.request_id}-{self.key.attempt}"}
        try:
            if self.released.is_set():
                return None
            async with session.post(
                url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return await self._listen(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            return self._ends_as(Broken(str(error) or type(error).__name__))
        except BadStream as error:
            return self._ends_as(Failed(str(error)))
        finally:
            self._task = None
            if self._timer is not None:
                self._timer.cancel()

    def let_go(self) -> None:
        """Nobody listens any more. The engine is told, and has a moment to close the connection:
        then it has let go of its seat, too."""
        self.released.set()
        if self._task is not None and not self._hang_up(self._task):
            self._task.cancel()

    def _hang_up(self, task: asyncio.Task[Any]) -> bool:
        """Tell the engine that nobody listens; whether it can be told."""
        transport = self._lines.of(task)
        if transport is None or transport.is_closing() or not transport.can_write_eof():
            return False
        # To whoever reads, half a connection is one that has gone; and its end comes back to us.
        transport.write_eof()
        self._abort_later(transport)
        return True

    def _abort_later(self, transport: asyncio.Transport) -> None:
        self._timer = asyncio.get_running_loop().call_later(LET_GO_S, transport.abort)

    async def _listen(self, response: aiohttp.ClientResponse) -> End:
        if response.status != 200:
            return _declined(response, await response.read())
        if response.content_type != "text/event-stream":
            return Failed(f"the engine does not stream, it sent {response.content_type}")
        parser = EventParser()
        async for data in response.content.iter_any():
            if (end := self._take(parser.feed(data))) is not None:
                return end
        if (end := self._take(parser.finish())) is not None:
            return end
        return self._ends_as(Broken("the engine's answer stopped in the middle"))

    def _ends_as(self, otherwise: Failed | Broken) -> End:
        """What the end of the connection means, if it is not that of the answer."""
        if self.released.is_set() or self.finished:
            return None
        if self._reason is None:
            return otherwise
        # Some say why they stop and leave it at that.
        self._finish()
        return None

    def _take(self, events: list[bytes]) -> End:
        for data in events:
            if self.released.is_set() or self.finished:
                break
            if data == DONE:
                if self._reason is None and not self._spoke:
                    return Failed("the engine's answer is empty")
                self._finish()
                break
            chunk = parse(data)
            if chunk.error is not None or chunk.object == "error":
                return _error(data, spoke=self._spoke)
            self._hear(chunk)
        return None

    def _hear(self, chunk: Chunk) -> None:
        self._reason = chunk.finish_reason or self._reason
        choice, usage = chunk.choices[0] if chunk.choices else {}, chunk.usage or {}
        length = None if self.knows_prompt else number(usage.get("prompt_tokens"))
        if length:
            self.prompt, self.knows_prompt = length, True
        tokens = self._counter.take(chunk)
        # Who speaks is known here, and nothing has come yet.
        if not tokens and choice and not chunk.finish_reason and only_greets(choice):
            return
        if choice or tokens or (usage and self._spoke):
            said = Said(choice, usage, begins=not self._spoke)
            self._spoke = True
            self._hearer.on_said(self, said, tokens)

    def _finish(self) -> None:
        self.finished = True
        self._hearer.on_finished(self, "length" if self._reason == "length" else "stop")
        # The engine ends the connection, too, so that it is not cut off in the middle of that.
        transport = None if self._task is None else self._lines.of(self._task)
        if transport is not None:
            self._abort_later(transport)


def _declined(response: aiohttp.ClientResponse, body: bytes) -> End:
    """What a status other than 200 means."""
    status, told = response.status, refusal(response.status, body)
    if status in _FULL:
        pause_s = _pause_s(response.headers.get("Retry-After", ""))
        return Full(pause_s, told.message, doubtful=status == 503)
    if status in _OURS:
        return Failed(f"the engine does not let this server in: {status}", fatal=True)
    if 400 <= status < 500:
        return Refused(told)
    if status < 400:
        return Failed(f"the engine answered {status}, which is no answer to a completion")
    return Failed(f"the engine answered {status}: {told.message}")


def _error(data: bytes, *, spoke: bool) -> Refused | Failed:
    """What an error in the stream means: some engines look at a request only after the headers."""
    told = refusal(500, data)
    if not spoke and told.code is not None and told.code.isdigit() and told.code.startswith("4"):
        return Refused(msgspec.structs.replace(told, status=int(told.code)))
    return Failed(told.message)


def _pause_s(written: str) -> float:
    try:
        pause_s = float(written)
    except ValueError:
        return PAUSE_S
    return min(MOST_PAUSE_S, max(0.0, pause_s)) if math.isfinite(pause_s) else PAUSE_S
