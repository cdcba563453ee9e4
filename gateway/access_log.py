"""One line of log for each HTTP request at its end, for those who ask for it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from gateway.request_ids import request_id_of

# What nginx writes of a client that left before the end.
LEFT = 499


async def logged(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Log who asked for what and what came of it; no query, no header, no body."""
    began, status = time.perf_counter(), LEFT
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        structlog.get_logger("headway.access").info(
            "request",
            method=request.method,
            path=request.rel_url.raw_path,
            status=status,
            duration_s=round(time.perf_counter() - began, 6),
            peer=request.remote,
            request_id=request_id_of(request),
        )
