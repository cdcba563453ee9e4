"""How a command says that it cannot go on, and reads words of the form KEY=VALUE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import typer


def fail(message: str) -> NoReturn:
    """End the command with a message and exit status 1."""
    typer.echo(f"headway: {message}", err=True)
    raise SystemExit(1)


def pairs(given: Sequence[str] | None, *, option: str, example: str) -> dict[str, str]:
    """The words of a repeatable option as keys and values; ends the command at a wrong one."""
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not (key and equals):
            fail(f"{option} {text}: should be KEY=VALUE, such as {example}")
        found[key] = value
    return found
