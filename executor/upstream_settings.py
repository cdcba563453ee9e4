"""What there is to know about an engine behind HTTP before it is asked."""

from __future__ import annotations

from typing import Literal

import msgspec


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An engine behind HTTP that speaks OpenAI's API.

    `url` is what comes before `/v1`. `engine` "auto" looks at what it exports. `model` is its name
    there (empty: the first that it lists), `served_name` the one here. `max_seqs` requests are in
    flight at most; `max_step_tokens` bounds the prompts that wait there. `kv_tokens` and
    `max_context_tokens` 0: as the engine says, else unbounded. `priorities` are those of all tiers.
    """

    url: str
    engine: Literal["auto", "vllm", "sglang", "tgi", "llamacpp", "transformers", "openai"] = "auto"
    model: str = ""
    served_name: str = ""
    api_key: str = ""
    max_seqs: int = 64
    max_step_tokens: int = 8192
    kv_tokens: int = 0
    max_context_tokens: int = 0
    scrape_interval_s: float = 1.0
    connect_timeout_s: float = 5.0
    priorities: tuple[int, ...] = ()
