"""A client that costs little: raw HTTP over keep-alive connections, answers counted, not parsed."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import cast

PROMPT = "Tell me, in a few short sentences, how long a bus should wait for company."


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop: each of `connections` sends its next request when the last was answered."""

    port: int
    stream: bool
    tokens: int
    connections: int
    seconds: float


@dataclass(slots=True)
class Seen:
    """What came back: answers, and for each the seconds to its first byte and to its last."""

    answers: int = 0
    elapsed_s: float = 0.0
    first_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)


async def drive(load: Load) -> Seen:
    """Put the load on for its time. Raises RuntimeError when an answer is not a 200."""
    loop = asyncio.get_running_loop()
    seen = Seen()
    begin = time.perf_counter()
    deadline = begin + load.seconds
    request = _request(load)
    ends: list[asyncio.Future[None]] = []

    def connect() -> _Connection:
        return _Connection(request, load.stream, seen, deadline)

    for _ in range(load.connections):
        _, connection = await loop.create_connection(connect, "127.0.0.1", load.port)
        ends.append(connection.done)
    await asyncio.gather(*ends)
    seen.elapsed_s = time.perf_counter() - begin
    return seen


class _Connection(asyncio.Protocol):
    def __init__(self, request: bytes, stream: bool, seen: Seen, deadline: float) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._stream = stream
        self._seen = seen
        self._deadline = deadline
        self._sent = 0.0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(RuntimeError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        if not self._received:
            if not data.startswith(b"HTTP/1.1 200"):
                self.done.set_exception(RuntimeError(data[:300].decode(errors="replace")))
                return
            self._seen.first_s.append(time.perf_counter() - self._sent)
            self._received = data
        elif self._stream:
            # Only the end matters, and it may be cut in two.
            self._received = self._received[-8:] + data
        else:
            self._received += data
        if self._complete():
            self._answered()

    def _complete(self) -> bool:
        if self._stream:
            return self._received.endswith(b"\r\n0\r\n\r\n")
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return False
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return len(body) >= int(length)

    def _answered(self) -> None:
        now = time.perf_counter()
        self._seen.whole_s.append(now - self._sent)
        self._seen.answers += 1
        if now < self._deadline:
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send(self) -> None:
        self._received = b""
        self._sent = time.perf_counter()
        self._transport.write(self._request)


def _request(load: Load) -> bytes:
    body = json.dumps(
        {
            "model": "bench",
            "messages": [
                {"role": "system", "content": "You are a timetable."},
                {"role": "user", "content": PROMPT},
            ],
            "max_tokens": load.tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": load.stream,
        }
    ).encode()
    return (
        f"POST /v1/chat/completions?tokens={load.tokens} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
