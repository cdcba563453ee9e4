"""The reference of all policies and their parameters for people: Markdown, read off the code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from policies.parameters import Described, describe
from policies.registry import TYPES, load


def markdown() -> str:
    """Every policy of the table, as it stands in its docstring, with a table of its parameters."""
    return "\n".join(part for name in TYPES for part in _policy(name))


def range_of(one: Described) -> str:
    """The values that are allowed, as an interval; nothing where all are."""
    if one.low is None and one.high is None:
        return ""
    low, high = ("" if bound is None else f"{bound:g}" for bound in (one.low, one.high))
    return f"[{low}..{high}]"


def default_of(one: Described) -> str:
    """What counts where nothing is written: `required`, a value as in YAML, or nothing for a
    mapping, whose parts have defaults of their own."""
    if one.required:
        return "required"
    return "" if one.default is None and one.type == "mapping" else _yaml(one.default)


def _policy(name: str) -> Iterator[str]:
    policy = load(name)
    yield f"### {name}\n"
    for paragraph in inspect.cleandoc(policy.__doc__ or "").split("\n\n"):
        for part in _parts(paragraph):
            yield f"{part}\n"
    described = describe(policy.Parameters)
    if not described:
        yield "It has no parameters.\n"
        return
    yield "| parameter | value | default | meaning |\n| --- | --- | --- | --- |"
    for one in described:
        value = " ".join(filter(None, (one.type, range_of(one), one.unit))).replace("|", "\\|")
        default = default_of(one)
        written = default if default in ("", "required") else f"`{default}`"
        yield f"| `{one.name}` | {value} | {written} | {one.doc} |"
    yield ""


def _parts(paragraph: str) -> Iterator[str]:
    """Regime and source begin lines of their own."""
    lines: list[str] = []
    for line in paragraph.split("\n"):
        for word in ("Regime:", "Source:"):
            if line.startswith(word):
                yield from ["\n".join(lines)] if lines else []
                lines, line = [], line.replace(word, f"**{word}**", 1)
        lines.append(line)
    yield "\n".join(lines)


def _yaml(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_yaml, value))}]"
    return "{}" if value == {} else str(value)
