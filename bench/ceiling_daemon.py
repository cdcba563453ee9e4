"""The whole daemon for the gateway's ceiling: HTTP, queues, ledger, control and metrics.

`daemon_app` gives it an executor in its own process that costs next to nothing, `worker_app` the
simulated one in a process of its own, on the other cores, with steps that take no time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import psutil
from aiohttp import web

from bench.ceiling_peers import TEXT
from controller.config import Config
from executor.contract import (
    Capacity,
    Feature,
    Finished,
    Key,
    Ready,
    Report,
    StepSample,
    Submit,
    TextModel,
    Tokens,
    Work,
)
from executor.process import Events
from gateway.app import runner_of
from gateway.assembly import Parts, assemble
from gateway.daemon import calm_collector
from gateway.text import TokenLanguage

_NAME = "main"
_SEATS = 64


def daemon_app(text: TextModel, *, burst: bool) -> web.AppRunner:
    """The daemon with a free executor inside: what everything but the worker's pipe costs."""
    parts = assemble(_config(), environ=os.environ)
    calm_collector()
    executor = FreeExecutor(parts.dispatcher, text, burst=burst)
    parts.dispatcher.executors[_NAME] = executor

    async def life(_app: web.Application) -> AsyncIterator[None]:
        executor.start()
        ticking = asyncio.create_task(parts.ticker.run())
        yield
        ticking.cancel()

    parts.app.cleanup_ctx.append(life)
    return runner_of(parts.app)


def worker_app(text: TextModel, *, burst: bool) -> web.AppRunner:
    """The daemon as it is, with the simulated executor's process moved to the other cores.

    That one knows no `burst`.
    """
    parts = assemble(_config(), environ=os.environ)
    calm_collector()

    async def life(_app: web.Application) -> AsyncIterator[None]:
        others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
        parts.processes[_NAME].start()
        await _ready(parts)
        psutil.Process(parts.processes[_NAME].pid).cpu_affinity(sorted(others))
        ticking = asyncio.create_task(parts.ticker.run())
        yield
        ticking.cancel()
        await parts.processes[_NAME].stop(1.0)

    parts.app.cleanup_ctx.append(life)
    return runner_of(parts.app)


class FreeExecutor:
    """Every turn of the loop is a step: a token for each sequence or, with `burst`, all of them."""

    def __init__(self, events: Events, text: TextModel, *, burst: bool) -> None:
        self._burst = burst
        self._events = events
        self._text = text
        self._words = [[token] for token in TokenLanguage(text).encode(TEXT, special=False)]
        self._place = 0
        self._running: dict[str, tuple[Submit, int]] = {}
        self._released: list[Key] = []
        self._epoch = 0
        self._stepping = False

    def start(self) -> None:
        """Ready at once."""
        capacity = Capacity(
            model="bench",
            device="none",
            max_seqs=_SEATS,
            max_step_tokens=8192,
            kv_tokens=1 << 20,
            max_context_tokens=8192,
            features=frozenset(Feature),
        )
        self._events.on_ready(_NAME, 1, Ready(capacity=capacity, text=self._text))

    def send(self, work: Work) -> None:
        """See Sender."""
        self._epoch = work.epoch
        for submit in work.submit:
            self._running[submit.request_id] = (submit, 0)
        for key in work.release:
            self._running.pop(key.request_id, None)
            self._released.append(key)
        if not self._stepping and (self._running or self._released):
            self._stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._place = (self._place + 1) % len(self._words)
        word, running = self._words[self._place], self._running
        tokens, finished = [], []
        for request_id, (submit, done) in list(running.items()):
            news = word * submit.max_new_tokens if self._burst else word
            tokens.append(Tokens(request_id, submit.attempt, done, news))
            if done + len(news) == submit.max_new_tokens:
                finished.append(Finished(request_id, submit.attempt, "length"))
                del running[request_id]
            else:
                running[request_id] = (submit, done + 1)
        released, self._released = self._released, []
        sample = StepSample(0.001, len(tokens), len(tokens), 100 * len(tokens), 0, 0)
        report = Report(
            epoch=self._epoch,
            sample=sample,
            kv_tokens=100 * len(tokens),
            tokens=tokens,
            finished=finished,
            released=released,
        )
        self._stepping = bool(running)
        if self._stepping:
            asyncio.get_running_loop().call_soon(self._step)
        self._events.on_report(_NAME, 1, report)


async def _ready(parts: Parts) -> None:
    while not parts.desk.readiness()[0]:  # noqa: ASYNC110 - the daemon tells nobody but its log
        await asyncio.sleep(0.02)


def _config() -> Config:
    written: dict[str, Any] = {
        "executors": [
            {
                "name": _NAME,
                "kind": "simulated",
                "model": "bench",
                "max_seqs": _SEATS,
                "max_step_tokens": 8192,
                "max_context_tokens": 8192,
                "kv_tokens": 1 << 20,
            }
        ],
        "limits": {"max_batch_size": _SEATS, "max_batch_tokens": 8192, "wait_timeout": 0.0},
        "envelope": {
            "max_batch_size": [1, _SEATS],
            "max_batch_tokens": [_SEATS, 8192],
            "wait_timeout": [0.0, 0.05],
        },
        "control": {"policy": {"type": "static"}},
    }
    return Config.model_validate(written)
