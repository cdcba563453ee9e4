"""The life of the daemon: start, serve, drain on the first signal, end at once on the second."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field

import structlog
import uvloop
from aiohttp import web

from controller.config import Config
from controller.errors import ConfigError
from controller.request import Outcome
from gateway import logs
from gateway.app import runner_of
from gateway.assembly import Parts, assemble

# After the last request ended, its bytes still have to reach the client.
FLUSH_S = 1.0
STOP_GRACE_S = 5.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class Stopping:
    """What signals ask for: the first one drains, the second one ends at once."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    now: asyncio.Event = field(default_factory=asyncio.Event)

    def on_signal(self) -> None:
        """Called by the event loop; sets flags only."""
        (self.now if self.drain.is_set() else self.drain).set()


def serve(config: Config) -> int:
    """Run the daemon until a signal ends it; answers the exit status of the process."""
    logs.set_up(config.log.level, config.log.format)
    try:
        return uvloop.run(_serve(config))
    except (ConfigError, OSError) as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1


async def _serve(config: Config) -> int:
    log = structlog.get_logger("headway")
    parts = assemble(config, environ=os.environ)
    stopping = Stopping()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.on_signal)
    runner = runner_of(parts.app)
    await runner.setup()
    site = web.TCPSite(runner, config.server.host, config.server.port)
    await site.start()
    for process in parts.processes.values():
        process.start()
    ticking = loop.create_task(parts.ticker.run())
    ticking.add_done_callback(lambda task: _on_ticker_end(task, stopping))
    address = _address(runner)
    log.info("listening", address=address, pid=os.getpid())
    print(_welcome(address, config), flush=True)
    try:
        await stopping.drain.wait()
        await _drain(parts, config.server.drain_timeout, stopping)
    finally:
        # Executors last: until here streams may still end by their own tokens.
        ticking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({ticking})
        grace_s = 0.0 if stopping.now.is_set() else STOP_GRACE_S
        await asyncio.gather(*(p.stop(grace_s) for p in parts.processes.values()))
        await runner.cleanup()
        parts.ticker.close()
    log.info("stopped")
    return 1 if ticking.done() and not ticking.cancelled() else 0


async def _drain(parts: Parts, timeout_s: float, stopping: Stopping) -> None:
    """Take nothing new; let what waits and runs end, within the bound; then end it."""
    log = structlog.get_logger("headway")
    batcher = parts.dispatcher.batcher
    batcher.drain()
    parts.dispatcher.pump()
    log.info("draining", requests=len(batcher.book.requests), timeout_s=timeout_s)
    emptied = asyncio.create_task(parts.dispatcher.empty.wait())
    forced = asyncio.create_task(stopping.now.wait())
    await asyncio.wait({emptied, forced}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    emptied.cancel()
    forced.cancel()
    left = list(batcher.book.requests)
    if left:
        log.warning("ending requests that did not finish", requests=len(left))
    for request_id in left:
        parts.dispatcher.cancel(request_id, Outcome.CANCELLED, "draining")
    if left and not stopping.now.is_set():
        await asyncio.sleep(FLUSH_S)


def _on_ticker_end(task: asyncio.Task[None], stopping: Stopping) -> None:
    """Without its control loop the daemon is no use: it says why, and drains."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        structlog.get_logger("headway").error("the control loop ended", exc_info=error)
        stopping.drain.set()


def _address(runner: web.AppRunner) -> str:
    host, port = runner.addresses[0][:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _welcome(address: str, config: Config) -> str:
    question = '{"messages": [{"role": "user", "content": "What is the capital of France?"}]}'
    tiers = ", ".join(
        f"{name} ({tier.service_tier or name})" for name, tier in config.tiers.items()
    )
    return f"""
  Headway listens on {address} (the model may still be loading: {address}/readyz)

    tiers      {tiers}
    policy     {config.control.policy.type}
    state      {address}/admin/state
    decisions  {address}/admin/decisions
    metrics    {address}/metrics

  Try it:
    curl {address}/v1/chat/completions -H 'content-type: application/json' \\
      -d '{question}'
"""
