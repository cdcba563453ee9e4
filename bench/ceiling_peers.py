"""Who is compared for the gateway's ceiling: the gateway on a free executor, two bare servers."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec
from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from controller.places import Permit
from controller.request import Ended, Outcome, Request
from executor.contract import Capacity, Feature, TextModel
from gateway.app import build_app, runner_of
from gateway.contract import Sink
from gateway.front import Access
from gateway.preparing import Preparer
from gateway.settings import GatewaySettings, TierPlan
from gateway.text import TokenLanguage
from policies.contract import Limits

TEXT = (
    "A bus that waits for company is fuller when it leaves, and the people at the next stop have "
    "stood in the rain for longer. How long it should wait depends on who is coming, and that "
    "changes with the hour; so somebody has to look out of the window all day long. "
)
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def text_model(folder: Path | None) -> TextModel:
    """The language of a model in a folder or, without one, a small byte-level BPE trained here."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    if folder is not None:
        template = folder / "chat_template.jinja"
        return TextModel(
            kind="tokenizers",
            tokenizer_json=(folder / "tokenizer.json").read_text(),
            chat_template=template.read_text() if template.exists() else _TEMPLATE,
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return TextModel(kind="tokenizers", tokenizer_json=tokenizer.to_str(), chat_template=_TEMPLATE)


class App(Protocol):
    """Makes a server that speaks this language; `burst`: see FreeDesk."""

    def __call__(self, text: TextModel, *, burst: bool) -> web.AppRunner:
        """Not started yet."""


class FreeDesk:
    """A desk whose executor costs nothing: every turn of the loop, each request gets a token.

    With `burst` it gets all of its tokens at once.
    """

    def __init__(self, text: TextModel, *, burst: bool) -> None:
        self._burst = burst
        self._text = text
        self._capacity = Capacity(
            model="free",
            device="none",
            max_seqs=1024,
            max_step_tokens=8192,
            kv_tokens=1 << 20,
            max_context_tokens=8192,
            features=frozenset(Feature),
        )
        ids = TokenLanguage(text).encode(TEXT, special=False)
        self._words = [[token] for token in ids]
        self._running: dict[str, tuple[Request, Sink]] = {}
        self._stepping = False
        self._place = 0

    def now(self) -> float:
        """See Desk."""
        return time.monotonic()

    def model(self) -> tuple[TextModel, Capacity]:
        """See Desk."""
        return self._text, self._capacity

    def reserve(
        self,
        tier: str,
        *,
        requests: int,
        tokens: int,
        size: int,
        start_by: float | None = None,
        client: str = "",
    ) -> Permit:
        """See Desk."""
        return Permit(tier, requests, tokens, size)

    def give_back(self, permit: Permit) -> None:
        """See Desk."""
        permit.requests = permit.tokens = permit.size = 0

    def offer(self, request: Request, permit: Permit, sink: Sink) -> None:
        """See Desk."""
        permit.requests -= 1
        self._running[request.id] = (request, sink)
        if not self._stepping:
            self._stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def cancel(self, request_id: str, outcome: Outcome, reason: str) -> bool:
        """See Desk."""
        found = self._running.pop(request_id, None)
        if found is None:
            return False
        request, sink = found
        sink.on_end(Ended(request, outcome, reason))
        return True

    def healthy(self) -> bool:
        """See Desk."""
        return True

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """See Desk."""
        return True, {}

    def state(self) -> dict[str, Any]:
        """See Desk."""
        return {"running": len(self._running)}

    def decisions(self, count: int) -> list[dict[str, Any]]:
        """See Desk."""
        return []

    def request(self, request_id: str) -> dict[str, Any] | None:
        """See Desk."""
        return None

    def pin(self, limits: dict[str, Any], expires_s: float, *, group: str | None = None) -> Limits:
        """See Desk."""
        return self.release()

    def release(self, *, group: str | None = None) -> Limits:
        """See Desk."""
        return Limits(self._capacity.max_seqs, self._capacity.max_step_tokens, 0.0)

    async def switch_policy(self, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """See Desk."""
        return {}

    def roll_back_policy(self) -> dict[str, Any]:
        """See Desk."""
        return {}

    def metrics(self) -> bytes:
        """See Desk."""
        return b""

    def _step(self) -> None:
        words, now = self._words, time.monotonic()
        place = self._place = (self._place + 1) % len(words)
        word = words[place]
        for request, sink in list(self._running.values()):
            tokens = request.tokens
            news = word * request.max_new_tokens if self._burst else word
            tokens += news
            sink.on_tokens(news, now)
            if len(tokens) >= request.max_new_tokens:
                del self._running[request.id]
                sink.on_end(Ended(request, Outcome.FINISHED, "length"))
        self._stepping = bool(self._running)
        if self._stepping:
            asyncio.get_running_loop().call_soon(self._step)


def gateway_app(text: TextModel, *, burst: bool) -> web.AppRunner:
    """The gateway in front of a free desk."""
    settings = GatewaySettings(
        models=("bench",),
        tiers={"free": TierPlan(priority=0, service_tier="default")},
        default_tier="free",
        created=0,
    )
    app = build_app(
        FreeDesk(text, burst=burst),
        settings,
        access=Access(),
        environ=os.environ,
        preparer=Preparer(),
    )
    return runner_of(app)


def bare_app(text: TextModel, *, burst: bool) -> web.AppRunner:
    """One prepared event per token and turn of the loop: no parsing, no text, no accounts."""
    event = (
        b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk",'
        b'"created":1700000000,"model":"bench","service_tier":"default","choices":[{"index":0,'
        b'"delta":{"content":" wait"},"logprobs":null,"finish_reason":null}]}\n\n'
    )

    async def handler(request: web.Request) -> web.StreamResponse:
        await request.read()
        tokens = int(request.query["tokens"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(tokens):
            await response.write(event)
            await asyncio.sleep(0)
        await response.write_eof(b"data: [DONE]\n\n")
        return response

    return _runner(handler)


def direct_app(text: TextModel, *, burst: bool) -> web.AppRunner:
    """Parses, renders, tokenises and detokenises, and that is all."""
    language = TokenLanguage(text)
    words = language.encode(TEXT, special=False)

    async def handler(request: web.Request) -> web.StreamResponse:
        body = msgspec.json.decode(await request.read())
        prompt = language.encode(language.render(body["messages"]), special=False)
        wanted = int(body["max_tokens"])
        ids = list(itertools.islice(itertools.cycle(words), wanted))
        answer = {
            "id": "chatcmpl-0123456789abcdef01234567",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": "bench",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": language.decode(ids)},
                    "finish_reason": "length",
                }
            ],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": wanted,
                "total_tokens": len(prompt) + wanted,
            },
        }
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    return _runner(handler)


def _runner(handler: Callable[[web.Request], Any]) -> web.AppRunner:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    return web.AppRunner(app, access_log=None)
