"""Headway against `transformers serve`: the same model, dtype and thread, in turns, as ratios.

`python -m bench.against_transformers --model DIR --peer PATH/TO/bin/transformers`

Both servers stay up all the time and one at a time is under load: A B B A A B B A, each A and B
that stand together making a round. Then pairs of the peer with itself show how much this machine
alone makes of a difference. Tokens are counted from `usage`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.engine_process import Server, free_port
from bench.openai_load import run_round


def headway_command(model: Path, port: int, args: argparse.Namespace) -> list[str]:
    """Headway with fixed limits, as wide as the peer's."""
    most = max(args.levels)
    config = {
        "auth": {"default_tier": "all"},
        "tiers": {"all": {"priority": 1}},
        "limits": {
            "max_batch_size": most,
            "max_batch_tokens": args.step_tokens,
            "wait_timeout": "5ms",
        },
        "envelope": {
            "max_batch_size": [1, most],
            "max_batch_tokens": [64, args.step_tokens],
        },
        "control": {"policy": {"type": "static"}},
        "executors": [
            {
                "kind": "continuous",
                "model": str(model),
                "device": "cpu",
                "dtype": "bfloat16",
                "threads": 1,
                "max_seqs": most,
                "max_step_tokens": args.step_tokens,
                "num_blocks": args.kv_tokens // 32,
            }
        ],
        "log": {"level": "warning"},
    }
    path = Path(args.folder) / "headway.yaml"
    path.write_text(json.dumps(config))
    headway = Path(sys.executable).with_name("headway")
    return [str(headway), "serve", "-c", str(path), "--port", str(port)]


def peer_command(model: Path, port: int, args: argparse.Namespace) -> list[str]:
    """`transformers serve` as its documentation starts it for continuous batching."""
    options = {
        "--device": "cpu",
        "--dtype": "bfloat16",
        "--cb-block-size": "32",
        "--cb-num-blocks": str(args.kv_tokens // 32),
        "--cb-max-batch-tokens": str(args.step_tokens),
        "--host": "127.0.0.1",
        "--port": str(port),
    }
    flat = [word for pair in options.items() for word in pair]
    return [str(args.peer), "serve", str(model), "--continuous-batching", *flat]


def measure(address: str, model: str, level: int, args: argparse.Namespace) -> float:
    """Completion tokens per second of one round."""
    done = asyncio.run(
        run_round(
            address,
            model=model,
            concurrency=level,
            requests=args.requests,
            max_tokens=args.tokens,
        )
    )
    if done.failures:
        raise SystemExit(f"{done.failures} of {args.requests} requests to {address} failed")
    return done.tokens_per_s


def compare(a: str, b: str, level: int, args: argparse.Namespace) -> dict[str, Any]:
    """Rounds at one concurrency: A B, B A, A B, ... so that each is as often first."""
    servers = {"headway": (a, Path(args.model).name), "transformers": (b, str(args.model))}
    order, runs = list(servers), []
    for number in range(args.rounds):
        got = {name: measure(*servers[name], level, args) for name in order}
        order.reverse()
        runs.append((got["headway"], got["transformers"]))
        shown = f"{runs[-1][0]:6.1f} {runs[-1][1]:6.1f} tokens/s"
        print(f"  {level:>3} at once, round {number + 1}: {shown}", file=sys.stderr, flush=True)
    itself = [
        measure(*servers["transformers"], level, args)
        / measure(*servers["transformers"], level, args)
        for _ in range(args.itself)
    ]
    return {
        "concurrency": level,
        "headway_tokens_per_s": statistics.median(run[0] for run in runs),
        "transformers_tokens_per_s": statistics.median(run[1] for run in runs),
        "ratio": _spread([run[0] / run[1] for run in runs]),
        "transformers_against_itself": _spread(itself),
        "runs": runs,
    }


def _spread(ratios: list[float]) -> list[float]:
    return [min(ratios), statistics.median(ratios), max(ratios)]


def table(rows: list[dict[str, Any]]) -> str:
    """The result as Markdown."""
    lines = [
        "| at once | Headway, tokens/s | transformers serve, tokens/s | ratio: median (min to max) "
        "| transformers against itself |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        least, median, most = row["ratio"]
        low, same, high = row["transformers_against_itself"]
        lines.append(
            f"| {row['concurrency']} | {row['headway_tokens_per_s']:.0f} "
            f"| {row['transformers_tokens_per_s']:.0f} "
            f"| {median:.2f} ({least:.2f} to {most:.2f}) "
            f"| {same:.2f} ({low:.2f} to {high:.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the comparison, print the table, and write everything to `--json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of the model")
    parser.add_argument("--peer", type=Path, required=True, help="the program `transformers`")
    parser.add_argument("--rounds", type=int, default=10, help="rounds, of one A and one B")
    parser.add_argument("--itself", type=int, default=3, help="pairs of the peer with itself")
    parser.add_argument(
        "--levels",
        type=lambda text: [int(x) for x in text.split(",")],
        default=[1, 4, 16, 32],
        help="concurrencies, e.g. 1,4,16,32",
    )
    parser.add_argument("--requests", type=int, default=32, help="requests in a round")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a completion")
    parser.add_argument("--step-tokens", type=int, default=512, help="tokens in a step")
    parser.add_argument("--kv-tokens", type=int, default=8192, help="tokens of KV cache")
    parser.add_argument("--json", type=Path, help="where to write every run")
    args = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        args.folder = stack.enter_context(tempfile.TemporaryDirectory())
        logs = Path(args.folder)
        ports = free_port(), free_port()
        a, b = (
            stack.enter_context(Server(command, port, log=logs / str(port), ready_path=ready)).url
            for command, port, ready in (
                (headway_command(args.model, ports[0], args), ports[0], "/readyz"),
                (peer_command(args.model, ports[1], args), ports[1], "/health"),
            )
        )
        for address, name in ((a, Path(args.model).name), (b, str(args.model))):
            # The peer warms up with its first requests: that is not what is compared.
            for level in args.levels:
                measure(address, name, level, args)
        for level in args.levels:
            rows.append(compare(a, b, level, args))
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
