"""How records cross a connection: msgpack behind a four-byte length, cut and joined here only."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import msgspec

# A `tokenizer.json` is the longest thing that is ever sent, some 30 MiB; what claims to be longer
# than this is a broken stream, and is not worth the memory.
MAX_FRAME_BYTES = 256 * 2**20
HEADER_BYTES = 4

Received = TypeVar("Received")


class WireError(Exception):
    """What arrived is not a frame, or not one of the records that this side understands."""


class Disconnected(Exception):
    """The other side is gone."""


class Frames:
    """Cuts a stream of bytes into frames, however it was split on its way."""

    def __init__(self, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads completed by `data`, in order. Raises WireError at one that is too long."""
        buffer: bytes | bytearray = data
        if self._pending:
            self._pending += data
            buffer = self._pending
        payloads = []
        start, end = 0, len(buffer)
        while end - start >= HEADER_BYTES:
            body = start + HEADER_BYTES
            length = int.from_bytes(buffer[start:body], "big")
            if length > self._max_frame_bytes:
                raise WireError(
                    f"a frame of {length} bytes was announced, at most "
                    f"{self._max_frame_bytes} are allowed"
                )
            if end - body < length:
                break
            start = body + length
            payloads.append(bytes(buffer[body:start]))
        if buffer is self._pending:
            del self._pending[:start]
        else:
            self._pending += buffer[start:]
        return payloads


class Codec(Generic[Received]):
    """Turns records into frames, and the stream from the other side into records.

    `received` is the union of the records that may arrive here. One codec serves one connection.
    """

    def __init__(self, received: object, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)
        self._frames = Frames(max_frame_bytes=max_frame_bytes)

    def encode(self, message: msgspec.Struct) -> bytes:
        """One frame. Raises WireError when the other side would refuse it as too long."""
        payload = self._encoder.encode(message)
        if len(payload) > self._max_frame_bytes:
            raise WireError(
                f"{type(message).__name__} takes {len(payload)} bytes, at most "
                f"{self._max_frame_bytes} are allowed"
            )
        return len(payload).to_bytes(HEADER_BYTES, "big") + payload

    def decode(self, data: bytes) -> list[Received]:
        """The records completed by `data`, in order. Raises WireError."""
        try:
            return [self._decoder.decode(payload) for payload in self._frames.feed(data)]
        except msgspec.DecodeError as error:
            raise WireError(f"a record could not be read: {error}") from error


class Channel(Generic[Received]):
    """The blocking side of a connection, for the process that has nothing else to wait for."""

    def __init__(self, sock: socket.socket, received: object) -> None:
        self._socket = sock
        self._codec: Codec[Received] = Codec(received)
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, message: msgspec.Struct) -> None:
        """Send all of it, waiting where the other side is slow to read. Raises Disconnected."""
        try:
            self._socket.sendall(self._codec.encode(message))
        except ConnectionError as error:
            raise Disconnected from error

    def receive(self, timeout_ms: int | None) -> list[Received]:
        """What has arrived, waiting at most `timeout_ms` (None: for ever) for the first of it.

        An empty list says that there is nothing yet. Raises Disconnected, WireError.
        """
        if not self._poll.poll(timeout_ms):
            return []
        try:
            data = self._socket.recv(262_144)
        except ConnectionError as error:
            raise Disconnected from error
        if not data:
            raise Disconnected
        return self._codec.decode(data)


class Connection(asyncio.Protocol, Generic[Received]):
    """The event loop's side of a connection.

    `on_message` is called for each record, `on_closed` once at the end with the error that ended
    it, if there was one. After `close` no record is handed on, whatever had arrived already.
    """

    def __init__(
        self,
        received: object,
        *,
        on_message: Callable[[Received], None],
        on_closed: Callable[[Exception | None], None],
    ) -> None:
        self._codec: Codec[Received] = Codec(received)
        self._on_message = on_message
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)

    def send(self, message: msgspec.Struct) -> None:
        """Write at once, as far as the other side has room. Dropped when it is closed."""
        if self._transport is not None:
            self._transport.write(self._codec.encode(message))

    def close(self) -> None:
        """Cut the connection now; harmless when there is none any more."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            messages = self._codec.decode(data)
        except WireError as error:
            self._error = error
            self.close()
            return
        for message in messages:
            if self._transport is None:
                return
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._transport = None
        self._on_closed(self._error or exc)
