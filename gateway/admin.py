"""The operator's routes: state, decisions, limits by hand, health, readiness, metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import hdrs, web

from controller.errors import InvalidRequest, NotFound
from controller.units import parse_duration
from gateway.front import Front

if TYPE_CHECKING:
    from gateway.contract import Desk
    from policies.contract import Limits

_DECISIONS = 20
_MAX_DECISIONS = 1000
_MAX_PIN_S = 7 * 86400.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Admin:
    """Handlers of the routes under `/admin`, and of those that need no key."""

    def __init__(self, desk: Desk, front: Front) -> None:
        self._desk = desk
        self._front = front

    # --- open to everybody ------------------------------------------------------------------

    async def health(self, _http: web.Request) -> web.Response:
        """`GET /health` and `/healthz`: whether the process works."""
        healthy = self._desk.healthy()
        return _json({"status": "ok" if healthy else "failing"}, status=200 if healthy else 503)

    async def ready(self, _http: web.Request) -> web.Response:
        """`GET /readyz`: whether work can be done now, and why not."""
        ready, reasons = self._desk.readiness()
        return _json({"ready": ready, **reasons}, status=200 if ready else 503)

    async def metrics(self, http: web.Request) -> web.Response:
        """`GET /metrics`, in Prometheus' text format."""
        # A probe by HEAD must not cost a collection.
        body = b"" if http.method == hdrs.METH_HEAD else self._desk.metrics()
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: _METRICS_TYPE})

    # --- for the operator -------------------------------------------------------------------

    async def state(self, http: web.Request) -> web.Response:
        """`GET /admin/state`."""
        self._check(http)
        return _json(self._desk.state())

    async def decisions(self, http: web.Request) -> web.Response:
        """`GET /admin/decisions?count=`, newest first."""
        self._check(http)
        text = http.query.get("count", str(_DECISIONS))
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MAX_DECISIONS):
            raise InvalidRequest(
                f"count: {text[:32]!r} should be a number from 1 to {_MAX_DECISIONS}", param="count"
            )
        return _json({"decisions": self._desk.decisions(int(text))})

    async def request(self, http: web.Request) -> web.Response:
        """`GET /admin/requests/{id}`: where a request waits, or where its time went."""
        self._check(http)
        request_id = http.match_info["id"]
        found = self._desk.request(request_id)
        if found is None:
            raise NotFound(
                f"no request {request_id!r}: it is unknown, or ended so long ago that it was "
                "forgotten; the id is that of the answer, with -0, -1, ... where it has several "
                "choices",
                param="id",
            )
        return _json(found)

    async def set_limits(self, http: web.Request) -> web.Response:
        """`PUT /admin/limits`: `{"max_batch_size": 8, "expires": "10m"}` or `{"release": true}`, of
        all groups or, with `"group": NAME`, of one."""
        self._check(http)
        body = await _object(http)
        release, expires = body.pop("release", False), body.pop("expires", None)
        group = body.pop("group", None)
        if not isinstance(group, str | None):
            raise InvalidRequest("group: should be the name of a group", param="group")
        if release is True:
            if body or expires is not None:
                raise InvalidRequest("release: it goes alone, without limits", param="release")
            return _json({"pinned": False, "limits": _limits(self._desk.release(group=group))})
        if release is not False:
            raise InvalidRequest("release: should be true or left out", param="release")
        if not body:
            raise InvalidRequest(
                "name the limits to hold, such as max_batch_size, max_batch_tokens or "
                'wait_timeout_s, or give {"release": true}'
            )
        expires_s = _expiry(expires)
        limits = _limits(self._desk.pin(body, expires_s, group=group))
        return _json({"pinned": True, "expires_s": expires_s, "limits": limits})

    async def set_policy(self, http: web.Request) -> web.Response:
        """`PUT /admin/policy`: `{"type": "aimd", "parameters": {...}}` or `{"rollback": true}`."""
        self._check(http)
        body = await _object(http)
        if "rollback" in body:
            if body != {"rollback": True}:
                raise InvalidRequest(
                    "rollback: should be true, and go alone, without type and parameters",
                    param="rollback",
                )
            return _json(self._desk.roll_back_policy())
        for key in body:
            if key not in ("type", "parameters"):
                raise InvalidRequest(
                    f"{key}: unknown; use type and parameters, or rollback", param=key
                )
        kind, parameters = body.get("type"), body.get("parameters", {})
        if not isinstance(kind, str) or not kind:
            raise InvalidRequest(
                "type: should be a name that `headway policies list` shows, or module:Class",
                param="type",
            )
        if not isinstance(parameters, dict):
            raise InvalidRequest(
                "parameters: should be an object; `headway policies show TYPE` names them",
                param="parameters",
            )
        return _json(await self._desk.switch_policy(kind, parameters))

    def _check(self, http: web.Request) -> None:
        self._front.door.check(http.headers.get(hdrs.AUTHORIZATION), http.remote)


async def _object(http: web.Request) -> dict[str, Any]:
    """The body, a JSON object."""
    try:
        return msgspec.json.decode(await http.read(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body should be a JSON object: {error}") from None


def _expiry(value: Any) -> float:
    """Seconds from now, of a number or a text with a unit."""
    seconds: float | None = None
    if isinstance(value, str):
        try:
            seconds = parse_duration(value)
        except ValueError:
            seconds = None
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    if seconds is None or not 0 < seconds <= _MAX_PIN_S:
        raise InvalidRequest(
            'expires: say for how long the limits are held, in seconds or as "10m"; more than 0, '
            "at most 7d",
            param="expires",
        )
    return seconds


def _limits(limits: Limits) -> dict[str, Any]:
    return {
        "max_batch_size": limits.max_batch_size,
        "max_batch_tokens": limits.max_batch_tokens,
        "wait_timeout_s": limits.wait_timeout_s,
        "tiers": {
            name: {"max_seats": tier.max_seats, "wait_timeout_s": tier.wait_timeout_s}
            for name, tier in limits.tiers.items()
        },
    }


def _json(record: Mapping[str, Any], *, status: int = 200) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(record), status=status, content_type="application/json"
    )
