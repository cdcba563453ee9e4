"""How a failure is told to a client: status, headers and the error object of OpenAI's API."""

from __future__ import annotations

import math

import msgspec
from aiohttp import web

from controller.errors import (
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineRefused,
    ExecutorFailed,
    Expired,
    HeadwayError,
    Infeasible,
    QueueFull,
    Shed,
)
from controller.request import Ended, Outcome

# When nobody can say when there will be room, a client should come back soon but not at once.
_RETRY_AFTER_S = 1.0


def error_object(error: HeadwayError) -> bytes:
    """`{"error": {...}}` as JSON."""
    return msgspec.json.encode(
        {
            "error": {
                "message": str(error),
                "type": error.type,
                "param": error.param,
                "code": error.code,
            }
        }
    )


def error_response(error: HeadwayError) -> web.Response:
    """The answer to a request that failed before anything of its answer was sent."""
    headers: dict[str, str] = {}
    retry_after_s = error.retry_after_s
    if retry_after_s is None and error.status in (429, 503):
        retry_after_s = _RETRY_AFTER_S
    if retry_after_s is not None:
        # Whole seconds, for clients that know no finer: 0 would have them back at once.
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
        headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
    if error.should_retry is not None:
        headers["x-should-retry"] = "true" if error.should_retry else "false"
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.Response(
        status=error.status,
        body=error_object(error),
        headers=headers,
        content_type="application/json",
    )


def failure_of(ended: Ended) -> HeadwayError:
    """The error that stands for a request which ended without a complete answer."""
    if (told := ended.refusal) is not None:
        return EngineRefused(
            told.message, status=told.status, type=told.type, code=told.code, param=told.param
        )
    words = ended.detail or ended.reason
    if ended.outcome is Outcome.EXPIRED:
        if ended.reason == "finish_by" or ended.request.times.first_token is not None:
            return DeadlineExceeded(ended.detail or "the request was not done by its deadline")
        if ended.reason == "late":
            return Expired(ended.detail or "the request could no longer begin in time")
        return Expired(ended.detail or "the request waited until its deadline and was not begun")
    if ended.outcome is Outcome.REJECTED:
        return _turned_away(ended)
    if ended.reason == "does_not_fit":
        return ContextLengthExceeded(ended.detail or "the request does not fit in memory")
    if ended.outcome is Outcome.CANCELLED and ended.reason == "draining":
        return Draining(ended.detail or "the server is shutting down")
    if ended.outcome is Outcome.CANCELLED:
        return ExecutorFailed(f"the request was cancelled: {words}", code="cancelled")
    return ExecutorFailed(ended.detail or f"the request could not be completed: {ended.reason}")


def _turned_away(ended: Ended) -> HeadwayError:
    """Why a request lost the place in the queue that it had."""
    if ended.reason == "shed":
        return Shed(ended.detail or "the request was turned away because higher tiers are in need")
    if ended.reason == "infeasible":
        return Infeasible(ended.detail or "the request could not begin before its deadline")
    return QueueFull(ended.detail or "the request made room for others of a higher tier")
