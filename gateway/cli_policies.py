"""The commands `headway policies ...`: which rules there are, what they take, what they owe."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Annotated, Any

import typer
import yaml

from gateway.complaint import fail, pairs

app = typer.Typer(help="The rules that propose limits.", no_args_is_help=True)

Type = Annotated[str, typer.Argument(metavar="TYPE", help="A name of the list, or module:Class.")]


@app.command("list")
def list_policies(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The reference of all parameters instead.")
    ] = False,
) -> None:
    """Print every policy type with what it is for."""
    from policies.reference import markdown as reference
    from policies.registry import PolicyError, load, types

    if markdown:
        typer.echo(reference(), nl=False)
        return
    for name, target in types().items():
        try:
            words = (load(name).__doc__ or "").strip().split("\n")[0]
        except PolicyError as error:
            words = f"cannot be used: {error}"
        typer.echo(f"{name:<14} {words}  [{target}]")


@app.command("show")
def show_policy(type_: Type) -> None:
    """Print what a policy does and its parameters, with units, ranges and defaults."""
    from policies.parameters import describe
    from policies.reference import default_of, range_of
    from policies.registry import PolicyError, load

    try:
        policy = load(type_)
    except PolicyError as error:
        fail(str(error))
    typer.echo(inspect.getdoc(policy) or "")
    described = describe(policy.Parameters)
    typer.echo("\nparameters:" if described else "\nIt has no parameters.")
    for one in described:
        about = " ".join(filter(None, (one.type, range_of(one), one.unit)))
        default = default_of(one)
        told = (
            f", {default}" if default == "required" else f", default {default}" if default else ""
        )
        typer.echo(f"  {one.name}: {about}{told}\n      {one.doc}")


@app.command("test")
def check_policy(
    type_: Type,
    *,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--parameters", metavar="KEY=VALUE", help="A parameter, its value as YAML. Repeatable."
        ),
    ] = None,
) -> None:
    """Check that a policy does what every policy owes; exit status 1 where it does not."""
    from gateway.promptness import checked_in_time
    from policies.conformance import Result

    results: Sequence[Result] = checked_in_time(type_, _values(parameters))
    for result in results:
        typer.echo(f"{'ok  ' if result.passed else 'FAIL'}  {result.check}")
        if result.detail:
            typer.echo(f"      {result.detail}")
    failed = sum(not result.passed for result in results)
    typer.echo(f"\n{type_}: {failed} of {len(results)} checks fail" if failed else f"\n{type_}: ok")
    raise typer.Exit(1 if failed else 0)


def _values(given: list[str] | None) -> dict[str, Any]:
    values = {}
    for key, text in pairs(given, option="--parameters", example="backoff=0.8").items():
        try:
            values[key] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError):  # the latter for numbers of thousands of digits
            fail(f"--parameters {key}={text}: the value is not valid YAML")
    return values
