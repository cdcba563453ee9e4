"""A daemon in a few lines: gives an engine work, steps it, and keeps what it reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from executor.continuous import ContinuousEngine
from executor.contract import (
    ContinuousSettings,
    Finished,
    Key,
    PaddedSettings,
    Ready,
    Report,
    Returned,
    Sampling,
    Submit,
    Work,
)
from executor.engine import Engine
from executor.padded import PaddedEngine

GREEDY = Sampling(ignore_eos=True)


def load(folder: Path, **settings: Any) -> tuple[ContinuousEngine, Ready]:
    """The engine over a folder, in float32 on one thread, without warm-up if not asked for."""
    engine = ContinuousEngine(ContinuousSettings(**_chosen(folder, settings)))
    return engine, engine.load(lambda stage, fraction: None)


def load_padded(folder: Path, **settings: Any) -> tuple[PaddedEngine, Ready]:
    """Likewise, run to completion."""
    engine = PaddedEngine(PaddedSettings(**_chosen(folder, settings)))
    return engine, engine.load(lambda stage, fraction: None)


def _chosen(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {"dtype": "float32", "threads": 1, "device": "cpu", "warmup_sizes": ()}
    return {"model": str(folder), "served_name": "tiny", **plain, **settings}


class Driver:
    """`text` holds what was generated, by request; a token that comes twice or skips one fails."""

    def __init__(self, engine: Engine, max_tokens: int = 2048) -> None:
        self.engine: Any = engine  # of either kind: its tests look inside
        self.max_tokens = max_tokens
        self.epoch = 1
        self.requests: dict[str, Submit] = {}
        self.text: dict[str, list[int]] = {}
        self.ended: dict[str, Finished] = {}
        self.returned: list[Returned] = []
        self.reports: list[Report] = []

    def submit(
        self,
        name: str,
        tokens: Sequence[int],
        new: int = 8,
        *,
        sampling: Sampling = GREEDY,
        priority: int = 0,
    ) -> None:
        """First attempt at a request."""
        request = Submit(name, 1, list(tokens), len(tokens), new, sampling, priority)
        self.requests[name], self.text[name] = request, []
        self.work(submit=[request])

    def resubmit(self, name: str) -> None:
        """The next attempt, with what has come so far."""
        old, text = self.requests[name], self.text[name]
        request = Submit(
            request_id=name,
            attempt=old.attempt + 1,
            tokens=old.tokens[: old.prompt_length] + text,
            prompt_length=old.prompt_length,
            max_new_tokens=old.max_new_tokens - (len(text) - self._known(old)),
            sampling=old.sampling,
            priority=old.priority,
        )
        self.requests[name] = request
        self.work(submit=[request])

    def release(self, *names: str) -> None:
        """Let the current attempts go."""
        self.work(release=[Key(name, self.requests[name].attempt) for name in names])

    def work(self, submit: Sequence[Submit] = (), release: Sequence[Key] = ()) -> None:
        """One message to the engine, with the limits in force."""
        self.engine.apply(Work(self.epoch, self.max_tokens, list(submit), list(release)))

    def step(self) -> Report:
        """One step, its report checked and kept."""
        report: Report = self.engine.step()
        for part in report.tokens:
            assert part.attempt == self.requests[part.request_id].attempt
            assert part.index == len(self.text[part.request_id])
            self.text[part.request_id].extend(part.ids)
        for finished in report.finished:
            self.ended[finished.request_id] = finished
        self.returned.extend(report.returned)
        self.reports.append(report)
        return report

    def run(self) -> dict[str, list[int]]:
        """Until there is nothing left to do."""
        while self.engine.has_work():
            self.step()
        return self.text

    def _known(self, request: Submit) -> int:
        return len(request.tokens) - request.prompt_length


def held(engine: ContinuousEngine) -> tuple[int, bool]:
    """KV tokens held by sequences, and whether every byte is either free or kept for reuse."""
    batch = engine._batch
    return batch.held_tokens(), batch._free_bytes() + batch._kept_bytes() == batch._pool_bytes


def assert_same(reference: Any, tokens: list[int], ours: list[int], theirs: list[int]) -> None:
    """Equal, or they part where the model itself can hardly tell the two tokens apart."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            with torch.inference_mode():
                logits = reference(torch.tensor([tokens + theirs[:i]])).logits[0, -1]
            first, second = logits.topk(2).values.tolist()
            assert first - second < 1e-4, f"token {i}: {a} instead of {b}"
            return


def prompt(seed: int, length: int) -> list[int]:
    """Tokens that no other seed's prompt shares a prefix with, clear of the special ones."""
    return [3 + (seed * 7919 + i * i * 31 + i * 17) % 370 for i in range(length)]
