"""In which words a value that pydantic refuses is told, and which known key was meant."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args

from pydantic_core import ErrorDetails

from controller.config import Config
from controller.config_tree import Path, Problem, dotted, step
from controller.config_types import Section


def explain(detail: ErrorDetails, root: dict[str, Any]) -> Problem:
    """One refusal of pydantic as a problem of what was written in `root`."""
    path, kind = _written_path(detail, root), detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, f"unknown key; {_hint(detail['loc'])}")
    if kind in ("missing", "union_tag_not_found"):
        if kind == "union_tag_not_found":
            path = (*path, "kind")
        return Problem(path, "is required")
    if kind == "union_tag_invalid":
        given, known = detail["ctx"]["tag"], detail["ctx"]["expected_tags"]
        return Problem((*path, "kind"), f"should be one of {known}; given {given!r}")
    if kind in ("model_type", "model_attributes_type", "mapping_type"):
        return Problem(path, f"should be a mapping of keys; given {_shown(path, detail['input'])}")
    message = detail["msg"].removeprefix("Value error, ").replace("Input should", "should", 1)
    message = message[:1].lower() + message[1:]
    return Problem(path, f"{message}; given {_shown(path, detail['input'])}")


def _shown(path: Path, value: Any) -> str:
    """A value for a message, short, and never what may be a secret in the wrong place."""
    if path and "sha256" in str(path[-1]):
        return "what is not shown here"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _written_path(detail: ErrorDetails, root: dict[str, Any]) -> Path:
    """The location of an error without what pydantic adds to it (tags of unions, `[key]`)."""
    path: list[str | int] = []
    here: Any = root
    last = len(detail["loc"]) - 1
    for index, key in enumerate(detail["loc"]):
        inner = step(here, key)
        absent = inner is None and not (isinstance(here, dict) and key in here)
        if absent and not (index == last and detail["type"] == "missing"):
            continue
        path.append(key)
        here = inner
    return tuple(path)


def _hint(location: tuple[int | str, ...]) -> str:
    """Which known key was meant by an unknown one, or else what is known there."""
    *around, unknown = location
    known = sorted({key for model in _models_at(around) for key in model.model_fields})
    near = get_close_matches(str(unknown), known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    homes = [dotted(path) for path in _all_paths(Config, ()) if path[-1] == unknown]
    if homes:
        return f"it belongs at {' or '.join(homes)}"
    return f"known here: {', '.join(known)}"


def _models_at(location: list[int | str]) -> list[type[Section]]:
    """The sections that may stand at a location; names of tiers and list indices change nothing."""
    models: list[type[Section]] = [Config]
    for key in location:
        inner = [
            m for model in models if key in model.model_fields for m in _inner(model, str(key))
        ]
        tagged = [m for m in models if key in get_args(_annotation(m, "kind"))]
        models = inner or tagged or models
    return models


def _annotation(model: type[Section], key: str) -> Any:
    field = model.model_fields.get(key)
    return None if field is None else field.annotation


def _inner(model: type[Section], key: str) -> list[type[Section]]:
    """The sections inside the annotation of a field, through unions, mappings and tuples."""
    found, waiting = [], [_annotation(model, key)]
    while waiting:
        annotation = waiting.pop()
        if isinstance(annotation, type) and issubclass(annotation, Section):
            found.append(annotation)
        waiting.extend(get_args(annotation))
    return found


def _all_paths(model: type[Section], prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key in model.model_fields:
        yield (*prefix, key)
        for inner in _inner(model, key):
            yield from _all_paths(inner, (*prefix, key))
