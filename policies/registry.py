"""Which policies there are, and how one is built from its type and parameters."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from policies.checking import check, make
from policies.contract import Policy
from policies.faults import in_words
from policies.parameters import Problem, told

TYPES: Mapping[str, str] = {
    "static": "policies.static:Static",
    "threshold": "policies.threshold:Threshold",
    "aimd": "policies.aimd:Aimd",
    "gradient": "policies.gradient:Gradient",
    "latency_model": "policies.latency_model:LatencyModel",
    "sla_search": "policies.sla_search:SlaSearch",
    "hill_climb": "policies.hill_climb:HillClimb",
    "slo": "policies.slo:Slo",
    "schedule": "policies.schedule:Schedule",
}
ENTRY_POINTS = "headway.policies"


class PolicyError(ValueError):
    """A policy that cannot be built; the message says why and what would do."""


def types() -> Mapping[str, str]:
    """Every type by name, as `module:Class`: the table, then what installed packages add."""
    added = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {**added, **TYPES}


def load(name: str) -> type[Any]:
    """The class of a policy: a name of the table or of an entry point, or `module:Class`.

    Raises PolicyError, naming the nearest known type, the module that cannot be imported, or what
    the class lacks.
    """
    target = name if ":" in name else TYPES.get(name) or types().get(name)
    if target is None:
        near = get_close_matches(name, types(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(types())}"
        raise PolicyError(f"unknown policy {name!r}; {hint} (your own: module:Class)")
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PolicyError(
            f"{module_name} of policy {name!r} cannot be imported: {error}"
        ) from error
    # Whatever else a foreign module raises is a fault of that module; `sys.exit()` ends nobody.
    except BaseException as error:
        raise PolicyError(
            f"{module_name} of policy {name!r} cannot be imported: it raises {in_words(error)}"
        ) from error
    try:
        return _class_of(module, class_name, f"{module_name} of policy {name!r}")
    except PolicyError:
        raise
    except BaseException as error:
        raise PolicyError(f"{class_name} of policy {name!r} raises {in_words(error)}") from error


def _class_of(module: ModuleType, class_name: str, where: str) -> type[Any]:
    policy = getattr(module, class_name, None)
    if not isinstance(policy, type):
        raise PolicyError(f"{where} has no class {class_name!r}")
    if not callable(getattr(policy, "decide", None)):
        raise PolicyError(f"{class_name} has no method decide(signals, limits)")
    if not dataclasses.is_dataclass(getattr(policy, "Parameters", None)):
        raise PolicyError(f"{class_name}.Parameters should be a frozen dataclass")
    return policy


def problems(name: str, parameters: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with a type and its parameters, as pairs of path and message.

    The path leads to a parameter; an empty one stands for the type, or for all of them together.
    """
    try:
        policy = load(name)
    except PolicyError as error:
        return [((), str(error))]
    try:
        wrong = check(policy.Parameters, parameters)
    # What is declared of parameters is code of that class as well.
    except BaseException as error:
        return [((), f"{policy.__name__}.Parameters raises {in_words(error)}")]
    if not wrong:
        try:
            _built(policy, parameters)
        except PolicyError as error:
            return [((), str(error))]
    return wrong


def build(name: str, parameters: Mapping[str, Any]) -> Policy:
    """A policy of this type with these parameters; those left out keep their defaults.

    Raises PolicyError that lists everything that is wrong.
    """
    if wrong := problems(name, parameters):
        raise PolicyError(f"policy {name!r}: {'; '.join(map(told, wrong))}")
    try:
        return _built(load(name), parameters)
    except PolicyError as error:
        raise PolicyError(f"policy {name!r}: {error}") from error


def _built(policy: type[Any], parameters: Mapping[str, Any]) -> Policy:
    try:
        made: Policy = policy(make(policy.Parameters, parameters))
    # Whatever a foreign class raises while it is built is a fault of that class.
    except BaseException as error:
        called = f"{policy.__name__}({policy.__name__}.Parameters(...))"
        raise PolicyError(f"{called} raises {in_words(error)}") from error
    return made
