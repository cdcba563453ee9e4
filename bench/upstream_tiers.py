"""What tiers are worth before an engine that serves in order of arrival: a paid chat behind 64.

`python -m bench.upstream_tiers [--engine llamacpp|vllm] [--seats N] [--rounds N]`

The same engine with as many seats both times, all of them taken and the rest of 64 offline chats
waiting, then one paid chat. Alone, it waits for all who came before it. Through Headway the offline
tier may take all seats but one (`tiers.offline.max_seats`): the paid chat goes in at once. What the
reserved seat costs is how much longer the offline chats take.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from itertools import cycle

from bench.engine_process import EngineError, end_when_told
from bench.engine_table import ENGINES
from bench.engines import Target, headway, running
from bench.openai_load import QUESTIONS
from bench.stream_load import LoadError, chat, chat_body, session
from executor.demo_model import DemoModelError

_MOST = 0.1


@dataclass(frozen=True, slots=True)
class Episode:
    """Seconds to the paid chat's first text, and from the first to the last of the offline ones."""

    first_s: float
    offline_s: float


async def episode(target: Target, *, offline: int, tokens: int, taken: int, tiers: bool) -> Episode:
    """Send the offline chats, wait until `taken` seats are taken, send the paid one.

    `tiers`: say who is who, by `service_tier`. Raises LoadError.
    """
    flex, priority = ({"service_tier": name} if tiers else {} for name in ("flex", "priority"))
    questions = cycle(QUESTIONS)
    bodies = [chat_body(target.model, next(questions), tokens, **flex) for _ in range(offline)]
    full = asyncio.Semaphore(0)
    start = time.perf_counter()
    try:
        async with session(target.url) as connections, asyncio.TaskGroup() as group:
            waiting = [
                group.create_task(chat(connections, body, on_first=full.release)) for body in bodies
            ]
            for _ in range(taken):
                await full.acquire()
            body = chat_body(target.model, next(questions), tokens, **priority)
            paid = group.create_task(chat(connections, body))
            await asyncio.wait(waiting)
            offline_s = time.perf_counter() - start
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return Episode(paid.result().first_s, offline_s)


def table(alone: list[Episode], through: list[Episode]) -> str:
    """The result as Markdown."""
    rows = ["| | TTFT of the paid chat | all offline chats |", "| --- | --- | --- |"]
    for name, episodes in (("the engine alone", alone), ("through Headway", through)):
        first = _spread([one.first_s for one in episodes], "s")
        rows.append(f"| {name} | {first} | {_spread([one.offline_s for one in episodes], 's')} |")
    offline = [b.offline_s / a.offline_s for a, b in zip(alone, through, strict=True)]
    rows.append(f"| ratio | {_spread(ratios(alone, through), '')} | {_spread(offline, '')} |")
    return "\n".join(rows)


def ratios(alone: list[Episode], through: list[Episode]) -> list[float]:
    """TTFT of the paid chat through Headway as a fraction of it with the engine alone, by round."""
    return [b.first_s / a.first_s for a, b in zip(alone, through, strict=True)]


def _spread(values: list[float], unit: str) -> str:
    low, middle, high = min(values), statistics.median(values), max(values)
    space = " " if unit else ""
    return f"{middle:.3f}{space}{unit} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Measure, print the table, and exit with 1 where a round is not under a tenth."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    # transformers serve has no bound on seats but memory: there would be no queue to jump.
    parser.add_argument("--engine", choices=("llamacpp", "vllm"), default="llamacpp")
    parser.add_argument("--seats", type=int, default=8, help="the engine takes so many at once")
    parser.add_argument("--offline", type=int, default=64, help="chats that are there before")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a completion")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, both ways in turns")
    args = parser.parse_args()
    end_when_told()
    alone: list[Episode] = []
    through: list[Episode] = []
    overrides = (
        "control.policy.type=static",
        f"limits.max_batch_size={args.seats}",
        f"executors.0.max_seqs={args.seats}",
        f"envelope.max_batch_size=[1, {args.seats}]",
        f"tiers.offline.max_seats={args.seats - 1}",
    )
    try:
        with (
            running(ENGINES[args.engine], seats=args.seats) as engine,
            headway(args.engine, engine, overrides=overrides) as front,
        ):
            ways = [
                (Target(engine.url, engine.model), args.seats, False, alone),
                (front, args.seats - 1, True, through),
            ]
            for _ in range(args.rounds):
                for target, taken, tiers, kept in ways:
                    found = episode(
                        target,
                        offline=args.offline,
                        tokens=args.tokens,
                        taken=taken,
                        tiers=tiers,
                    )
                    kept.append(asyncio.run(found))
                ways.reverse()
    except (EngineError, LoadError, DemoModelError) as error:
        sys.exit(f"{args.engine}: {error}")
    print(f"{args.engine}, {args.seats} seats, {args.offline} offline chats\n")
    print(table(alone, through))
    if max(ratios(alone, through)) >= _MOST:
        sys.exit(1)


if __name__ == "__main__":
    main()
