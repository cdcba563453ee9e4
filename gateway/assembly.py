"""The composition root: from a configuration to the parts of a daemon, joined, not yet running."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from aiohttp import web

from controller.batcher import Batcher
from controller.config import Config, KeyConfig
from controller.config_control import ControlConfig, EnvelopeConfig, LimitsConfig
from controller.errors import ConfigError
from controller.guard import Envelope, Guard
from controller.loop import ControlLoop, Named
from controller.observer import Observer
from controller.records import Windows
from controller.signals import SignalSource
from executor.contract import DEMO_MODEL
from executor.process import ExecutorProcess, RestartPolicy
from gateway.app import Access, build_app
from gateway.auth import ClientKey, Secret
from gateway.desk import ServingDesk
from gateway.dispatcher import Dispatcher
from gateway.metering import Meter, build_instruments
from gateway.preparing import Preparer
from gateway.settings import GatewaySettings, TierPlan
from gateway.ticker import Ticker
from metrics.gpu import GpuMeter
from policies.contract import Limits
from policies.registry import build as build_policy


@dataclass(frozen=True, slots=True)
class Parts:
    """A daemon, taken apart: start the processes, run the ticker, serve the application."""

    dispatcher: Dispatcher
    processes: dict[str, ExecutorProcess]
    ticker: Ticker
    desk: ServingDesk
    app: web.Application


def assemble(
    config: Config,
    *,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
    gpu_meter: Callable[[str], GpuMeter] = GpuMeter,
) -> Parts:
    """Build and join everything. Raises ConfigError for secrets and models that cannot be found.

    `clock` is monotonic; `gpu_meter` makes what reads the device of that name.
    """
    _check_folders(config)
    groups = {executor.name: executor.group for executor in config.executors}
    tiers = config.tier_list()
    observer = Observer(tiers, groups, started=clock())
    meter = Meter()
    limits = _limits(config.limits)
    batcher = Batcher(tiers, groups, limits, listeners=(observer, meter))
    control = config.control
    meter.instruments = build_instruments(
        batcher, version=_version(), policies=(control.policy.type, control.fallback)
    )
    # The file that was read is the one in force: there is no other way to get here.
    meter.instruments.reload_successful.set(1)
    meter.instruments.reload_time.set(time.time())
    preparer = Preparer()
    dispatcher = Dispatcher(batcher, observer, clock=clock, learn=preparer.learn)
    processes = _processes(config, dispatcher, meter)
    dispatcher.executors.update(processes)
    loops = {
        group: _loop(control, config.envelope, batcher, observer=observer, group=group)
        for group in sorted(set(groups.values()))
    }
    ticker = Ticker(
        loops,
        dispatcher,
        processes,
        meter=meter,
        interval_s=control.interval,
        gpu_meter=gpu_meter,
    )
    desk = ServingDesk(
        dispatcher, observer, ticker, processes=processes, meter=meter, version=_version()
    )
    app = build_app(
        desk,
        _gateway_settings(config),
        access=_access(config),
        environ=environ,
        preparer=preparer,
    )
    return Parts(dispatcher, processes, ticker, desk, app)


def _check_folders(config: Config) -> None:
    """Say at once what a worker would say after the seconds that torch takes to be imported."""
    for index, executor in enumerate(config.executors):
        named = executor.model != DEMO_MODEL
        if executor.kind == "continuous" and named and not Path(executor.model).is_dir():
            raise ConfigError(
                f"executors.{index}.model: there is no folder {executor.model}; models are read "
                f"from folders, never downloaded (`{DEMO_MODEL}` is the demo's)"
            )


def _processes(config: Config, dispatcher: Dispatcher, meter: Meter) -> dict[str, ExecutorProcess]:
    made = {}
    for executor in config.executors:
        restart = executor.restart
        made[executor.name] = ExecutorProcess(
            executor.name,
            executor.kind,
            executor.settings(),
            dispatcher,
            restart=RestartPolicy(
                first_s=restart.first_delay,
                cap_s=restart.max_delay,
                healthy_after_s=restart.reset_after,
            ),
            stall_after_s=executor.stall_after,
            load_timeout_s=executor.load_timeout,
            clock=dispatcher.clock,
        )
    return made


def _loop(
    control: ControlConfig,
    envelope: EnvelopeConfig,
    batcher: Batcher,
    *,
    observer: Observer,
    group: str,
) -> ControlLoop:
    windows = Windows(
        fast_s=control.fast_window,
        slow_s=control.slow_window,
        at_most_s=control.max_window,
        min_samples=control.min_samples,
    )
    policy = control.policy
    return ControlLoop(
        batcher,
        observer,
        SignalSource(batcher, observer, group, windows),
        group=group,
        policy=Named(policy.type, build_policy(policy.type, policy.parameters)),
        fallback=Named(control.fallback, build_policy(control.fallback, {})),
        guard=Guard(control.guard, _envelope(envelope), min_samples=control.min_samples),
        history=control.history,
        stopwatch=time.perf_counter,
    )


def _limits(written: LimitsConfig) -> Limits:
    return Limits(written.max_batch_size, written.max_batch_tokens, written.wait_timeout)


def _envelope(written: EnvelopeConfig) -> Envelope:
    size, tokens, wait = written.max_batch_size, written.max_batch_tokens, written.wait_timeout
    return Envelope(Limits(size[0], tokens[0], wait[0]), Limits(size[1], tokens[1], wait[1]))


def _gateway_settings(config: Config) -> GatewaySettings:
    server = config.server
    names = [
        str(executor.settings().get("served_name") or executor.model)
        for executor in config.executors
    ]
    return GatewaySettings(
        models=tuple(dict.fromkeys(names)),
        tiers={
            name: TierPlan(
                priority=tier.priority,
                service_tier=tier.service_tier or name,
                start_within_s=tier.start_within,
                finish_within_s=tier.finish_within,
            )
            for name, tier in config.tiers.items()
        },
        default_tier=config.auth.default_tier,
        created=int(time.time()),
        keep_alive_after_s=server.keep_alive_after,
        max_body_bytes=server.max_body,
        stream_buffer_bytes=server.stream_buffer,
        slow_reader_after_s=server.slow_reader_after,
        expected_new_tokens=server.expected_new_tokens,
        access_log=server.access_log,
    )


def _access(config: Config) -> Access:
    auth = config.auth
    token = None
    if auth.admin_token_env is not None or auth.admin_token_sha256 is not None:
        token = Secret(sha256=auth.admin_token_sha256, env=auth.admin_token_env)
    return Access(keys=tuple(_client_key(key) for key in auth.keys), admin_token=token)


def _client_key(key: KeyConfig) -> ClientKey:
    return ClientKey(key.name, key.tier, Secret(sha256=key.sha256, env=key.env))


def _version() -> str:
    try:
        return version("headway")
    except PackageNotFoundError:
        return "unknown"
