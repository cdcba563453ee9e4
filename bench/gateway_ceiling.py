"""How much of a bare HTTP server's speed is left with the gateway in front of a free executor.

The server has one core, the client another, all run on uvloop, peers take turns (A B B A):

* streamed: `bare` writes one prepared event per token and turn of the loop, and does nothing else;
* whole: `direct` parses, renders, tokenises and detokenises, without queue or core; the executor
  hands over all tokens in one report or, to show what its steps cost the daemon, one by one;
* latency: one connection, one token; what the gateway adds to `direct`.

`python -m bench.gateway_ceiling [--app MODULE:FUNCTION] [--model DIR] [--seconds S] [--rounds N]`
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import uvloop
from aiohttp import web

from bench.ceiling_client import Load, Seen, drive
from bench.ceiling_peers import App, text_model
from executor.contract import TextModel
from gateway import logs

_PEERS = "bench.ceiling_peers"


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison of the gateway with a peer. `floor`: the least ratio of throughputs.

    `burst`: the executor takes all steps of a request as one.
    """

    name: str
    peer: str
    stream: bool
    tokens: int
    connections: int
    burst: bool
    floor: float


CASES = (
    Case("streamed, 32 at once, 64 tokens", "bare_app", True, 64, 32, False, 0.5),
    Case("streamed, 32 at once, 256 tokens", "bare_app", True, 256, 32, False, 0.5),
    Case("whole, 32 at once, 32 tokens in one report", "direct_app", False, 32, 32, True, 0.7),
    Case("whole, 32 at once, 32 tokens one by one", "direct_app", False, 32, 32, False, 0.0),
)
ADDED = Case("whole, 1 at once, 1 token", "direct_app", False, 1, 1, False, 0.0)
_ADDED_MS = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn of one peer: answers a second, CPU of the server per answer, median latency."""

    per_s: float
    cpu_us: float
    median_ms: float


def main() -> None:
    """Compare, print, and exit with 1 where a floor is not reached."""
    arguments = _arguments()
    if arguments.serve:
        serving = _serve(
            arguments.serve,
            text_model(arguments.model),
            core=arguments.core,
            burst=arguments.burst,
        )
        uvloop.run(serving)
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:-1] or cores)
    missed = []
    for case in (*CASES, ADDED):
        with (
            _server(arguments.app, arguments.model, core=cores[-1], burst=case.burst) as ours,
            _server(f"{_PEERS}:{case.peer}", arguments.model, core=cores[-1]) as theirs,
        ):
            if not _compare(case, ours, theirs, rounds=arguments.rounds, seconds=arguments.seconds):
                missed.append(case.name)
    if missed:
        sys.exit(f"below the floor: {', '.join(missed)}")


@dataclass(frozen=True, slots=True)
class _Server:
    process: psutil.Process
    port: int


def _compare(case: Case, ours: _Server, theirs: _Server, *, rounds: int, seconds: float) -> bool:
    mine: list[Measured] = []
    peers: list[Measured] = []
    for server in (ours, theirs):
        _measure(case, server, min(seconds, 1.0))
    for turn in range(rounds):
        pair = ((ours, mine), (theirs, peers))
        for server, kept in pair if turn % 2 == 0 else reversed(pair):
            kept.append(_measure(case, server, seconds))
    ratios = [a.per_s / b.per_s for a, b in zip(mine, peers, strict=True)]
    cpu = [b.cpu_us / a.cpu_us for a, b in zip(mine, peers, strict=True)]
    added = [a.median_ms - b.median_ms for a, b in zip(mine, peers, strict=True)]
    per = case.tokens if case.stream else 1
    unit = "tokens/s" if case.stream else "answers/s"
    print(
        f"{case.name}: gateway {_median(mine, 'per_s') * per:,.0f} {unit}, "
        f"{case.peer.removesuffix('_app')} {_median(peers, 'per_s') * per:,.0f}; "
        f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"CPU {_median(mine, 'cpu_us') / per:.1f} against {_median(peers, 'cpu_us') / per:.1f} us, "
        f"ratio {statistics.median(cpu):.2f}; median latency {_median(mine, 'median_ms'):.2f} "
        f"against {_median(peers, 'median_ms'):.2f} ms",
        flush=True,
    )
    if case is ADDED:
        print(f"added latency, median: {statistics.median(added):.3f} ms", flush=True)
        return statistics.median(added) < _ADDED_MS
    return statistics.median(ratios) >= case.floor


def _median(measured: list[Measured], name: str) -> float:
    values: list[float] = [getattr(one, name) for one in measured]
    return statistics.median(values)


def _measure(case: Case, server: _Server, seconds: float) -> Measured:
    load = Load(server.port, case.stream, case.tokens, case.connections, seconds)
    before = sum(server.process.cpu_times()[:2])
    seen: Seen = uvloop.run(drive(load))
    cpu_s = sum(server.process.cpu_times()[:2]) - before
    return Measured(
        per_s=seen.answers / seen.elapsed_s,
        cpu_us=cpu_s / seen.answers * 1e6,
        median_ms=statistics.median(seen.whole_s) * 1e3,
    )


@contextmanager
def _server(app: str, model: Path | None, *, core: int, burst: bool = False) -> Iterator[_Server]:
    """A server process with one core to itself; it ends when its standard input does."""
    command = [sys.executable, "-m", "bench.gateway_ceiling", "--serve", app, "--core", str(core)]
    if burst:
        command += ["--burst"]
    if model is not None:
        command += ["--model", str(model)]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{app} did not start, see its words above")
        yield _Server(psutil.Process(process.pid), int(line))
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


async def _serve(app: str, text: TextModel, *, core: int, burst: bool) -> None:
    os.sched_setaffinity(0, {core})
    logs.set_up("warning", "json")
    module, _, name = app.partition(":")
    factory: App = getattr(importlib.import_module(module), name)
    runner = factory(text, burst=burst)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await runner.cleanup()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.gateway_ceiling")
    parser.add_argument("--app", default=f"{_PEERS}:gateway_app", help="what is measured")
    parser.add_argument("--model", type=Path, help="folder with a tokenizer.json")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each peer")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--burst", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
