"""What is left of an engine's speed with Headway before it: the same clients, in turns, as ratios.

`python -m bench.upstream_against_direct --engine llamacpp|vllm|transformers [--rounds N]`

One engine, and one `headway serve -c configs/upstream-ENGINE.yaml` before it, are up all the time.
A round is A B B A, the next B A A B (A through Headway, B direct): the ratio of its A to its B is
free of drift, and its two B against each other are what the machine alone makes of a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from bench.engine_process import EngineError, end_when_told
from bench.engine_table import ENGINES
from bench.engines import Target, headway, running
from bench.stream_load import Loaded, LoadError, load
from bench.upstream_ratios import Figures, Level, Round, table
from executor.demo_model import DemoModelError

SEATS = 32


def compare(
    concurrency: int, through: Target, direct: Target, *, rounds: int, tokens: int, seconds: float
) -> Level:
    """All rounds at one concurrency, each run about so many seconds long. Raises LoadError."""
    requests = concurrency
    for target in (direct, through, direct):
        # What engines do at first (compile, allocate) is not compared; the last of these says how
        # many requests a run has: as many for all, and for every client.
        found = _run(target, concurrency, requests=2 * concurrency, tokens=tokens)
        requests = concurrency * max(1, round(seconds / found.seconds * 2))
    done = []
    for number in range(rounds):
        runs: dict[Target, list[Figures]] = {through: [], direct: []}
        pair = (through, direct) if number % 2 == 0 else (direct, through)
        for target in (*pair, *reversed(pair)):
            runs[target].append(
                Figures.of(_run(target, concurrency, requests=requests, tokens=tokens))
            )
        (a, b), (c, d) = runs[through], runs[direct]
        done.append(Round((a, b), (c, d)))
        shown = " ".join(f"{run.tokens_per_s:.1f}" for run in (a, b, c, d))
        print(f"  {concurrency:>3} at once, round {number + 1}: {shown}", file=sys.stderr)
    return Level(concurrency, done)


def _run(target: Target, concurrency: int, *, requests: int, tokens: int) -> Loaded:
    return asyncio.run(
        load(
            target.url,
            model=target.model,
            concurrency=concurrency,
            requests=requests,
            max_tokens=tokens,
        )
    )


def main() -> None:
    """Compare, print the table, and exit with 1 where too much is lost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=sorted(ENGINES), required=True)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of four runs")
    parser.add_argument(
        "--concurrency",
        type=lambda text: [int(x) for x in text.split(",")],
        default=[1, 4, 16, 32],
        help=f"concurrencies, at most {SEATS}, e.g. 1,4,16,32",
    )
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a completion")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a run, about")
    args = parser.parse_args()
    end_when_told()
    try:
        with (
            running(ENGINES[args.engine], seats=SEATS) as engine,
            # What is measured is the way through, not what a policy thinks of this machine.
            headway(
                args.engine,
                engine,
                overrides=("control.policy.type=static", f"limits.max_batch_size={SEATS}"),
            ) as through,
        ):
            direct = Target(engine.url, engine.model)
            sizes = {"rounds": args.rounds, "tokens": args.tokens, "seconds": args.seconds}
            levels = [compare(n, through, direct, **sizes) for n in args.concurrency]
    except (EngineError, LoadError, DemoModelError) as error:
        sys.exit(f"{args.engine}: {error}")
    print(f"{args.engine}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    print(table(levels))
    if not all(level.holds for level in levels):
        sys.exit(1)


if __name__ == "__main__":
    main()
