"""The daemon's parts in the test's own process, with real workers: for what has no route."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from controller.config import Config
from gateway.app import runner_of
from gateway.assembly import Parts, assemble
from tests.e2e.client import Client


@asynccontextmanager
async def inside(config: Mapping[str, Any]) -> AsyncIterator[tuple[Parts, Client]]:
    """A daemon that serves on this event loop, once its executors are ready."""
    parts = assemble(Config.model_validate(config), environ={})
    runner = runner_of(parts.app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    for process in parts.processes.values():
        process.start()
    ticking = asyncio.create_task(parts.ticker.run())
    host, port = runner.addresses[0]
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}", connector=connector) as session:
            client = Client(session)
            await client.until(
                lambda state: all(e["state"] == "ready" for e in state["executors"].values()),
                "executors",
            )
            yield parts, client
    finally:
        ticking.cancel()
        await asyncio.wait({ticking})
        await asyncio.gather(*(process.stop(1.0) for process in parts.processes.values()))
        await runner.cleanup()
        parts.ticker.close()
