"""`headway profile`: what the steps of an executor cost here, for the simulator and for people."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from bench import profile_plot
from bench.held_out import HeldOut, check
from bench.one_worker import OneWorker, Told, WorkerFailed, worker
from bench.probes import Probe, Prober, probes_of
from bench.profile_curve import OUTPUT, PROMPT, Curve, Mix, beyond, curve_of
from bench.profile_curve import table as curve_table
from bench.profile_plot import CannotPlot
from bench.profile_progress import Shown, shown
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


@dataclass(frozen=True, slots=True)
class Measured:
    """What a profile comes to. `held_out` None: too few kinds of step to keep some back."""

    about: About
    fit: Fit
    held_out: HeldOut | None
    curve: Curve


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
    plot: Annotated[
        Path | None, typer.Option(help="Draw throughput against latency into a .svg or .png.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Measure for so long at most, once it is loaded.")
    ] = 120,
    prompt: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt, for the table by batch size.")
    ] = PROMPT,
    output: Annotated[
        int, typer.Option(min=1, help="Tokens of a completion, for the table by batch size.")
    ] = OUTPUT,
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
        if plot is not None:
            profile_plot.check(plot)
        loaded = _loaded(config, model, set_ or ())
        chosen = _chosen(loaded, executor)
        check_folders(loaded)
        with shown() as progress:
            mix = Mix(prompt, output)
            found = asyncio.run(measured(chosen, seconds=seconds, mix=mix, progress=progress))
    except (CannotPlot, ConfigError, WorkerFailed, NothingToFit) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted; its process is gone, and nothing was written")
    typer.echo(_told(found))
    if out is not None:
        text = as_yaml(found.fit, found.about, held_out=found.held_out)
        out.write_text(text, encoding="utf-8")
        _say(f"written to {out}")
    if plot is not None:
        profile_plot.plot(found.curve, found.about.told(), plot)
        _say(f"drawn into {plot}")


def _told(found: Measured) -> str:
    about, fitted, held_out = found.about, found.fit, found.held_out
    guessed = beyond(found.curve, fitted.cells)
    return "\n".join(
        [
            f"{about.told()}: {about.lasted_s:.0f} s of steps, medians against the fit",
            "",
            table(fitted),
            "held out: too few kinds of step" if held_out is None else held_out.told(),
            "",
            ", ".join(f"{key} {value}" for key, value in coefficients(fitted).items()),
            "",
            curve_table(found.curve),
            *([] if guessed is None else [guessed]),
        ]
    )


async def measured(
    config: ExecutorConfig, *, seconds: float, mix: Mix, progress: Shown
) -> Measured:
    """Start the executor, measure for `seconds` at most once it is ready, and end it.

    `mix` is what the curve by batch size is reckoned for. Raises WorkerFailed, NothingToFit.
    """
    if config.kind == "upstream":
        raise WorkerFailed(f"{config.name} is an engine behind HTTP: there is no worker to measure")
    begin = Begin(config.name, config.kind, config.settings())
    async with worker(
        begin,
        load_timeout_s=config.load_timeout,
        stall_after_s=config.stall_after,
        told=progress.tell,
    ) as one:
        begun = time.monotonic()
        steps = await rounds(one, seconds=seconds, told=progress.tell, at=progress.at)
        lasted_s = time.monotonic() - begun
        capacity = one.ready.capacity
    about = About(config.name, config.kind, capacity, datetime.now(UTC), lasted_s)
    cells = cells_of(steps)
    fitted = fit(cells)
    return Measured(about, fitted, check(cells), curve_of(fitted.estimate, capacity, mix))


def _ignore(fraction: float) -> None:
    return None


async def rounds(
    one: OneWorker,
    *,
    seconds: float,
    told: Told,
    at: Callable[[float], None] = _ignore,
    clock: Callable[[], float] = time.monotonic,
) -> list[tuple[int, StepSample]]:
    """The steps of all probes, some times over, each with the prompt length of its probe.

    What the machine does beside this falls on every probe alike, since they take turns. The first
    round leaves out what would take too long for a second. `at` hears which fraction is done.
    Raises WorkerFailed.
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
            part = sum(p.tokens for p in (*done, probe)) / sum(p.tokens for p in probes)
            # Over when the rounds are, or the time is.
            at(max((number - 1 + min(1.0, part)) / ROUNDS, (clock() - begun) / seconds))
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
    names = [executor.name for executor in config.executor_list()]
    if name is None and len(names) > 1:
        _fail(f"there are several executors, name one with --executor: {', '.join(names)}")
    if name is not None and name not in names:
        _fail(f"no executor {name!r}: there are {', '.join(names)}")
    return config.executor_list()[0 if name is None else names.index(name)]


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _fail(message: str) -> NoReturn:
    typer.echo(f"headway: {message}", err=True)
    raise SystemExit(1)


def main(arguments: Sequence[str]) -> None:
    """Run the command with these words."""
    app(list(arguments), prog_name="headway profile")
