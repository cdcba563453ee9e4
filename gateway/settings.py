"""What the HTTP side is told at start: the tiers as clients name them, and its own bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierPlan:
    """A tier as the HTTP side sees it. Higher `priority` goes first; no two tiers share one.

    `service_tier` is the value of OpenAI's parameter that asks for this tier and is reported for
    it. A request expires where it waits `start_within_s` after its arrival and is ended
    `finish_within_s` after it; None is never.
    """

    priority: int
    service_tier: str
    start_within_s: float | None = None
    finish_within_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that the HTTP side may be told.

    `models` are the names under which the model is served, the first is the one reported where the
    client named none; `created` is its unix time in the list of models. `default_tier` is the tier
    of everybody while there are no keys. A stream without a token for `keep_alive_after_s` gets a
    comment line. Past `stream_buffer_bytes` unsent, a stream's tokens coalesce; past twice that, or
    when the rest is not taken within `slow_reader_after_s` of the end, the client is dropped.
    `expected_new_tokens` is how long a completion is thought to become where the client said
    nothing, for the accounts of queue and memory only. `access_log` logs each request at its end.
    """

    models: tuple[str, ...]
    tiers: Mapping[str, TierPlan]
    default_tier: str
    created: int
    keep_alive_after_s: float = 5.0
    max_body_bytes: int = 8 * 2**20
    stream_buffer_bytes: int = 64 * 2**10
    slow_reader_after_s: float = 30.0
    expected_new_tokens: int = 256
    max_choices: int = 128
    access_log: bool = False
