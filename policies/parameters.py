"""How a policy declares its parameters, and how they are told to people."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

# A parameter's place: `("entries", 0, "from")`. Nothing: all parameters together, or their type.
Path = tuple[str | int, ...]
Problem = tuple[Path, str]

# What a name ends with says in what it is measured.
_UNITS = (("_s", "s"), ("_ticks", "ticks"), ("_tokens", "tokens"), ("_steps", "steps"))


class Refused(ValueError):
    """For `__post_init__` of parameters: which of them are wrong, by their paths."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(told(problem) for problem in problems))
        self.problems = problems


def told(problem: Problem) -> str:
    """A problem in words: `entries.0.from: should be ...`."""
    path, message = problem
    return ": ".join([*([".".join(map(str, path))] if path else []), message])


def parameter(
    default: Any = dataclasses.MISSING,
    doc: str = "",
    *,
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    factory: Callable[[], Any] | None = None,
) -> Any:
    """A field of a `Parameters` dataclass: its default, one sentence about it, its range.

    The unit belongs in the field's name (`wait_step_s`) or in `unit`. Both bounds are allowed
    values. `factory` makes defaults that are no constants. Plain types, `X | None`, `Literal`,
    `tuple[X, ...]` (a list in YAML) and dataclasses of parameters (a mapping) are checked. A name
    that Python keeps for itself is written with an underscore, `from_`, and without it in YAML.
    The result is for dataclasses only, hence Any, as with `dataclasses.field`.
    """
    about = {"doc": doc, "low": low, "high": high, "unit": unit}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=about)
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata=about)
    return dataclasses.field(default=default, metadata=about)


@dataclasses.dataclass(frozen=True, slots=True)
class Described:
    """One parameter for people: name (dotted where nested), type, default, range, unit, meaning."""

    name: str
    type: str
    required: bool
    default: Any
    low: float | None
    high: float | None
    unit: str
    doc: str


def describe(parameters: type[Any]) -> list[Described]:
    """The parameters that a `Parameters` dataclass declares, in its order, nested ones after."""
    return list(_described(parameters, ""))


def keys(parameters: type[Any]) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a dataclass by the keys that stand for them in YAML."""
    return {field.name.rstrip("_"): field for field in dataclasses.fields(parameters)}


def nested(hint: Any) -> type[Any] | None:
    """The dataclass of parameters that a value, or each item of a list, is made of."""
    inner = get_args(hint)[0] if get_origin(hint) is tuple else hint
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


def optional(hint: Any) -> Any:
    """X of `X | None`; None for every other type."""
    arguments = get_args(hint)
    if get_origin(hint) not in (Union, types.UnionType) or type(None) not in arguments:
        return None
    others = [argument for argument in arguments if argument is not type(None)]
    return others[0] if len(others) == 1 else None


def _described(parameters: type[Any], prefix: str) -> Iterator[Described]:
    hints = get_type_hints(parameters)
    for key, field in keys(parameters).items():
        hint, about = hints[field.name], field.metadata
        within = nested(hint)
        required = field.default is field.default_factory is dataclasses.MISSING
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        yield Described(
            name=prefix + key,
            type=_type_name(hint),
            required=required,
            # What a nested one holds by default stands with its own parameters.
            default=None if required or within is not None else default,
            low=about.get("low"),
            high=about.get("high"),
            unit=about.get("unit") or _unit(field.name),
            doc=about.get("doc", ""),
        )
        if within is not None:
            inside = f"{prefix}{key}[]." if get_origin(hint) is tuple else f"{prefix}{key}."
            yield from _described(within, inside)


def _unit(name: str) -> str:
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "")


def _type_name(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return " | ".join(map(str, get_args(hint)))
    if nested(hint) is not None or get_origin(hint) is Mapping:
        return "mapping"
    if (inner := optional(hint)) is not None:
        return f"{_type_name(inner)} or null"
    return getattr(hint, "__name__", str(hint))
