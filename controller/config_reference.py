"""The reference of all keys for people: Markdown tables, read off the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from controller.config import Config
from controller.config_keys import schema, sections_in, written_defaults
from controller.config_types import Section

_HEAD = """# Configuration

A YAML file; every key has a default, so that a file needs only what differs.
`headway check FILE` says whether it is right, and where it is not.
[`configs/default.yaml`](../configs/default.yaml) is all of this as a file, with the reasons.

Durations are numbers with a unit (`ns`, `us`, `ms`, `s`, `m`, `h`, `d`): `50ms`, `1.5s`, `10m`.
Sizes likewise (`B`, `KiB`, `MiB`, `GiB`, `TiB`, `kB`, `MB`, `GB`, `TB`): `64KiB`. `0` needs none.

What overrules what: the defaults, the file, environment variables, flags. A variable is
`HEADWAY__` and the key's path in capitals with `__` between the parts, a flag `--set` and the
path with dots: `HEADWAY__SERVER__PORT=9000`, `HEADWAY__EXECUTORS__0__MODEL=/models/mine`,
`--set tiers.paid.max_seats=8`. Their values are read as YAML.

A file that names `tiers` names all of them, and so it is with `executors`.

A running daemon takes a changed file, too; [a few keys need a
restart](operations.md#change-the-configuration-while-it-runs).

This page is made by `headway schema --markdown`.
"""


def markdown() -> str:
    """The whole reference page."""
    definitions = schema()["$defs"]
    parts = [_HEAD]
    told: set[type[Section]] = set()
    for key, field in Config.model_fields.items():
        parts.append(f"\n## {key}\n\n{field.description}\n")
        for section in sections_in(Config, key):
            title = _title(key, definitions[section.__name__])
            parts.extend(_section(section, title, definitions=definitions, told=told))
    return "".join(parts)


def _title(key: str, described: dict[str, Any]) -> str:
    if key == "executors":
        return f"executors.N, kind {described['properties']['kind']['const']}"
    return "tiers.NAME" if key == "tiers" else key


def _section(
    section: type[Section], title: str, *, definitions: dict[str, Any], told: set[type[Section]]
) -> Iterator[str]:
    """The heading and table of a section, then of the sections in it that were not told yet."""
    told.add(section)
    described, defaults = definitions[section.__name__], written_defaults(section)
    if "." in title:
        yield f"\n### {title}\n\n{described['description']}\n"
    yield "\n| key | value | default | meaning |\n| --- | --- | --- | --- |\n"
    for key, field in section.model_fields.items():
        nested = sections_in(section, key)
        kind = f"{title.split(',')[0]}.{key}" if nested else _kind(described["properties"][key])
        default = "see there" if nested else _default(key, defaults)
        yield f"| `{key}` | {kind} | {default} | {_cell(field.description or '')} |\n"
    for key in section.model_fields:
        for inner in sections_in(section, key):
            if inner not in told:
                path = f"{title.split(',')[0]}.{key}"
                yield from _section(inner, path, definitions=definitions, told=told)


def _default(key: str, defaults: dict[str, Any]) -> str:
    if key not in defaults:
        return "required"
    value = defaults[key]
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def _kind(described: dict[str, Any]) -> str:
    """A JSON schema in a word or two."""
    if "anyOf" in described:
        kinds = [_kind(option) for option in described["anyOf"]]
        if kinds[0] in ("duration", "size") and kinds[1] == "`0`":
            kinds = kinds[:1]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in described:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in described["enum"])
    if "const" in described:
        return f"`{described['const']}`"
    if described.get("type") == "array":
        items = described.get("prefixItems")
        if items:
            return f"[{', '.join(_kind(item) for item in items)}]"
        return f"list of {_kind(described['items'])}"
    if "pattern" in described and described["pattern"].endswith("|d)$"):
        return "duration"
    if "pattern" in described and described["pattern"].endswith("|TiB)$"):
        return "size"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
    words["object"] = "mapping"
    kind = words.get(described.get("type", ""), described.get("type", "mapping"))
    bounds = {"minimum": "from", "exclusiveMinimum": "over", "maximum": "to"}
    bounds["exclusiveMaximum"] = "under"
    told = [f"{word} {described[key]:g}" for key, word in bounds.items() if key in described]
    return " ".join([kind, *told])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
