"""What of the loop's own records a policy gets into its hands: copies, all the way down."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from policies import contract

_T = TypeVar("_T")


def shown(record: _T) -> _T:
    """A record of the contract with all records in it made anew.

    Frozen records can be written to on purpose, with `object.__setattr__`. The originals are in
    force, judged by the guard and kept in decisions; plain values are shared, they cannot change.
    """
    copied: _T = _copied(record)
    return copied


def _copied(value: Any) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([_copied(item) for item in value])
    if kind is MappingProxyType or kind is dict:
        return MappingProxyType({key: _copied(item) for key, item in value.items()})
    fields = _RECORDS.get(kind)
    if fields is None:
        return value
    made = object.__new__(kind)
    # Not by the class: twenty fields by keyword, and each frozen one, take thrice as long.
    for name in fields:
        held = getattr(value, name)
        kind = type(held)
        plain = kind is float or kind is int or held is None or kind is str
        _write(made, name, held if plain else _copied(held))
    return made


_write = object.__setattr__
_RECORDS: Mapping[type[Any], tuple[str, ...]] = MappingProxyType(
    {
        kind: tuple(kind.__dataclass_fields__)
        for kind in vars(contract).values()
        if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__")
    }
)
