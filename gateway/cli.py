"""The command `headway`: reads a configuration, and serves it or says what is wrong with it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli_policies import app as policies
from gateway.complaint import fail, pairs
from gateway.names import ForeignPackage, check_packages
from gateway.own_code import reach

if TYPE_CHECKING:
    from controller.config import Config
    from controller.config_load import Source

app = typer.Typer(
    name="headway",
    help="Keeps setting the batch size and batch wait of a model server from what it sees.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(policies, name="policies")

# Commands of the package above this one, which may import the gateway and is not imported by it:
# their words are handed over as they are.
COMMANDS = MappingProxyType({"simulate": "bench.command:main", "profile": "bench.profile:main"})
_HANDED_OVER = MappingProxyType({"ignore_unknown_options": True, "allow_extra_args": True})

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override any key, e.g. log.level=debug."),
]


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="YAML file.")] = None,
    *,
    model: Annotated[
        str | None, typer.Option(help="Folder of a causal language model, for executor 0.")
    ] = None,
    upstream: Annotated[
        str | None, typer.Option(help="Address of an engine, before /v1, as the only executor.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind.")] = None,
    port: Annotated[int | None, typer.Option(help="TCP port, 0 for any.")] = None,
    set_: Set = None,
) -> None:
    """Serve a model behind an adaptive batch until SIGTERM or Ctrl-C; SIGHUP loads FILE again."""
    # Until the daemon can take it, a hang-up is no reason to end.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if config is None and model is None and upstream is None:
        fail(
            "name a configuration with -c FILE, a model's folder with --model DIR, or an engine "
            "with --upstream URL"
        )
    engine = None if upstream is None else [{"kind": "upstream", "url": upstream}]
    flags = {
        "executors": engine,
        "executors.0.model": model,
        "server.host": host,
        "server.port": port,
    }
    overrides = {key: json.dumps(value) for key, value in flags.items() if value is not None}
    source, loaded = _load(config, overrides | _set(set_))
    # The daemon brings aiohttp and all of the core; nothing else here needs them.
    from gateway.daemon import serve as run

    raise typer.Exit(run(loaded, source))


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="YAML file.")],
    *,
    set_: Set = None,
) -> None:
    """Say whether a configuration is right, or list everything that is wrong with it."""
    _, loaded = _load(file, _set(set_))
    executors = ", ".join(
        f"{e.name} ({e.kind}, {e.url if e.kind == 'upstream' else e.model})"
        for e in loaded.executors
    )
    typer.echo(f"ok: {file}")
    typer.echo(f"  listens on {loaded.server.host}:{loaded.server.port}")
    typer.echo(f"  tiers      {', '.join(tier.name for tier in loaded.tier_list())}")
    typer.echo(f"  policy     {loaded.control.policy.type}")
    typer.echo(f"  executors  {executors}")


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="YAML file that is in force.")],
    new: Annotated[Path, typer.Argument(help="YAML file to compare with it.")],
    *,
    set_: Set = None,
) -> None:
    """Print what a reload from OLD to NEW would change. Fails where something needs a restart."""
    from controller.config_diff import changes

    overrides = _set(set_)
    found = changes(_load(old, overrides)[1], _load(new, overrides)[1])
    for change in found:
        why = "" if change.restart is None else f"  ({change.restart})"
        typer.echo(f"{'live   ' if change.restart is None else 'restart'}  {change}{why}")
    if not found:
        typer.echo("no difference")
    if any(change.restart is not None for change in found):
        raise typer.Exit(1)


@app.command()
def schema(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The reference for people instead.")
    ] = False,
) -> None:
    """Print the JSON schema of the configuration, which editors read."""
    if markdown:
        from controller.config_reference import markdown as reference

        typer.echo(reference(), nl=False)
    else:
        from controller.config_keys import schema as made

        typer.echo(json.dumps(made(), indent=2))


@app.command(context_settings=dict(_HANDED_OVER), add_help_option=False)
def simulate(context: typer.Context) -> None:
    """Play traffic against policies in virtual time and compare them."""
    _hand_over("simulate", context.args)


@app.command(context_settings=dict(_HANDED_OVER), add_help_option=False)
def profile(context: typer.Context) -> None:
    """Measure what an executor's steps cost, for `headway simulate`."""
    _hand_over("profile", context.args)


def _hand_over(command: str, words: list[str]) -> None:
    module, _, name = COMMANDS[command].partition(":")
    getattr(importlib.import_module(module), name)(words)


def main() -> None:
    """The entry point of the command."""
    try:
        check_packages()
    except ForeignPackage as error:
        fail(str(error))
    reach(sys.argv[1:], os.environ)
    app()


def _load(path: Path | None, overrides: dict[str, str]) -> tuple[Source, Config]:
    from controller.config_load import Source
    from controller.errors import ConfigError

    source = Source(path, dict(os.environ), overrides)
    try:
        return source, source.read().config
    except ConfigError as error:
        lines = str(error).splitlines()
        count = "1 mistake" if error.count == 1 else f"{error.count} mistakes"
        fail("\n".join([f"{count} in the configuration", *(f"  {line}" for line in lines)]))


def _set(given: list[str] | None) -> dict[str, str]:
    return pairs(given, option="--set", example="log.level=debug")
