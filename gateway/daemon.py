"""The life of the daemon: start, serve, drain on the first signal, end at once on the second."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from dataclasses import dataclass, field

import structlog
import uvloop
from aiohttp import web

from controller.config import Config
from controller.config_load import Source
from controller.errors import ConfigError
from controller.request import Outcome
from gateway import logs
from gateway.app import runner_of
from gateway.assembly import Parts, assemble

# After the last request ended, its bytes still have to reach the client.
FLUSH_S = 1.0
# After the second signal: enough for error frames to reach the kernel.
HURRY_S = 0.1
STOP_GRACE_S = 5.0
# More than anybody's streams.
DESCRIPTORS = 65_536
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class CannotListen(Exception):
    """The address cannot be bound."""


@dataclass(slots=True)
class Stopping:
    """What ends the daemon: the first signal drains, the second one ends at once.

    `failure` says why it ends by itself, for the last line that it writes.
    """

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    now: asyncio.Event = field(default_factory=asyncio.Event)
    failure: str = ""

    def on_signal(self) -> None:
        """Called by the event loop; sets flags only."""
        (self.now if self.drain.is_set() else self.drain).set()

    def fail(self, why: str) -> None:
        """The daemon is no use any more."""
        self.failure = self.failure or why
        self.drain.set()


def serve(config: Config, source: Source) -> int:
    """Run the daemon until a signal ends it; answers the exit status of the process.

    `source` is where the configuration came from, and is loaded from again.
    """
    logs.set_up(config.log.level, config.log.format)
    _allow_many_connections()
    # Prompts are tokenised one at a time: threads of the library's own would only get in the way.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        failure = uvloop.run(_serve(config, source))
    except (ConfigError, CannotListen) as error:
        failure = str(error)
    if failure:
        print(f"headway: {failure}", file=sys.stderr)
    return 1 if failure else 0


def _allow_many_connections() -> None:
    """Take as many descriptors as the system lets us: shells and service managers begin with
    1,024, a stream takes one, and beyond that connections are closed without a word."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def calm_collector() -> None:
    """Let the garbage collector leave alone what lives as long as the daemon.

    A request leaves no cycles behind. With its own thresholds the collector looks at whatever is
    in flight hundreds of times a second under load, for 2 to 3 % of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _serve(config: Config, source: Source) -> str:
    """Serve until told to end; answers why it had to end by itself, or an empty text."""
    parts = assemble(config, environ=os.environ, source=source)
    assert parts.reloader is not None
    calm_collector()
    stopping = Stopping()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopping.on_signal)
    loop.add_signal_handler(signal.SIGHUP, parts.reloader.ask)
    runner = runner_of(parts.app)
    await runner.setup()
    watching: set[asyncio.Task[None]] = set()
    try:
        address = await _listen(runner, config)
        for process in parts.processes.values():
            process.start()
        watching = {
            loop.create_task(_tick(parts, stopping)),
            loop.create_task(_watch_executors(parts, stopping)),
            loop.create_task(parts.reloader.watch()),
        }
        structlog.get_logger("headway").info("listening", address=address, pid=os.getpid())
        print(_welcome(address, config), flush=True)
        await stopping.drain.wait()
        await _drain(parts, parts.in_force.config.server.drain_timeout, stopping)
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        hurry = stopping.now.is_set()
        grace_s = 0.0 if hurry else STOP_GRACE_S
        # Executors last: until here streams may still end by their own tokens.
        await _close(runner, HURRY_S if hurry else FLUSH_S)
        await asyncio.gather(*(process.stop(grace_s) for process in parts.processes.values()))
        parts.ticker.close()
        if parts.recorder is not None:
            parts.recorder.close()
    structlog.get_logger("headway").info("stopped")
    return stopping.failure


async def _listen(runner: web.AppRunner, config: Config) -> str:
    """Bind the address; answers it as a URL. Raises CannotListen."""
    host, port = config.server.host, config.server.port
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        # The numbers of a failed look-up are not those of the system.
        code = None if isinstance(error, socket.gaierror) else error.errno
        why = os.strerror(code) if code else str(error.strerror or error)
        raise CannotListen(
            f"cannot listen on {host}:{port} (server.host, server.port): {why}"
        ) from error
    bound, number = runner.addresses[0][:2]
    return f"http://[{bound}]:{number}" if ":" in bound else f"http://{bound}:{number}"


async def _tick(parts: Parts, stopping: Stopping) -> None:
    """Without its control loop the daemon is no use: it says why, and drains."""
    try:
        await parts.ticker.run()
    except Exception as error:
        structlog.get_logger("headway").exception("the control loop ended")
        stopping.fail(f"the control loop ended: {error!r}")


async def _watch_executors(parts: Parts, stopping: Stopping) -> None:
    """With every executor given up for good there is nothing to wait for."""
    await parts.dispatcher.given_up.wait()
    words = "; ".join(f"{name}: {process.words}" for name, process in parts.processes.items())
    stopping.fail(f"no executor can run ({words})")


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


async def _close(runner: web.AppRunner, flush_s: float) -> None:
    """Close the listener and all connections; answers on their way have `flush_s` to go out."""
    for site in list(runner.sites):
        await site.stop()
    if runner.server is not None:
        runner.server.pre_shutdown()
        await runner.server.shutdown(flush_s)
    await runner.cleanup()


def _welcome(address: str, config: Config) -> str:
    key = " -H 'authorization: Bearer KEY'" if config.auth.keys else ""
    question = (
        '{"messages": [{"role": "user", "content": "What is the capital of France?"}], '
        '"temperature": 0, "max_tokens": 64}'
    )
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
    curl {address}/v1/chat/completions -H 'content-type: application/json'{key} \\
      -d '{question}'
"""
