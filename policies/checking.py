"""Whether values from YAML are what a policy's parameters want, and what they become."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Literal, get_args, get_origin, get_type_hints

from policies.parameters import Path, Problem, Refused, keys, nested, optional

# Whoever has more problems has one; which parameter was meant takes long to find out.
MOST_TOLD = 20
_LONGEST_SHOWN = 60
_PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a text, in quotes"}


def check(parameters: type[Any], given: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with values for a `Parameters` dataclass, as pairs of path and message.

    The path is empty where it is the values together that are refused. Of many problems the first
    are told and the rest counted.
    """
    known, hints = keys(parameters), get_type_hints(parameters)
    wrong: list[Problem] = []
    for key, value in given.items():
        if key not in known:
            near = get_close_matches(str(key), known, n=1) if len(wrong) < MOST_TOLD else []
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known) or 'none'}"
            wrong.append(((key,), f"unknown parameter; {hint}"))
        else:
            wrong += _within(key, _refusals(value, hints[known[key].name], known[key]))
    for key, field in known.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and key not in given:
            wrong.append(((key,), "is required"))
    if not wrong:
        try:
            make(parameters, given)
        except Refused as error:
            wrong += error.problems
        except (TypeError, ValueError) as error:
            wrong.append(((), str(error)))
    rest = len(wrong) - MOST_TOLD
    return wrong if rest <= 0 else [*wrong[:MOST_TOLD], ((), f"and {rest} more")]


def make(parameters: type[Any], given: Mapping[str, Any]) -> Any:
    """The parameters that values stand for, if `check` found nothing wrong with them."""
    known, hints = keys(parameters), get_type_hints(parameters)
    values = {known[key].name: key for key in given}
    return parameters(**{name: _made(given[key], hints[name]) for name, key in values.items()})


def _made(value: Any, hint: Any) -> Any:
    inner = optional(hint)
    if inner is not None:
        return None if value is None else _made(value, inner)
    if get_origin(hint) is tuple:
        return tuple(_made(item, get_args(hint)[0]) for item in value)
    within = nested(hint)
    return make(within, value) if within is not None and isinstance(value, Mapping) else value


def _within(key: str | int, problems: Iterator[Problem]) -> list[Problem]:
    return [((key, *path), message) for path, message in problems]


def _refusals(value: Any, hint: Any, field: dataclasses.Field[Any]) -> Iterator[Problem]:
    """What is wrong with one value; a type that is not known here is not checked."""
    here: Path = ()
    inner, within = optional(hint), nested(hint)
    if inner is not None:
        if value is not None:
            yield from _refusals(value, inner, field)
    elif get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            yield here, f"should be a list; given {_shown(value)}"
            return
        for index, item in enumerate(value):
            yield from _within(index, _refusals(item, get_args(hint)[0], field))
    elif within is not None:
        if isinstance(value, Mapping):
            yield from check(within, value)
        elif not isinstance(value, within):
            yield here, f"should be a mapping with {', '.join(keys(within))}; given {_shown(value)}"
    elif get_origin(hint) is Literal:
        if value not in get_args(hint):
            yield here, f"should be one of {', '.join(get_args(hint))}; given {_shown(value)}"
    elif get_origin(hint) is Mapping:
        if not isinstance(value, Mapping):
            yield here, f"should be a mapping; given {_shown(value)}"
    elif message := _refusal(value, hint, field.metadata):
        yield here, f"should be {message}; given {_shown(value)}"


def _refusal(value: Any, wanted: Any, about: Mapping[str, Any]) -> str | None:
    """What a plain value should have been; None when it is right."""
    if wanted in (int, float) and type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            return "a number of 308 digits at most"
        value = number if wanted is float else value
    if wanted in _PLAIN and type(value) is not wanted:
        return _PLAIN[wanted]
    if wanted not in (int, float):
        return None
    low = -math.inf if (given := about.get("low")) is None else given
    high = math.inf if (given := about.get("high")) is None else given
    if math.isfinite(value) and low <= value <= high:
        return None
    bounds = [f"at least {low:g}"] * (low > -math.inf) + [f"at most {high:g}"] * (high < math.inf)
    return " and ".join(bounds) or "finite"


def _shown(value: Any) -> str:
    """A value for a message, its beginning where it is long."""
    try:
        text = repr(value)
    # Python does not write down whole numbers of thousands of digits.
    except ValueError:
        text = hex(value) if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."
