"""`headway profile`: what the steps of an executor cost here, for the simulator and for people."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from bench.one_worker import OneWorker, WorkerFailed, worker
from bench.probes import Probe, Prober, probes_of
from bench.profile_report import About, as_yaml, coefficients, table
from bench.step_fit import Fit, NothingToFit, cells_of, fit
from controller.config import Config
from controller.config_executors import ExecutorConfig
from controller.config_load import load as load_config
from controller.errors import ConfigError
from executor.contract import Begin, StepSample
from gateway.assembly import check_folders

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
ROUNDS = 5
# A round that took half of the time leaves as much for a second one, and so for medians.
FIRST_ROUND = 0.5

Told = Callable[[str], None]


@app.command()
def profile(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="YAML file.")] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Folder of a causal language model, for executor 0.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="Name of the executor, where there are several.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write a file for `headway simulate --executor` there.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Measure for so long at most, once it is loaded.")
    ] = 120,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override any key.")
    ] = None,
) -> None:
    """Measure what the steps of an executor cost on this machine, and fit the step model."""
    if config is None and model is None:
        _fail("name a configuration with -c FILE, or a model's folder with --model DIR")
    if out is not None and not out.parent.is_dir():
        _fail(f"--out {out}: there is no folder {out.parent}")
    try:
        loaded = _loaded(config, model, set_ or ())
        chosen = _chosen(loaded, executor)
        check_folders(loaded)
        about, found = asyncio.run(measured(chosen, seconds=seconds, told=_say))
    except (ConfigError, WorkerFailed, NothingToFit) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; its process is gone, and nothing was written")
    typer.echo(f"{about.told()}: {about.lasted_s:.0f} s of steps, medians against the fit\n")
    typer.echo(table(found))
    typer.echo("\n" + ", ".join(f"{key} {value}" for key, value in coefficients(found).items()))
    if out is not None:
        out.write_text(as_yaml(found, about), encoding="utf-8")
        _say(f"written to {out}")


async def measured(config: ExecutorConfig, *, seconds: float, told: Told) -> tuple[About, Fit]:
    """Start the executor, measure for `seconds` at most once it is ready, and end it.

    Raises WorkerFailed, NothingToFit.
    """
    if config.kind == "upstream":
        raise WorkerFailed(f"{config.name} is an engine behind HTTP: there is no worker to measure")
    begin = Begin(config.name, config.kind, config.settings())
    async with worker(
        begin, load_timeout_s=config.load_timeout, stall_after_s=config.stall_after, told=told
    ) as one:
        begun = time.monotonic()
        steps = await rounds(one, seconds=seconds, told=told)
        lasted_s = time.monotonic() - begun
        capacity = one.ready.capacity
    about = About(config.name, config.kind, capacity, datetime.now(UTC), lasted_s)
    return about, fit(cells_of(steps))


async def rounds(
    one: OneWorker, *, seconds: float, told: Told, clock: Callable[[], float] = time.monotonic
) -> list[tuple[int, StepSample]]:
    """The steps of all probes, some times over, each with the prompt length of its probe.

    What the machine does beside this falls on every probe alike, since they take turns. The first
    round leaves out what would take too long for a second. Raises WorkerFailed.
    """
    begun = clock()
    prober = Prober(one, clock, begun + seconds)
    probes, steps, computed = probes_of(one.ready.capacity), list[tuple[int, StepSample]](), 0
    for number in range(1, ROUNDS + 1):
        done: list[Probe] = []
        for wanted in probes:
            left_s = FIRST_ROUND * seconds - (clock() - begun)
            most = computed * left_s / (clock() - begun) if computed else math.inf
            probe = _within(wanted, most) if number == 1 else wanted
            if probe != wanted:
                kept = "nothing" if probe is None else f"{probe.sizes[0]}"
                told(f"for want of time {kept} of {wanted.sizes[0]} x {wanted.prompt} tokens")
            if probe is None:
                continue
            steps += [(probe.prompt, sample) for sample in await prober.measure(probe)]
            computed += probe.tokens
            if prober.is_late:
                break
            if probe in prober.impossible:
                told(f"for want of memory nothing of {probe.sizes[0]} x {probe.prompt} tokens")
            else:
                done.append(probe)
        told(f"round {number} of {ROUNDS}: {len(done)} probes, {clock() - begun:.1f} s so far")
        probes = done
        if prober.is_late or not probes:
            break
    return steps


def _within(wanted: Probe, tokens: float) -> Probe | None:
    """As much of a probe as takes so many tokens."""
    probe: Probe | None = wanted
    while probe is not None and probe.tokens > tokens:
        probe = probe.smaller()
    return probe


def _loaded(path: Path | None, model: str | None, set_: Sequence[str]) -> Config:
    overrides = {} if model is None else {"executors.0.model": model}
    for text in set_:
        key, equals, value = text.partition("=")
        if not (key and equals):
            _fail(f"--set {text}: should be KEY=VALUE, such as executors.0.threads=1")
        overrides[key] = value
    return load_config(path, env=os.environ, overrides=overrides)


def _chosen(config: Config, name: str | None) -> ExecutorConfig:
    names = [executor.name for executor in config.executors]
    if name is None and len(names) > 1:
        _fail(f"there are several executors, name one with --executor: {', '.join(names)}")
    if name is not None and name not in names:
        _fail(f"no executor {name!r}: there are {', '.join(names)}")
    return config.executors[0 if name is None else names.index(name)]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _fail(message: str) -> NoReturn:
    typer.echo(f"headway: {message}", err=True)
    raise SystemExit(1)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words."""
    app(list(arguments), prog_name="headway profile")
