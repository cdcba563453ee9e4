"""The composition root: from a configuration to the parts of a daemon, joined, not yet running."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aiohttp import web

from controller.config import Config, RecordConfig
from controller.config_load import Source
from controller.core import Core, build_core, starting_limits
from controller.errors import ConfigError
from controller.shadows import labels
from executor.contract import DEMO_MODEL
from executor.face import Executor
from executor.process import ExecutorProcess, RestartPolicy
from executor.upstream import UpstreamExecutor
from executor.upstream_settings import UpstreamSettings
from gateway.app import app_of
from gateway.asking import Abandoned, ThreadAsker
from gateway.desk import ServingDesk
from gateway.dispatcher import Dispatcher
from gateway.front import Front, access_of, settings_of
from gateway.in_force import InForce
from gateway.keeping import Keeper
from gateway.metering import Meter, build_instruments
from gateway.preparing import Preparer
from gateway.promises import Promises
from gateway.recorder import Recorder
from gateway.reloading import Reloader
from gateway.ticker import Ticker
from metrics.gpu import GpuMeter


@dataclass(frozen=True, slots=True)
class Parts:
    """A daemon, taken apart: start the processes, run the ticker, serve the application."""

    dispatcher: Dispatcher
    processes: dict[str, Executor]
    ticker: Ticker
    desk: ServingDesk
    app: web.Application
    recorder: Recorder | None
    in_force: InForce
    reloader: Reloader | None
    keeper: Keeper | None


def assemble(
    config: Config,
    *,
    environ: Mapping[str, str],
    source: Source | None = None,
    clock: Callable[[], float] = time.monotonic,
    gpu_meter: Callable[[str], GpuMeter] = GpuMeter,
) -> Parts:
    """Build and join everything. Raises ConfigError for secrets and models that cannot be found
    and for a record or a state that cannot be written.

    `source` is where the configuration came from and is loaded from again; None: it stays for ever.
    `clock` is monotonic; `gpu_meter` makes what reads the device of that name.
    """
    check_folders(config)
    groups = {executor.name: executor.group for executor in config.executors}
    tiers = config.tier_list()
    meter = Meter()
    recorder = _recorder(config.record)
    control = config.control
    abandoned = Abandoned()
    core = build_core(
        tiers,
        groups,
        limits=config.limits,
        envelope=config.envelope,
        control=control,
        listeners=(meter,) if recorder is None else (meter, recorder),
        started=clock(),
        stopwatch=time.perf_counter,
        tier_policies=config.tier_policies(),
        asker=lambda: ThreadAsker(
            abandoned, timeout_s=lambda: in_force.config.control.decide_timeout
        ),
    )
    batcher, observer = core.batcher, core.observer
    own = [policy.type for policy in config.tier_policies().values()]
    meter.instruments = build_instruments(
        batcher,
        version=_version(),
        policies=(control.policy.type, control.fallback, *own),
        shadows=labels([shadow.type for shadow in control.shadows]),
        upstreams=[one.name for one in config.executors if one.kind == "upstream"],
    )
    # What was read is in force: there is no other way to get here.
    meter.instruments.reload_successful.set(1)
    meter.instruments.reload_time.set(time.time())
    preparer = Preparer()
    keeper = _keeper(config, core, clock)
    dispatcher = Dispatcher(
        batcher,
        observer,
        clock=clock,
        learn=preparer.learn,
        recall=(lambda executor, capacity: None) if keeper is None else keeper.recall,
    )
    processes = _executors(config, dispatcher, environ)
    promises = Promises(tiers, observer.estimate)
    dispatcher.executors.update(processes)
    ticker = Ticker(
        core.loops,
        dispatcher,
        processes,
        meter=meter,
        promises=promises,
        interval_s=control.interval,
        gpu_meter=gpu_meter,
    )
    desk = ServingDesk(
        dispatcher,
        observer,
        ticker,
        processes=processes,
        meter=meter,
        promises=promises,
        abandoned=abandoned,
        version=_version(),
    )
    front = Front.build(settings_of(config), access_of(config), environ=environ)
    app = app_of(desk, front, preparer=preparer)
    in_force = InForce(
        config,
        environ=environ,
        core=core,
        front=front,
        dispatcher=dispatcher,
        ticker=ticker,
        promises=promises,
    )
    reloader = None
    if source is not None:
        reloader = Reloader(source, in_force, front, instruments=meter.instruments)
        app.router.add_post("/-/reload", reloader.post)
        app.router.add_put("/-/reload", reloader.post)
    return Parts(dispatcher, processes, ticker, desk, app, recorder, in_force, reloader, keeper)


def _recorder(written: RecordConfig) -> Recorder | None:
    if written.path is None:
        return None
    return Recorder(Path(written.path), max_bytes=written.max_size, keep=written.keep)


def _keeper(config: Config, core: Core, clock: Callable[[], float]) -> Keeper | None:
    if config.control.state_file is None:
        return None
    return Keeper(
        Path(config.control.state_file),
        core,
        kinds={executor.name: executor.kind for executor in config.executors},
        begins_with=starting_limits(config.limits),
        clock=clock,
    )


def check_folders(config: Config) -> None:
    """Say at once what a worker would say after the seconds that torch takes to be imported.

    Raises ConfigError.
    """
    for index, executor in enumerate(config.executors):
        if (
            executor.kind == "continuous"
            and executor.model != DEMO_MODEL
            and not Path(executor.model).is_dir()
        ):
            raise ConfigError(
                f"executors.{index}.model: there is no folder {executor.model}; models are read "
                f"from folders, never downloaded (`{DEMO_MODEL}` is the demo's)"
            )


def _executors(
    config: Config, dispatcher: Dispatcher, environ: Mapping[str, str]
) -> dict[str, Executor]:
    """Raises ConfigError for the key of an engine that is not there."""
    made: dict[str, Executor] = {}
    priorities = tuple(tier.priority for tier in config.tier_list())
    for index, executor in enumerate(config.executors):
        restart = RestartPolicy(
            first_s=executor.restart.first_delay,
            cap_s=executor.restart.max_delay,
            healthy_after_s=executor.restart.reset_after,
        )
        if executor.kind == "upstream":
            key = ""
            if executor.api_key_env:
                key = environ.get(executor.api_key_env, "")
                if not key:
                    raise ConfigError(
                        f"executors.{index}.api_key_env: there is no variable "
                        f"{executor.api_key_env} in the environment, or it is empty"
                    )
            made[executor.name] = UpstreamExecutor(
                executor.name,
                UpstreamSettings(**executor.settings(), api_key=key, priorities=priorities),
                dispatcher,
                restart=restart,
                stall_after_s=executor.stall_after,
                clock=dispatcher.clock,
            )
            continue
        made[executor.name] = ExecutorProcess(
            executor.name,
            executor.kind,
            executor.settings(),
            dispatcher,
            restart=restart,
            stall_after_s=executor.stall_after,
            load_timeout_s=executor.load_timeout,
            clock=dispatcher.clock,
        )
    return made


def _version() -> str:
    try:
        return version("headway")
    except PackageNotFoundError:
        return "unknown"
