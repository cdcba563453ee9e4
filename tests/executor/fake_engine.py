"""An engine behind HTTP that a test holds in its hand: OpenAI's API, steps, metrics, and switches.

It listens on a free port of the loopback, in the test's own event loop. It runs whatever it is
given at once, counts how many that are, and notices who hangs up, as vLLM does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

WORDS = ("Paris", " is", " the", " capital", " of", " France", ".", " Ünïcödé", " 日本", "!")


@dataclass(eq=False)
class Ask:
    """One request as it arrived, how many tokens it got, and what became of it."""

    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    sent: int = 0
    gone: bool = False
    done: bool = False
    more: asyncio.Event = field(default_factory=asyncio.Event)
    allowed: int = 0

    @property
    def priority(self) -> Any:
        return self.body.get("priority")


class FakeEngine:
    """The engine. A test says what it answers by the attributes.

    `pace_s` is the time of a step in which everybody gets a token; None: tokens come when the test
    calls `step`. `words` are the texts of tokens. `status` other than 200 is answered with `error`.
    `hang`: requests are taken and nothing comes. `cut_after`: the connection breaks after so many
    tokens. `unwell`: its health says so. `kind` is the flavour of its metrics and models.
    """

    def __init__(self, kind: str = "vllm") -> None:
        self.kind = kind
        self.pace_s: float | None = 0.002
        self.words = WORDS
        self.status = 200
        self.error: Any = {"error": {"message": "no", "type": "server_error", "code": None}}
        self.headers: dict[str, str] = {}
        self.hang = False
        self.hang_metrics = False
        self.unwell = False
        self.cut_after: int | None = None
        self.refuses: frozenset[str] = frozenset()
        self.says_done = True
        self.model = "their-model"
        self.kv = 0.25
        self.foreign = 0
        self.preemptions = 0
        self.asks: list[Ask] = []
        self.keys: set[str | None] = set()
        self.most_at_once = 0
        self.generated = 0
        self.extra_deltas: list[dict[str, Any]] = []
        self.on_ask: Callable[[Ask], None] = lambda ask: None
        self._runner: web.AppRunner | None = None
        self._port = 0

    # --- for tests --------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def running(self) -> list[Ask]:
        """Those that it works for."""
        return [ask for ask in self.asks if not ask.done and not ask.gone]

    @property
    def stopped(self) -> bool:
        """Whether it is gone."""
        return self._runner is None

    @property
    def connections(self) -> int:
        """How many it has open."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    def headers_of(self, request_id: str) -> Mapping[str, str]:
        """The headers of the first request that this one has made."""
        name = "X-Request-Id"
        return next(a.headers for a in self.asks if a.headers[name].startswith(f"{request_id}-"))

    def step(self, tokens: int = 1) -> None:
        """Everybody gets so many tokens."""
        for ask in self.running:
            ask.allowed += tokens
            ask.more.set()

    async def start(self) -> None:
        """Listen: on any free port, and on the same one when it comes back."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def kill(self) -> None:
        """Be gone, as a process that is killed: every connection ends at once."""
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._runner.cleanup()
        self._runner = None

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(10.0):
            while not condition():  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.001)

    # --- its routes -------------------------------------------------------------------------

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        ask = Ask(http.path, body, http.headers)
        self.asks.append(ask)
        self.most_at_once = max(self.most_at_once, len(self.running))
        self.on_ask(ask)
        refused = self.refuses & body.keys()
        if refused:
            ask.done = True
            detail = f"Unexpected fields in the request: {set(refused)}"
            return web.json_response({"detail": detail}, status=422)
        if self.status != 200:
            ask.done = True
            return web.json_response(self.error, status=self.status, headers=self.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(http)
            await self._write(ask, response, http)
        except (ConnectionError, asyncio.CancelledError):
            ask.gone = True
            raise
        finally:
            ask.done = not ask.gone
        return response

    async def _write(self, ask: Ask, response: web.StreamResponse, http: web.Request) -> None:
        body, chat = ask.body, "messages" in ask.body
        most = body.get("max_tokens") or len(self.words)
        options = body.get("stream_options") or {}
        if self.hang:
            await asyncio.Event().wait()
        for number in range(most):
            if number == self.cut_after:
                assert http.transport is not None
                http.transport.abort()
                raise ConnectionResetError
            await self._turn(ask)
            if number == 0 and chat:
                await self._event(ask, response, {"delta": {"role": "assistant", "content": ""}})
            text = self.words[number % len(self.words)]
            delta: dict[str, Any] = {"content": text}
            if number < len(self.extra_deltas):
                delta = self.extra_deltas[number]
            choice = {"delta": delta} if chat else {"text": text}
            ask.sent += 1
            self.generated += 1
            last = number == most - 1
            reason = ("length" if "max_tokens" in body else "stop") if last else None
            await self._event(ask, response, {**choice, "finish_reason": reason, "logprobs": None})
        if options.get("include_usage"):
            chunk = {"choices": [], "usage": self._usage(ask)}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if self.says_done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()

    async def _turn(self, ask: Ask) -> None:
        """Wait for the next step."""
        if self.pace_s is not None:
            await asyncio.sleep(self.pace_s)
            return
        while ask.allowed <= ask.sent:
            ask.more.clear()
            await ask.more.wait()

    async def _event(self, ask: Ask, response: web.StreamResponse, choice: dict[str, Any]) -> None:
        chunk: dict[str, Any] = {
            "id": "x",
            "model": self.model,
            "choices": [{"index": 0, **choice}],
        }
        if (ask.body.get("stream_options") or {}).get("continuous_usage_stats"):
            chunk["usage"] = self._usage(ask)
        await response.write(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode())

    def _usage(self, ask: Ask) -> dict[str, Any]:
        prompt = len(json.dumps(ask.body.get("messages", ask.body.get("prompt"))))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": ask.sent,
            "total_tokens": prompt + ask.sent,
        }

    async def _models(self, http: web.Request) -> web.Response:
        self.keys.add(http.headers.get("Authorization"))
        model = {"id": self.model, "object": "model", "max_model_len": 4096, "owned_by": self.kind}
        return web.json_response({"object": "list", "data": [model]})

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response(status=503 if self.unwell else 200)

    async def _metrics(self, http: web.Request) -> web.Response:
        if self.hang_metrics:
            await asyncio.Event().wait()
        if self.kind != "vllm":
            raise web.HTTPNotFound
        running = len(self.running) + self.foreign
        lines = (
            f'vllm:num_requests_running{{engine="0"}} {running}',
            'vllm:num_requests_waiting{engine="0"} 0',
            f'vllm:kv_cache_usage_perc{{engine="0"}} {self.kv}',
            f'vllm:num_preemptions_total{{engine="0"}} {self.preemptions}',
            f'vllm:generation_tokens_total{{engine="0"}} {self.generated}',
            'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000"} 1.0',
        )
        return web.Response(text="\n".join([*lines, ""]))


@asynccontextmanager
async def engine(kind: str = "vllm", **attributes: Any) -> AsyncIterator[FakeEngine]:
    """An engine that listens, for as long as the test needs it."""
    made = FakeEngine(kind)
    for name, value in attributes.items():
        setattr(made, name, value)
    await made.start()
    try:
        yield made
    finally:
        with contextlib.suppress(AssertionError):
            await made.kill()
