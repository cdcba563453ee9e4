"""Traffic that was recorded: which files can be replayed, and how they are fitted to a run."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from bench.arrivals import Arrival, Workload
from bench.workloads import Scene

Raw = TypeVar("Raw")


class BadTrace(ValueError):
    """A file that cannot be replayed; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Line:
    """One recorded request: seconds on any clock; what was not recorded is None.

    `asked` is the client's `max_tokens`, 0 where it set none. `whole` False: the completion was cut
    short, `output` is only how far it came. `key` tells who asked.
    """

    time_s: float
    prompt: int | None
    output: int | None
    tier: str | None = None
    asked: int | None = None
    whole: bool = True
    key: int | None = None


def _azure(row: Mapping[str, str]) -> Line:
    """Azure's LLM inference traces (AzurePublicDataset): seven digits after the second."""
    stamp, _, fraction = row["TIMESTAMP"].strip().partition(".")
    second = datetime.fromisoformat(stamp).replace(tzinfo=UTC).timestamp()
    digits = "".join(digit for digit in fraction[:7] if digit.isdigit())
    time_s = second + (float(f"0.{digits}") if digits else 0.0)
    return Line(time_s, int(row["ContextTokens"]), int(row["GeneratedTokens"]))


def _own(row: Mapping[str, str]) -> Line:
    """What the daemon records (`record` in the configuration): no content, only sizes."""
    return Line(
        time_s=float(row["arrival_s"]),
        prompt=_number(row["prompt_tokens"]),
        output=_number(row["output_tokens"]),
        tier=row.get("tier") or None,
        asked=None if row.get("asked_tokens") is None else _number(row["asked_tokens"]) or 0,
        whole=(row.get("outcome") or "finished") == "finished",
        key=_number(row.get("client")),
    )


def _mooncake(text: str) -> Line:
    """Mooncake's traces (kvcache-ai/Mooncake): JSON lines, milliseconds."""
    row = json.loads(text)
    return Line(row["timestamp"] / 1e3, int(row["input_length"]), int(row["output_length"]))


def _number(text: str | None) -> int | None:
    return int(text) if text and text.strip() else None


_TABLES: Mapping[str, Callable[[Mapping[str, str]], Line]] = MappingProxyType(
    {"TIMESTAMP": _azure, "arrival_s": _own}
)


def read(path: Path) -> list[Line]:
    """The lines of a trace in order of time. Raises BadTrace, naming the line.

    CSV with the header of Azure's traces (`TIMESTAMP,ContextTokens,GeneratedTokens`) or of the
    daemon's records (`arrival_s,tier,prompt_tokens,output_tokens`, `asked_tokens`, `outcome` and
    `client` where known); JSON lines as Mooncake's.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline()
            file.seek(0)
            lines = list(_json(path, file) if first.startswith("{") else _csv(path, file, first))
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadTrace(f"{path}: should be UTF-8 text: {error.reason}") from error
    if not lines:
        raise BadTrace(f"{path}: holds no request")
    return sorted(lines, key=lambda line: line.time_s)


def _csv(path: Path, file: Iterator[str], header: str) -> Iterator[Line]:
    parse = _TABLES.get(header.strip().split(",")[0])
    if parse is None:
        raise BadTrace(
            f"{path}:1: the header should begin with {' or '.join(_TABLES)}, not {header.strip()!r}"
        )
    for number, row in enumerate(csv.DictReader(file), 2):
        # A file that is rotated while it is written may hold its header twice.
        if row.get("arrival_s") == "arrival_s":
            continue
        yield _parsed(parse, row, path, number)


def _json(path: Path, file: Iterator[str]) -> Iterator[Line]:
    for number, text in enumerate(file, 1):
        if text.strip():
            yield _parsed(_mooncake, text, path, number)


def _parsed(parse: Callable[[Raw], Line], raw: Raw, path: Path, number: int) -> Line:
    try:
        return parse(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(f"{path}:{number}: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a trace is fitted. `load`: time is stretched until its mean rate is that load, None: as
    recorded. `jitter_s`: every arrival moves by up to so much either way, differently by seed.
    `limit_s`: only so much of the (stretched) beginning is played."""

    load: float | None = None
    jitter_s: float = 0.0
    limit_s: float | None = None


