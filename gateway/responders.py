"""How an answer goes out over HTTP, as an event stream or whole, and the sinks of its choices."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol

from aiohttp import HttpVersion11, web

from gateway import request_ids
from gateway.answers import DONE, Chunks, Heading, Usage, usage_event, whole
from gateway.forwarding import Forwarded
from gateway.gathering import Gathering, StoppingChoice, WholeChoice
from gateway.passing import Account, PassedStream, PassedWhole
from gateway.preparing import Prepared
from gateway.settings import GatewaySettings
from gateway.siblings import Siblings
from gateway.streams import Channel, StreamedChoice

if TYPE_CHECKING:
    from gateway.contract import Sink


class Responder(Protocol):
    """One HTTP answer in the making."""

    def sink(self, request_id: str, index: int, prepared: Prepared | Forwarded) -> Sink:
        """Where the tokens of choice `index` go."""

    def abandon(self) -> None:
        """Nobody waits for the answer any more."""

    async def respond(self, http: web.Request) -> web.StreamResponse:
        """Wait for the answer and send it. Raises HeadwayError while there is nothing sent yet."""


class WholeResponder:
    """Sends one JSON object when all is done."""

    def __init__(self, heading: Heading, siblings: Siblings, usage: Usage, *, choices: int) -> None:
        self._heading = heading
        self._siblings = siblings
        self._usage = usage
        self._gathering = Gathering(siblings, choices)

    def sink(self, request_id: str, index: int, prepared: Prepared | Forwarded) -> Sink:
        """See Responder."""
        if isinstance(prepared, Forwarded):
            account = _account(prepared, index, self._usage)
            kind = self._heading.kind
            return PassedWhole(self._gathering, index=index, kind=kind, account=account)
        if not prepared.stops:
            return WholeChoice(
                self._gathering, index=index, decode=prepared.language.decode, usage=self._usage
            )
        return StoppingChoice(
            request_id,
            self._gathering,
            siblings=self._siblings,
            index=index,
            pieces=prepared.pieces(),
            usage=self._usage,
        )

    def abandon(self) -> None:
        """See Responder."""
        self._gathering.abandon()

    async def respond(self, http: web.Request) -> web.StreamResponse:
        """See Responder."""
        choices = await self._gathering.done
        return web.Response(
            body=whole(self._heading, choices, self._usage), content_type="application/json"
        )


class StreamResponder:
    """Sends server-sent events as tokens come."""

    def __init__(
        self,
        heading: Heading,
        siblings: Siblings,
        usage: Usage,
        *,
        choices: int,
        include_usage: bool,
        settings: GatewaySettings,
        request_id: str,
    ) -> None:
        self._heading = heading
        self._siblings = siblings
        self._usage = usage
        self._include_usage = include_usage
        self._patience_s = settings.slow_reader_after_s
        self._request_id = request_id
        self._channel = Channel(
            siblings,
            choices,
            farewell=partial(_farewell, heading, usage if include_usage else None),
            keep_alive_after_s=settings.keep_alive_after_s,
            buffer_bytes=settings.stream_buffer_bytes,
        )

    def sink(self, request_id: str, index: int, prepared: Prepared | Forwarded) -> Sink:
        """See Responder."""
        chunks = Chunks(self._heading, index, usage_follows=self._include_usage)
        if isinstance(prepared, Forwarded):
            account = _account(prepared, index, self._usage)
            return PassedStream(self._channel, chunks=chunks, account=account)
        return StreamedChoice(
            request_id,
            self._channel,
            siblings=self._siblings,
            chunks=chunks,
            pieces=prepared.pieces(),
            usage=self._usage,
        )

    def abandon(self) -> None:
        """See Responder."""
        self._channel.abandon()

    async def respond(self, http: web.Request) -> web.StreamResponse:
        """See Responder."""
        channel = self._channel
        await channel.opened
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
                request_ids.HEADER: self._request_id,
            }
        )
        chunked = http.version >= HttpVersion11
        if not chunked:
            response.force_close()
        await response.prepare(http)
        transport = http.transport
        if transport is None:
            raise ConnectionResetError("the client is gone")
        channel.go_live(transport, chunked=chunked)
        # An error ends the stream and not the connection: a client that saw the last chunk has
        # put the connection back already, and its next request must not find it closed.
        tail = await channel.closed
        if not channel.congested(len(tail)):
            await response.write_eof(tail)
            return response
        try:
            async with asyncio.timeout(self._patience_s):
                await response.write_eof(tail)
        except TimeoutError:
            transport.abort()
        return response


def _account(forwarded: Forwarded, index: int, usage: Usage) -> Account:
    """Who counts for choice `index`: choices of one prompt share it, and the first one pays."""
    each = len(forwarded.asks) // len(forwarded.prompts)
    learn = forwarded.learn[index // each]
    return Account(usage, learn, first=index % each == 0, alone=len(forwarded.asks) == 1)


def _farewell(heading: Heading, usage: Usage | None) -> bytes:
    """What follows the last choice of a stream."""
    return DONE if usage is None else usage_event(heading, usage) + DONE
