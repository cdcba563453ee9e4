"""An upstream executor with a fake engine behind it, and somebody who hears what it reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from executor.contract import (
    Ask,
    Finished,
    Key,
    Loading,
    Ready,
    Report,
    Returned,
    Said,
    Sampling,
    Submit,
    Work,
)
from executor.process import RestartPolicy
from executor.upstream import UpstreamExecutor
from executor.upstream_settings import UpstreamSettings


@dataclass
class Heard:
    """Everything that was told, and a way to wait for it."""

    log: list[tuple[Any, ...]] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    ready: list[Ready] = field(default_factory=list)
    during_report: Callable[[Report], None] = lambda report: None

    def on_loading(self, name: str, loading: Loading) -> None:
        self.log.append(("loading", loading.stage))

    def on_ready(self, name: str, incarnation: int, ready: Ready) -> None:
        self.ready.append(ready)
        self.log.append(("ready", incarnation))

    def on_report(self, name: str, incarnation: int, report: Report) -> None:
        self.reports.append(report)
        self.during_report(report)

    def on_lost(self, name: str, incarnation: int, reason: str, restart_in_s: float | None) -> None:
        self.log.append(("lost", incarnation, reason, restart_in_s))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until it is so."""
        async with asyncio.timeout(10.0):
            while not condition():  # noqa: ASYNC110 - what is waited for is anything at all
                await asyncio.sleep(0.001)

    # --- what it comes to -------------------------------------------------------------------

    def said(self, name: str) -> list[Said]:
        return [
            said
            for report in self.reports
            for tokens in report.tokens
            if tokens.request_id == name
            for said in tokens.said
        ]

    def text(self, name: str) -> str:
        """The text of a completion."""
        texts = (said.choice.get("text") for said in self.said(name))
        return "".join(msgspec.json.decode(raw) for raw in texts if raw is not None)

    def tokens(self, name: str) -> int:
        """How many tokens of a request were told, each with the right index."""
        count = 0
        for report in self.reports:
            for tokens in report.tokens:
                if tokens.request_id == name:
                    assert tokens.index == count
                    count += len(tokens.ids)
        return count

    @property
    def finished(self) -> list[Finished]:
        return [one for report in self.reports for one in report.finished]

    @property
    def returned(self) -> list[Returned]:
        return [one for report in self.reports for one in report.returned]

    @property
    def released(self) -> list[Key]:
        return [one for report in self.reports for one in report.released]

    @property
    def lost(self) -> list[tuple[Any, ...]]:
        return [entry[1:] for entry in self.log if entry[0] == "lost"]


def submit(name: str, *, attempt: int = 1, priority: int = 0, **fields: Any) -> Submit:
    """A text completion that is asked for."""
    body = {"prompt": "hello", **fields}
    raw = {key: msgspec.Raw(msgspec.json.encode(value)) for key, value in body.items()}
    ask = Ask("/v1/completions", raw)
    return Submit(name, attempt, [], 5, 10, Sampling(), priority, ask)


def work(*submits: Submit, release: tuple[Key, ...] = (), epoch: int = 0) -> Work:
    return Work(epoch, 2048, list(submits), list(release))


@asynccontextmanager
async def upstream(
    heard: Heard, url: str, *, ready: bool = True, **options: Any
) -> AsyncIterator[UpstreamExecutor]:
    """One that was started, and is stopped at the end. Options of either record."""
    names = set(UpstreamSettings.__struct_fields__)
    settings = {name: options.pop(name) for name in list(options) if name in names}
    made = UpstreamExecutor(
        "up",
        UpstreamSettings(url=url, **{"scrape_interval_s": 0.05, **settings}),
        heard,
        **{"restart": RestartPolicy(first_s=0.01, cap_s=0.05), **options},
    )
    made.start()
    try:
        if ready:
            await heard.until(lambda: made.ready)
        yield made
    finally:
        await made.stop(0.0)
