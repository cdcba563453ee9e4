"""Where the tokens of a stream go: straight to the client's connection, while it keeps up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.errors import HeadwayError
from controller.request import Ended, Outcome
from executor.contract import Logprobs
from gateway.answers import KEEP_ALIVE, Chunks, Usage, error_event
from gateway.detokenise import Pieces
from gateway.failures import error_object, failure_of
from gateway.siblings import Siblings


class Channel:
    """One event stream, shared by the choices of one HTTP request.

    Until the headers are out, events are kept: `opened` is set by the first of them, and fails
    with the error where there is none. From `go_live` on they are written to the transport at
    once, without a task that wakes up. `closed` gets what is left to be sent at the end: what
    `farewell` gives, or an error.
    """

    __slots__ = (
        "_buffer_bytes",
        "_choices",
        "_chunked",
        "_early",
        "_farewell",
        "_late_chars",
        "_loop",
        "_over",
        "_pause_s",
        "_quiet",
        "_siblings",
        "_timer",
        "_transport",
        "closed",
        "opened",
    )

    def __init__(
        self,
        siblings: Siblings,
        choices: int,
        *,
        farewell: Callable[[], bytes],
        keep_alive_after_s: float,
        buffer_bytes: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[bytes] = self._loop.create_future()
        self._siblings = siblings
        self._choices = choices
        self._farewell = farewell
        self._buffer_bytes = buffer_bytes
        self._early: list[bytes] = []
        self._late_chars = 0
        self._transport: asyncio.Transport | None = None
        self._chunked = True
        self._over = False
        self._quiet = True
        self._pause_s = keep_alive_after_s
        self._timer = self._loop.call_later(keep_alive_after_s, self._keep_alive)

    # --- for the choices --------------------------------------------------------------------

    def write(self, event: bytes) -> None:
        """Send an event, or keep it until the headers are out."""
        self._quiet = False
        transport = self._transport
        if transport is None:
            self._early.append(event)
            if not self.opened.done():
                self.opened.set_result(None)
        elif transport.is_closing() or not event:
            # An empty chunk would be the end of the stream.
            return
        elif self._chunked:
            transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        else:
            transport.write(event)

    def congested(self, more: int = 0) -> bool:
        """Whether the client reads too slowly to be sent so many bytes more now."""
        transport = self._transport
        if transport is None:
            return False
        return transport.get_write_buffer_size() + more > self._buffer_bytes

    def hold(self, chars: int) -> None:
        """Account for text that a choice keeps back (or sends after all, when negative)."""
        self._late_chars += chars
        if self._late_chars > self._buffer_bytes and not self._over:
            self.abandon()
            if self._transport is not None:
                self._transport.abort()
            self._siblings.cancel("slow_reader")

    def finish(self, events: bytes) -> None:
        """A choice is done, and these are its last events."""
        if self._over:
            return
        self._choices -= 1
        if self._choices:
            self.write(events)
        else:
            self._close(events + self._farewell())

    def fail(self, error: HeadwayError) -> None:
        """A choice failed, and so does the answer: with a status of its own while it can."""
        if self._over:
            return
        if self.opened.done():
            self._close(error_event(error_object(error)))
        else:
            self.abandon()
            self.opened.set_exception(error)
        self._siblings.cancel("sibling_failed")

    # --- for the handler --------------------------------------------------------------------

    def go_live(self, transport: asyncio.Transport, *, chunked: bool) -> None:
        """The headers are out. `chunked` frames events as HTTP/1.1 wants them."""
        # From here on, "drained" means for the transport what it means here.
        transport.set_write_buffer_limits(high=self._buffer_bytes)
        self._transport = transport
        self._chunked = chunked
        early, self._early = b"".join(self._early), []
        if early:
            self.write(early)

    def abandon(self) -> None:
        """Nobody listens any more: whatever comes is dropped."""
        self._over = True
        self._timer.cancel()

    # --- inside -----------------------------------------------------------------------------

    def _close(self, tail: bytes) -> None:
        self.abandon()
        if not self.opened.done():
            self.opened.set_result(None)
        # Cancelled where the client has just left, and its handler is to hear of it next turn.
        if not self.closed.done():
            self.closed.set_result(tail)

    def _keep_alive(self) -> None:
        if self._quiet:
            self.write(KEEP_ALIVE)
        self._quiet = True
        self._timer = self._loop.call_later(self._pause_s, self._keep_alive)


class StreamedChoice:
    """The sink of one choice of a stream."""

    __slots__ = ("_begun", "_channel", "_chunks", "_id", "_late", "_pieces", "_siblings", "_usage")

    def __init__(
        self,
        request_id: str,
        channel: Channel,
        *,
        siblings: Siblings,
        chunks: Chunks,
        pieces: Pieces,
        usage: Usage,
    ) -> None:
        self._id = request_id
        self._channel = channel
        self._siblings = siblings
        self._chunks = chunks
        self._pieces = pieces
        self._usage = usage
        self._begun = False
        self._late = ""

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        """See Sink."""
        pieces = self._pieces
        if pieces.stopped:
            return
        self._usage.completion_tokens += len(ids)
        text = pieces.push(ids)
        if text or not self._begun:
            self._send(text)
        if pieces.stopped:
            self._siblings.stop(self._id)

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is not Outcome.FINISHED:
            self._channel.fail(failure_of(ended))
            return
        text = self._late + self._pieces.finish()
        events = b"" if self._begun else self._chunks.role()
        if text:
            events += self._chunks.text(text)
        # Its last token may have been its last one anyway.
        reason = "stop" if self._pieces.stopped else ended.reason
        self._channel.finish(events + self._chunks.finish(reason))

    def _send(self, text: str) -> None:
        channel = self._channel
        if channel.congested():
            self._late += text
            channel.hold(len(text))
            return
        if self._late:
            channel.hold(-len(self._late))
            text = self._late + text
            self._late = ""
        event = self._chunks.text(text) if text else b""
        if not self._begun:
            self._begun = True
            event = self._chunks.role() + event
        channel.write(event)
