"""A minute of load on the demo: does the batch size move for a reason, and rest when it ends?

`make serve` in one terminal, `python -m bench.demo_minute` in another. Prints the moves with their
reasons, checks that no request was lost, that nothing grew after the load, and that `/metrics`
agrees with `/admin/state`. `--plot FILE.png` draws batch size and inter-token latency over time.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench.openai_load import Round, run_round

# How long the limits are watched after the load: several slow windows would change nothing more.
REST_S = 15.0


async def watch(
    session: aiohttp.ClientSession, seen: dict[int, dict[str, Any]], until: asyncio.Event
) -> None:
    """Collect decisions, each once, until told to stop."""
    while not until.is_set():
        async with session.get("/admin/decisions?count=200") as response:
            for decision in (await response.json())["decisions"]:
                seen[decision["number"]] = decision
        await asyncio.wait({asyncio.ensure_future(until.wait())}, timeout=2.0)


async def load_for(
    url: str, model: str, *, seconds: float, clients: int, max_tokens: int
) -> list[Round]:
    """Keep so many clients busy for so long."""
    rounds = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        rounds.append(
            await run_round(
                url,
                model=model,
                concurrency=clients,
                requests=4 * clients,
                max_tokens=max_tokens,
                tiers=("priority", "priority", "default", "flex"),
            )
        )
    return rounds


async def run(args: argparse.Namespace) -> int:
    """Load, rest, check; answers the number of things that are wrong."""
    async with aiohttp.ClientSession(args.url) as session:
        async with session.get("/v1/models") as response:
            model = (await response.json())["data"][0]["id"]
        before = await _state(session)
        seen: dict[int, dict[str, Any]] = {}
        stop = asyncio.Event()
        watching = asyncio.create_task(watch(session, seen, stop))
        begun = time.time()
        rounds = await load_for(
            args.url, model, seconds=args.seconds, clients=args.clients, max_tokens=args.tokens
        )
        ended = time.time()
        await asyncio.sleep(REST_S)
        stop.set()
        await watching
        state, metrics = await _state(session), await _metrics(session)
    decisions = [seen[number] for number in sorted(seen) if seen[number]["at"] >= begun]
    answers = [answer for one in rounds for answer in one.answers]
    moves = [decision for decision in decisions if decision["moved"]]
    for decision in moves:
        print(f"{decision['at'] - begun:6.1f} s  {decision['text']}")
    tokens = sum(answer.tokens for answer in answers)
    print(f"{len(answers)} requests, {tokens / (ended - begun):.0f} tokens/s, {len(moves)} moves")
    wrong = list(_wrong(args, answers, decisions, ended, before=before, state=state))
    wrong += _disagreements(state, metrics)
    for line in wrong:
        print(f"WRONG: {line}", file=sys.stderr)
    if args.plot:
        plot(args.plot, decisions, begun, ended=ended)
    return len(wrong)


def _wrong(
    args: argparse.Namespace,
    answers: list[Any],
    decisions: list[dict[str, Any]],
    ended: float,
    *,
    before: dict[str, Any],
    state: dict[str, Any],
) -> list[str]:
    found = []
    failed = [answer.status for answer in answers if answer.status != 200]
    if failed:
        found.append(f"{len(failed)} requests failed: {sorted(set(failed))}")
    counts, earlier = state["requests"], before["requests"]
    if counts["finished"] - earlier["finished"] != len(answers) - len(failed):
        found.append(f"the daemon counts {counts}, the clients {len(answers)} answers")
    if not any(decision["moved"] for decision in decisions):
        found.append("nothing moved")
    # What was decided within a second of the end may still rest on the load.
    late = [d for d in decisions if d["at"] > ended + 1.0 and _grew(d)]
    if late:
        found.append(f"grew after the load had ended: {late[0]['text']}")
    unexplained = [d["number"] for d in decisions if d["moved"] and not d["reason"]]
    if unexplained:
        found.append(f"decisions without a reason: {unexplained}")
    return found


def _grew(decision: dict[str, Any]) -> bool:
    names = ("max_batch_size", "max_batch_tokens", "wait_timeout_s")
    return any(decision["after"][name] > decision["before"][name] for name in names)


def _disagreements(state: dict[str, Any], metrics: dict[str, float]) -> list[str]:
    """Where `/metrics` says otherwise than `/admin/state`."""
    counts, group = state["requests"], state["groups"]["default"]
    pairs = {
        f"headway_requests_ended_total{{outcome={outcome}}}": counts[outcome]
        for outcome in ("finished", "rejected", "expired", "cancelled", "failed")
    }
    pairs |= {
        "headway_requests_offered_total": counts["offered"],
        "headway_waiting_requests": counts["queued"],
        "headway_limit_batch_size": group["limits"]["max_batch_size"],
        "headway_limit_batch_tokens": group["limits"]["max_batch_tokens"],
        "headway_limit_wait_seconds": group["limits"]["wait_timeout_s"],
        "headway_limits_epoch": group["epoch"],
    }
    return [
        f"{name}: {metrics.get(name)} in /metrics, {value} in /admin/state"
        for name, value in pairs.items()
        if metrics.get(name, 0.0) != value
    ]


async def _state(session: aiohttp.ClientSession) -> dict[str, Any]:
    async with session.get("/admin/state") as response:
        state: dict[str, Any] = await response.json()
        return state


async def _metrics(session: aiohttp.ClientSession) -> dict[str, float]:
    """Samples summed by name, and by name and outcome where there is one."""
    from prometheus_client.parser import text_string_to_metric_families

    async with session.get("/metrics") as response:
        text = await response.text()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            outcome = sample.labels.get("outcome")
            name = sample.name if outcome is None else f"{sample.name}{{outcome={outcome}}}"
            sums[name] = sums.get(name, 0.0) + sample.value
    return sums


def plot(path: Path, decisions: list[dict[str, Any]], begun: float, *, ended: float) -> None:
    """Batch size against its limit, and inter-token latency against its target, over time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def of_paid(decision: dict[str, Any]) -> tuple[float | None, float | None]:
        tier = decision["signals"]["tiers"][0]
        targets = [v["target_s"] for v in tier["verdicts"] if v["metric"] == "itl"]
        return (tier["itl"] or {}).get("mean"), targets[0] if targets else None

    at = [decision["at"] - begun for decision in decisions]
    limit = [decision["after"]["max_batch_size"] for decision in decisions]
    running = [sum(e["running"] for e in d["signals"]["executors"]) for d in decisions]
    itl = [of_paid(decision) for decision in decisions]
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(8, 4.5), sharex=True, layout="constrained")
    top.step(at, limit, where="post", color="#1f6feb", label="max_batch_size")
    top.plot(at, running, color="#9aa4b1", linewidth=1, label="running")
    top.axvspan(ended - begun, max(at), color="#eeeeee", label="load has ended")
    top.set_ylabel("sequences")
    top.legend(loc="upper left", fontsize=8, frameon=False)
    bottom.plot(
        at,
        [1e3 * mean if mean else None for mean, _ in itl],
        color="#d1242f",
        label="paid inter-token latency, mean of the last 3 s",
    )
    bottom.plot(
        at,
        [1e3 * target if target else None for _, target in itl],
        "--",
        color="#57606a",
        linewidth=1,
        label="target",
    )
    bottom.set_ylabel("ms")
    bottom.set_ylim(bottom=0)
    bottom.set_xlabel("seconds")
    bottom.legend(loc="upper left", fontsize=8, frameon=False)
    for axes in (top, bottom):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run it; the exit status is 1 when something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a completion")
    parser.add_argument("--plot", type=Path, help="where to draw, needs matplotlib")
    args = parser.parse_args()
    try:
        sys.exit(min(1, asyncio.run(run(args))))
    except aiohttp.ClientConnectorError:
        sys.exit(f"no daemon answers at {args.url}: start one with `make serve`")


if __name__ == "__main__":
    main()
