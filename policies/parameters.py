"""How a policy declares its parameters, and how values from YAML are checked against them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints


def parameter(
    default: Any, doc: str, *, low: float | None = None, high: float | None = None
) -> Any:
    """A field of a `Parameters` dataclass: its default, one sentence about it, its range.

    The unit belongs in the field's name (`wait_step_s`) or in `doc`. Both bounds are allowed
    values. The result is for dataclasses only, hence Any, as with `dataclasses.field`.
    """
    return dataclasses.field(default=default, metadata={"doc": doc, "low": low, "high": high})


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """One parameter for people: name, type, default (None: required), range and meaning."""

    name: str
    type: str
    default: Any
    low: float | None
    high: float | None
    doc: str


def describe(parameters: type[Any]) -> list[Described]:
    """The parameters that a `Parameters` dataclass declares, in its order."""
    hints = get_type_hints(parameters)
    return [
        Described(
            name=field.name,
            type=getattr(hints[field.name], "__name__", str(hints[field.name])),
            default=None if field.default is dataclasses.MISSING else field.default,
            low=field.metadata.get("low"),
            high=field.metadata.get("high"),
            doc=field.metadata.get("doc", ""),
        )
        for field in dataclasses.fields(parameters)
    ]


def check(parameters: type[Any], given: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    """What is wrong with values for a `Parameters` dataclass, as pairs of key and message.

    The key is None where it is the values together that are refused.
    """
    known = {described.name: described for described in describe(parameters)}
    hints = get_type_hints(parameters)
    wrong: list[tuple[str | None, str]] = []
    for key, value in given.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
            wrong.append((key, f"unknown parameter; {hint}"))
        elif message := _refusal(value, hints[key], known[key]):
            wrong.append((key, f"should be {message}; given {value!r}"))
    for field in dataclasses.fields(parameters):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in given:
            wrong.append((field.name, "is required"))
    if not wrong:
        try:
            parameters(**given)
        except (TypeError, ValueError) as error:
            wrong.append((None, str(error)))
    return wrong


def _refusal(value: Any, wanted: Any, known: Described) -> str | None:
    """What a value should have been; None when it is right or its type is not a plain one."""
    if wanted is float and type(value) is int:
        value = float(value)
    if wanted in (bool, int, float, str) and type(value) is not wanted:
        return {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[
            wanted
        ]
    if wanted not in (int, float):
        return None
    low = -math.inf if known.low is None else known.low
    high = math.inf if known.high is None else known.high
    if math.isfinite(value) and low <= value <= high:
        return None
    bounds = [f"at least {low:g}"] * (low > -math.inf) + [f"at most {high:g}"] * (high < math.inf)
    return " and ".join(bounds) or "finite"
