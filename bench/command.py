"""`headway simulate`: policies against traffic in virtual time, before anybody is served."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer

from bench.campaign import Cache, cores, default_cache, run_all
from bench.case import BadContender, Case, Contender, fitted
from bench.outcome import Outcome
from bench.presets import UnknownExecutor, executor_of, names
from bench.table import as_json, plot, table
from bench.traces import BadTrace, Fitting, read
from bench.workloads import WORKLOADS
from controller.config import Config
from controller.config_executors import SimulatedExecutor
from controller.config_load import load as load_config
from controller.errors import ConfigError
from executor.contract import SimulatedSettings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
_WORKLOADS = f"One of {', '.join(WORKLOADS)}; or a trace (Azure CSV, Mooncake JSONL, a record)."
_EXECUTORS = f"One of {', '.join(names())}; or a YAML file of coefficients. Default: those of -c."
_POLICIES = "TYPE, or TYPE:KEY=VALUE,... with B, T, W (s), queue=fifo or parameters. Repeatable."


@app.command()
def simulate(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="YAML file.")] = None,
    *,
    workload: Annotated[str, typer.Option(help=_WORKLOADS)] = "steady",
    executor: Annotated[str | None, typer.Option(help=_EXECUTORS)] = None,
    policy: Annotated[list[str] | None, typer.Option(help=_POLICIES)] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each policy, with seeds 1, 2...")] = 3,
    load: Annotated[
        float | None,
        typer.Option(help="Traffic relative to what the executor can serve; traces stretch."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Only so much of a trace, after stretching.")
    ] = None,
    stretch: Annotated[float, typer.Option(help="Named workloads last so many times longer.")] = 1,
    jitter: Annotated[
        float, typer.Option(help="Seconds by which a trace's arrivals move, by seed.")
    ] = 0.0,
    json: Annotated[Path | None, typer.Option(help="Write all figures there.")] = None,
    plot_: Annotated[Path | None, typer.Option("--plot", help="Draw B over time there.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once. Default: cores.")] = None,
    cache: Annotated[bool, typer.Option(help="Keep outcomes, and play no run twice.")] = True,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override any key.")
    ] = None,
) -> None:
    """Play traffic against policies in virtual time and compare them."""
    begun = time.perf_counter()
    _check_numbers({"--load": load, "--minutes": minutes, "--stretch": stretch})
    _check_numbers({"--jitter": jitter}, least_is_fine=True)
    if workload in WORKLOADS and (minutes is not None or jitter):
        _fail("--minutes and --jitter are for traces; a named workload has --stretch")
    for path in (json, plot_):
        if path is not None and not path.absolute().parent.is_dir():
            _fail(f"{path}: there is no folder {path.absolute().parent}")
    try:
        loaded = load_config(config, env=os.environ, overrides=_pairs(set_ or ()))
        contenders = [Contender.parse(text) for text in policy or [loaded.control.policy.type]]
        if workload not in WORKLOADS:
            _check_trace(workload)
        executors = _executors(loaded, executor)
    except (ConfigError, BadContender, UnknownExecutor, BadTrace) as error:
        _fail(str(error))
    reaching = fitted(loaded, executors)
    limit_s = None if minutes is None else minutes * 60
    cases = [
        Case(
            config=reaching,
            executors=executors,
            workload=workload,
            contender=contender,
            seed=seed,
            load=load,
            stretch=stretch,
            fitting=Fitting(load, jitter, limit_s),
        )
        for contender in contenders
        for seed in range(1, seeds + 1)
    ]
    kept = Cache(default_cache() if cache else None)
    try:
        outcomes = run_all(cases, kept, jobs=jobs or cores(), progress=_Progress(begun))
    except BadTrace as error:
        _fail(f"{workload}: {error}")
    except KeyboardInterrupt:
        _fail("interrupted; the runs that were done are kept, and are not played again")
    results = {
        contender.label: outcomes[index * seeds : (index + 1) * seeds]
        for index, contender in enumerate(contenders)
    }
    _tell(results, workload=workload, executor=executor, load=load, seeds=seeds)
    if json is not None:
        about = {
            "workload": workload,
            "executors": {name: msgspec.to_builtins(s) for name, s in executors.items()},
            "load": load,
            "seeds": seeds,
        }
        json.write_bytes(as_json(results, about))
    if plot_ is not None:
        try:
            plot(results, plot_)
        except ImportError:
            _fail("--plot needs matplotlib: install headway[plots]")


def _check_numbers(given: Mapping[str, float | None], *, least_is_fine: bool = False) -> None:
    """Stop at the first that is no number above 0 (or from 0 on)."""
    for option, value in given.items():
        if value is not None and not (0 < value < math.inf or (least_is_fine and value == 0)):
            _fail(
                f"{option}: {value:g} should be a number {'from' if least_is_fine else 'above'} 0"
            )


def _check_trace(workload: str) -> None:
    path = Path(workload)
    if not path.exists() and not path.suffix:
        raise BadTrace(f"no workload {workload!r}: there are {', '.join(WORKLOADS)}, and files")
    read(path)


def _tell(
    results: Mapping[str, Sequence[Outcome]],
    *,
    workload: str,
    executor: str | None,
    load: float | None,
    seeds: int,
) -> None:
    at = "its own load" if load is None else f"load {load:g}"
    where = executor or "the configuration's executors"
    typer.echo(f"{workload} on {where}, {at}, {seeds} seeds; means over seeds, first minute left")
    typer.echo("out, from the intended arrival; drops, rejects and time-outs are misses\n")
    typer.echo(table(results))


class _Progress:
    """How many runs are done, on stderr; nothing where all were known."""

    def __init__(self, begun: float) -> None:
        self._begun = begun

    def __call__(self, done: int, of: int) -> None:
        lasted_s = time.perf_counter() - self._begun
        if not sys.stderr.isatty():
            if 0 < done == of and lasted_s > 5:
                print(f"{of} runs in {lasted_s:.0f} s", file=sys.stderr)
            return
        width = 30
        bar = "#" * (width * done // of)
        end = "\n" if done == of else ""
        print(f"\r[{bar:<{width}}] {done}/{of} runs, {lasted_s:.0f} s", end=end, file=sys.stderr)


def _executors(config: Config, name: str | None) -> dict[str, SimulatedSettings]:
    if name is not None:
        return {"main": executor_of(name)}
    found = {
        executor.name: msgspec.convert(executor.settings(), SimulatedSettings)
        for executor in config.executor_list()
        if isinstance(executor, SimulatedExecutor)
    }
    if not found:
        raise UnknownExecutor(
            "the configuration has no executor of kind simulated: name one with --executor"
        )
    return found


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key and equals):
            _fail(f"--set {text}: should be KEY=VALUE, such as control.interval=100ms")
        pairs[key] = value
    return pairs


def _fail(message: str) -> NoReturn:
    typer.echo(f"headway: {message}", err=True)
    raise SystemExit(1)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words."""
    app(list(arguments), prog_name="headway simulate")