def replay(name: str, lines: Sequence[Line], scene: Scene, fitting: Fitting) -> Workload:
    """A workload from recorded lines: stretched in time, never thinned.

    Prompts are clipped to what the executor can hold. Lines without a tier draw one; sizes that
    were never known (a request that was turned away, or cut short) are drawn from those that were,
    and so is who was turned away.
    """
    who = random.Random(f"{scene.seed}/tiers")
    moves = random.Random(f"{scene.seed}/jitter")
    names, weights = list(scene.tiers), list(scene.tiers.values())
    sized = list(_sized(lines, random.Random(f"{scene.seed}/sizes")))
    clipped = [_clip(scene, prompt, output) for prompt, output in sized]
    begin, span_s = lines[0].time_s, max(lines[-1].time_s - lines[0].time_s, 1e-9)
    stretch = 1.0
    if fitting.load is not None:
        rate = fitting.load * scene.most_per_s(clipped)
        stretch = len(lines) / rate / span_s
    made = []
    keys = _keys(lines, random.Random(f"{scene.seed}/keys"))
    for line, (prompt, output), key in zip(lines, clipped, keys, strict=True):
        shift_s = moves.uniform(-fitting.jitter_s, fitting.jitter_s)
        time_s = max(0.0, (line.time_s - begin) * stretch + shift_s)
        tier = line.tier if line.tier is not None else who.choices(names, weights)[0]
        asked = max(output, line.asked) if line.asked else line.asked
        asked = _fit_asked(scene, prompt, asked)
        made.append(Arrival(time_s, tier, prompt, output, asked, key=key))
    end_s = span_s * stretch
    if fitting.limit_s is not None:
        end_s = min(end_s, fitting.limit_s)
    made.sort(key=lambda arrival: arrival.time_s)
    return Workload(name, end_s, tuple(arrival for arrival in made if arrival.time_s <= end_s))


def _sized(lines: Sequence[Line], drawn: random.Random) -> Iterator[tuple[int, int]]:
    known = [
        (line.tier, line.prompt, line.output)
        for line in lines
        if line.prompt is not None and line.output and line.whole
    ]
    if not known:
        raise BadTrace("no line has both its lengths: there is nothing to go by")
    for line in lines:
        if line.prompt is not None and line.output and line.whole:
            yield line.prompt, line.output
            continue
        alike = [one for one in known if one[0] == line.tier] or known
        longer = [one for one in alike if one[2] > (line.output or 0)] or alike
        _, prompt, output = drawn.choice(longer)
        # As far as it came it is known.
        yield line.prompt or prompt, max(output, line.output or 0)


def _keys(lines: Sequence[Line], drawn: random.Random) -> list[int]:
    """Who asked: as told, or any of those who asked in the tier; 0 where nothing is known."""
    known: dict[str | None, list[int]] = {}
    for line in lines:
        if line.key is not None:
            known.setdefault(line.tier, []).append(line.key)
    return [
        line.key if line.key is not None else drawn.choice(known.get(line.tier, [0]))
        for line in lines
    ]


def _clip(scene: Scene, prompt: int, output: int) -> tuple[int, int]:
    settings = scene.settings
    context = min(settings.max_context_tokens, settings.kv_tokens)
    output = max(1, min(output, context - 1))
    longest = context - output
    if settings.runs_to_completion or not settings.splits_prefill:
        longest = min(longest, settings.max_step_tokens)
    return max(1, min(prompt, longest)), output


def _fit_asked(scene: Scene, prompt: int, asked: int | None) -> int | None:
    settings = scene.settings
    context = min(settings.max_context_tokens, settings.kv_tokens)
    return min(asked, context - prompt) if asked else asked
