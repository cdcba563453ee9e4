"""Whether an engine behind HTTP is there and can work, and what it is."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from executor.contract import BOUNDLESS, Capacity, Feature
from executor.upstream_dialects import DIALECTS, Dialect, recognise
from executor.upstream_scrape import kv_tokens, read
from executor.upstream_settings import UpstreamSettings


class Unreachable(OSError):
    """The engine cannot be asked, or says that it cannot work; the message says why."""


@dataclass(frozen=True, slots=True)
class About:
    """An engine that is there: its dialect, the name of its model there, what it can do, and what
    it exported then (empty: nothing)."""

    dialect: Dialect
    model: str
    capacity: Capacity
    metrics: str


class Probe:
    """Asks one engine. Every question takes `connect_timeout_s` at most."""

    def __init__(self, session: aiohttp.ClientSession, settings: UpstreamSettings) -> None:
        self._session = session
        self._settings = settings

    async def alive(self) -> None:
        """Raises Unreachable unless it can work."""
        await self._health()
        await self._models()

    async def about(self) -> About:
        """What it is. Raises Unreachable."""
        settings = self._settings
        await self._health()
        models = await self._models()
        wanted = settings.model
        entry = next((one for one in models if one.get("id") == wanted), None)
        if entry is None:
            if wanted and models:
                named = ", ".join(str(one.get("id")) for one in models)
                raise Unreachable(f"it has no model {wanted!r}, it has {named}")
            entry = models[0] if models else {}
        model = wanted or str(entry.get("id", ""))
        metrics = await self.metrics(or_nothing=True)
        dialect = DIALECTS.get(settings.engine)
        if dialect is None:
            dialect = recognise(metrics, str(entry.get("owned_by", "")))
        seats, context = settings.max_seqs, settings.max_context_tokens
        more = await self._more(dialect)
        seats = min(seats, more.get("seats") or seats)
        context = context or _count(entry.get("max_model_len")) or more.get("context") or BOUNDLESS
        memory = settings.kv_tokens or _memory(metrics) or context * seats
        return About(
            dialect,
            model,
            Capacity(
                model=settings.served_name or model or dialect.name,
                device=f"{dialect.name} at {settings.url}",
                max_seqs=seats,
                max_step_tokens=settings.max_step_tokens,
                kv_tokens=memory,
                max_context_tokens=context,
                can_preempt=False,
                can_resume=False,
                reports_kv=_reports_kv(metrics),
                tells_prefill=False,
                features=frozenset(Feature),
            ),
            metrics,
        )

    async def metrics(self, *, or_nothing: bool = False) -> str:
        """Its exposition. Raises Unreachable, unless nothing will do as well."""
        try:
            status, body = await self._get("/metrics")
        except Unreachable:
            if or_nothing:
                return ""
            raise
        if status == 200:
            return body.decode(errors="replace")
        if or_nothing:
            return ""
        raise Unreachable(f"/metrics answered {status}")

    async def _health(self) -> None:
        """Engines that have no such path say so, and are as well as they can say."""
        status, _ = await self._get("/health")
        if status >= 500:
            raise Unreachable(f"/health answered {status}")

    async def _models(self) -> list[dict[str, Any]]:
        status, body = await self._get("/v1/models")
        if status == 404:
            return []
        if status in (401, 403):
            raise Unreachable(f"it answered {status}: its key (api_key_env) is missing or wrong")
        if status != 200:
            raise Unreachable(f"/v1/models answered {status}")
        record = _json(body)
        found = record.get("data") if isinstance(record, dict) else None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    async def _more(self, dialect: Dialect) -> dict[str, int | None]:
        """Seats and context, where this kind of engine has a place of its own for them."""
        path = {"llamacpp": "/props", "tgi": "/info"}.get(dialect.name)
        if path is None:
            return {}
        try:
            status, body = await self._get(path)
        except Unreachable:
            return {}
        record = _json(body) if status == 200 else None
        if not isinstance(record, dict):
            return {}
        if dialect.name == "tgi":
            return {"context": _count(record.get("max_total_tokens"))}
        defaults = record.get("default_generation_settings")
        context = defaults.get("n_ctx") if isinstance(defaults, dict) else None
        return {"seats": _count(record.get("total_slots")), "context": _count(context)}

    async def _get(self, path: str) -> tuple[int, bytes]:
        settings = self._settings
        try:
            async with (
                asyncio.timeout(settings.connect_timeout_s),
                self._session.get(settings.url + path, allow_redirects=False) as response,
            ):
                return response.status, await response.read()
        except TimeoutError as error:
            raise Unreachable(
                f"{path} had no answer in {settings.connect_timeout_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(_words(error)) from error


def _words(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        # The library's own words are about its options.
        code = error.os_error.errno or 0
        known = code > 0 and not isinstance(error.os_error, socket.gaierror)
        return os.strerror(code) if known else str(error.os_error.strerror or error.os_error)
    return str(error) or type(error).__name__


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _reports_kv(metrics: str) -> bool:
    try:
        return "kv" in read(metrics)
    except ValueError:
        return False


def _memory(metrics: str) -> int | None:
    try:
        return kv_tokens(metrics)
    except ValueError:
        return None
