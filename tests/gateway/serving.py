"""The real application on a free port, and clients that are as raw as a test needs them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from aiohttp import web
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

from gateway.app import build_app, runner_of
from gateway.front import Access
from gateway.preparing import Preparer
from gateway.settings import GatewaySettings, TierPlan
from tests.gateway.fake_desk import FakeDesk

TIERS = {
    "paid": TierPlan(priority=20, service_tier="priority", finish_within_s=600.0),
    "free": TierPlan(priority=10, service_tier="default", start_within_s=60.0),
    "offline": TierPlan(priority=0, service_tier="flex"),
}
QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


def settings(**changes: Any) -> GatewaySettings:
    """Settings as the tests want them unless they say otherwise."""
    fields: dict[str, Any] = {
        "models": ("tiny",),
        "tiers": TIERS,
        "default_tier": "free",
        "created": 1700000000,
    }
    return GatewaySettings(**(fields | changes))


@dataclass(frozen=True)
class Served:
    """An application that listens."""

    port: int
    runner: web.AppRunner

    def connections(self) -> int:
        """How many the server has open."""
        assert self.runner.server is not None
        return len(self.runner.server.connections)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def openai(self, key: str = "any") -> AsyncOpenAI:
        """The official client, which does not try again."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    async def send(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        version: str = "1.1",
        receive_buffer: int | None = None,
    ) -> Raw:
        """Send a request over a connection of its own and return before the answer."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        if body is None:
            content = b""
        lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"Content-Length: {len(content)}", "", ""]
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=sock)
        writer.write("\r\n".join(lines).encode() + content)
        return Raw(reader, writer)

    async def stream(self, *, receive_buffer: int | None = None, **fields: Any) -> Raw:
        """Ask for a streamed chat."""
        body = {"messages": QUESTION, "stream": True, **fields}
        return await self.send("/v1/chat/completions", body, receive_buffer=receive_buffer)

    async def ask(self, *, headers: Mapping[str, str] | None = None, **fields: Any) -> Raw:
        """Ask for a chat whose answer comes whole."""
        body = {"messages": QUESTION, **fields}
        return await self.send("/v1/chat/completions", body, headers=headers)


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[str]:
        """What each event of a stream carries, or the comment that it is."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        return [block.removeprefix("data: ") for block in blocks]


@dataclass(frozen=True)
class Raw:
    """A connection with a request under way."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, names in lower case."""
        text = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = text.rstrip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        return int(status.split()[1]), {name.lower(): value for name, value in headers.items()}

    async def chunk(self) -> bytes:
        """The next chunk of a body in chunked encoding; empty at its end."""
        size = int(await self.reader.readline(), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def answer(self) -> Answer:
        """Everything, up to the end of the answer."""
        status, headers = await self.head()
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := await self.chunk():
                body += chunk
        else:
            body = await self.reader.read()
        return Answer(status, headers, body)

    async def closed_by_server(self) -> bool:
        """Wait until the server closes; whether nothing else came before."""
        return await self.reader.read() == b""

    def pause(self) -> None:
        """Read nothing any more, not even ahead."""
        cast(asyncio.Transport, self.writer.transport).pause_reading()

    def resume(self) -> None:
        """Read again."""
        cast(asyncio.Transport, self.writer.transport).resume_reading()

    async def leave(self) -> None:
        """Close the connection without a word."""
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def serving(
    desk: FakeDesk,
    *,
    access: Access | None = None,
    environ: Mapping[str, str] | None = None,
    preparer: Preparer | None = None,
    send_buffer: int | None = None,
    **changes: Any,
) -> AsyncIterator[Served]:
    """The application in front of a desk, on a port that was free."""
    app = build_app(
        desk,
        settings(**changes),
        access=access or Access(),
        environ=environ or {},
        preparer=preparer or Preparer(),
    )
    async with listening(app, send_buffer=send_buffer) as served:
        yield served


@asynccontextmanager
async def listening(
    app: web.Application, *, send_buffer: int | None = None
) -> AsyncIterator[Served]:
    """An application, on a port that was free."""
    runner = runner_of(app)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    await web.SockSite(runner, listener).start()
    try:
        yield Served(listener.getsockname()[1], runner)
    finally:
        await runner.cleanup()
        listener.close()
