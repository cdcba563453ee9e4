"""Which keys the configuration knows, read off its model: for hints, schema and reference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from controller.config import Config
from controller.config_types import Section


def sections_at(location: Sequence[int | str]) -> list[type[Section]]:
    """The sections that may stand at a location of the model.

    Names of tiers, list indices and the kinds of executors lead no deeper.
    """
    sections: list[type[Section]] = [Config]
    for key in location:
        inner = [found for section in sections for found in sections_in(section, str(key))]
        of_kind = [found for found in sections if key in get_args(_annotation(found, "kind"))]
        sections = inner or of_kind or sections
    return sections


def sections_in(section: type[Section], key: str) -> list[type[Section]]:
    """The sections inside the annotation of a field, through unions, mappings and tuples."""
    found: list[type[Section]] = []
    waiting = [_annotation(section, key)]
    while waiting:
        annotation = waiting.pop(0)
        if isinstance(annotation, type) and issubclass(annotation, Section):
            found.append(annotation)
        waiting.extend(get_args(annotation))
    return found


def all_paths(section: type[Section], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key, without names of tiers and list indices."""
    for key in section.model_fields:
        yield (*prefix, key)
        for inner in sections_in(section, key):
            yield from all_paths(inner, (*prefix, key))


def _annotation(section: type[Section], key: str) -> Any:
    field = section.model_fields.get(key)
    return None if field is None else field.annotation


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file (draft 2020-12), with units and defaults."""
    made = Config.model_json_schema()
    sections = {section.__name__: section for section in _all_sections(Config)}
    for name, defined in {**made["$defs"], "Config": made}.items():
        # Durations and sizes are defaults in seconds and bytes; a file needs them with units.
        for key, default in written_defaults(sections[name]).items():
            defined["properties"][key]["default"] = default
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": "Headway configuration",
    }


def written_defaults(section: type[Section]) -> dict[str, Any]:
    """The defaults of a section's keys as a file would write them; required keys are left out."""
    bare = section.model_construct()
    written: dict[str, Any] = json.loads(bare.model_dump_json())
    return written


def _all_sections(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for key in section.model_fields:
        for inner in sections_in(section, key):
            yield from _all_sections(inner)
