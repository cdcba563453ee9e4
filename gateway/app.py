"""The HTTP application: its routes, and what happens at its edge to every request and error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from controller.errors import (
    HeadwayError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    PayloadTooLarge,
)
from gateway import request_ids
from gateway.access_log import LEFT, logged
from gateway.admin import Admin
from gateway.failures import error_response
from gateway.front import Access, Front
from gateway.openai import Completions
from gateway.preparing import Preparer
from gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from gateway.contract import Desk

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# An idle connection is kept this long: longer than a load balancer in front would (60 s).
_IDLE_CONNECTION_S = 75.0
# The daemon drains before it closes; this is for the last bytes of what it ended.
_CLOSING_S = 1.0
_ADMIN_BODY_BYTES = 2**20


def build_app(
    desk: Desk,
    settings: GatewaySettings,
    *,
    access: Access,
    environ: Mapping[str, str],
    preparer: Preparer,
) -> web.Application:
    """The application in front of a desk. Serve it with `runner_of`; it closes the preparer.

    Secrets that are named by a variable are looked up in `environ`. Raises ConfigError.
    """
    front = Front.build(settings, access, environ=environ)
    return app_of(desk, front, preparer=preparer)


def app_of(desk: Desk, front: Front, *, preparer: Preparer) -> web.Application:
    """The application in front of a desk, which goes by what the front has at any time."""
    completions = Completions(desk, front, preparer=preparer)
    admin = Admin(desk, front)
    # Bodies of completions are bounded by the settings, where they are read.
    app = web.Application(middlewares=[_edge_of(front)], client_max_size=_ADMIN_BODY_BYTES)
    app.on_cleanup.append(preparer.close)
    app.router.add_post("/v1/chat/completions", completions.chat)
    app.router.add_post("/v1/completions", completions.completion)
    app.router.add_get("/v1/models", completions.models)
    app.router.add_get("/v1/models/{id:.+}", completions.model)
    app.router.add_get("/health", admin.health)
    app.router.add_get("/healthz", admin.health)
    app.router.add_get("/readyz", admin.ready)
    app.router.add_get("/metrics", admin.metrics)
    app.router.add_get("/admin/state", admin.state)
    app.router.add_get("/admin/decisions", admin.decisions)
    app.router.add_get("/admin/requests/{id}", admin.request)
    app.router.add_put("/admin/limits", admin.set_limits)
    app.router.add_put("/admin/policy", admin.set_policy)
    app.router.add_get("/", _index)
    return app


def runner_of(app: web.Application) -> web.AppRunner:
    """How the application must be run: a client that goes away cancels its handler at once."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=_IDLE_CONNECTION_S,
        shutdown_timeout=_CLOSING_S,
    )


def _edge_of(front: Front) -> Middleware:
    @web.middleware
    async def edge(request: web.Request, handler: Handler) -> web.StreamResponse:
        if front.settings.access_log:
            return await logged(request, partial(_answer, handler=handler))
        return await _answer(request, handler)

    return edge


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every request its id, and every error the shape that clients read."""
    request_id = request_ids.give_request_id(request)
    try:
        response = await handler(request)
    except ConnectionError:
        if request.transport is not None and not request.transport.is_closing():
            raise
        # The client left while it was being answered. The server finds nobody to send this to and
        # says nothing; an exception it would log as an error.
        return web.Response(status=LEFT)
    except Exception as error:
        # Part of an answer is out: there is no place for another status.
        if request.writer.output_size > 0:
            raise
        response = _failure(request, error, request_id)
    if not response.prepared:
        response.headers[request_ids.HEADER] = request_id
    return response


def _failure(request: web.Request, error: Exception, request_id: str) -> web.Response:
    if isinstance(error, HeadwayError):
        return error_response(error)
    if isinstance(error, web.HTTPException):
        response = error_response(_explained(request, error))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    if isinstance(error, web.RequestPayloadError):
        return error_response(InvalidRequest(f"the body cannot be read: {error}"))
    structlog.get_logger("headway.gateway").error(
        "request failed",
        method=request.method,
        path=request.path,
        request_id=request_id,
        exc_info=error,
    )
    return error_response(HeadwayError("something went wrong here; see the server's log"))


def _explained(http: web.Request, error: web.HTTPException) -> HeadwayError:
    if error.status == 404:
        return NotFound(f"there is nothing at {http.path}; GET / lists what there is")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{http.method} is not possible on {http.path}, use {allowed}")
    if error.status == 413:
        return PayloadTooLarge(f"the body is longer than {http.client_max_size} bytes")
    if error.status < 500:
        refused = InvalidRequest(error.reason)
        refused.status = error.status
        return refused
    return HeadwayError(error.reason)


async def _index(_http: web.Request) -> web.Response:
    """`GET /`: where everything is."""
    routes = {
        "chat": "POST /v1/chat/completions",
        "completions": "POST /v1/completions",
        "models": "GET /v1/models",
        "health": "GET /healthz, /readyz",
        "metrics": "GET /metrics",
        "admin": "GET /admin/state, /admin/decisions, /admin/requests/{id}; "
        "PUT /admin/limits, /admin/policy; POST /-/reload",
    }
    return web.Response(
        body=msgspec.json.encode({"server": "headway", "routes": routes}),
        content_type="application/json",
    )
