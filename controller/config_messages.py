"""In which words a value that pydantic refuses is told, and which known key was meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from controller.config import Config
from controller.config_keys import all_paths, sections_at
from controller.config_tree import Path, Problem, dotted, shortened, step


def explain(detail: ErrorDetails, root: dict[str, Any], *, hint: bool = True) -> Problem:
    """One refusal of pydantic as a problem of what was written in `root`.

    `hint`: say of an unknown key which one may have been meant.
    """
    path, kind = written_path(detail, root), detail["type"]
    if kind == "extra_forbidden":
        return Problem(path, f"unknown key; {_hint(detail['loc'])}" if hint else "unknown key")
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
    return shortened("nothing" if value is None else repr(value))


def written_path(detail: ErrorDetails, root: dict[str, Any]) -> Path:
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
    known = sorted({key for model in sections_at(around) for key in model.model_fields})
    near = get_close_matches(str(unknown), known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    homes = [path for path in all_paths(Config) if path[-1] == unknown]
    if any(path[:-1] == tuple(around[:1]) for path in homes):
        return f"another kind of {around[0]} has it"
    if homes:
        return f"it belongs at {' or '.join(dotted(path) for path in homes)}"
    return f"known here: {', '.join(known)}"
