"""What differs between two configurations, key by key, and what of it a running daemon can take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from controller.config import Config
from controller.config_tree import Path, dotted


class Absent(Enum):
    """The key is not there at all, which is not the same as null."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
HIDDEN = "(not shown)"

# What a daemon takes at its start only, and why; `**` is everything below. The rest is live.
RESTART: Mapping[tuple[str, ...], str] = MappingProxyType(
    {
        ("server", "host"): "the address is bound at the start",
        ("server", "port"): "the address is bound at the start",
        ("tiers", "NAME"): "queues, shares and metrics are those of the tiers at the start",
        ("tiers", "NAME", "priority"): "who waits and runs was ranked by it",
        ("control", "state_file"): "it is read at the start",
        ("executors", "**"): "workers are started with it",
        ("record", "**"): "the file is opened at the start",
    }
)


@dataclass(frozen=True, slots=True)
class Change:
    """One key with another value, as a file would write it; of secrets only that they differ.

    API keys are told apart by their names, not by their places in the list.
    """

    path: Path
    old: Any
    new: Any

    @property
    def key(self) -> str:
        """The path as people write it."""
        return dotted(self.path)

    @property
    def restart(self) -> str | None:
        """Why it needs a restart; None: it is live."""
        for pattern, why in RESTART.items():
            if _matches(pattern, self.path):
                return why
        return None

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} -> {_shown(self.new)}"

    def view(self) -> dict[str, Any]:
        """As JSON; a side on which the key is not there is left out."""
        sides = {"old": self.old, "new": self.new}
        return {"key": self.key, **{k: v for k, v in sides.items() if v is not ABSENT}}


def changes(old: Config, new: Config) -> list[Change]:
    """Every key that differs, in the order of the configuration."""
    return list(_compare((), _written(old), _written(new)))


def _written(config: Config) -> dict[str, Any]:
    """A configuration as a file would have it, API keys by their names."""
    written: dict[str, Any] = json.loads(config.model_dump_json())
    auth = written["auth"]
    auth["keys"] = {key.pop("name"): key for key in auth["keys"]}
    return written


def _compare(path: Path, old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, list) and isinstance(new, list) and path == ("executors",):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            yield from _compare((*path, key), old.get(key, ABSENT), new.get(key, ABSENT))
    elif old != new:
        yield Change(path, _veiled(path, old), _veiled(path, new))


def _veiled(path: Path, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _veiled((*path, key), inner) for key, inner in value.items()}
    secret = bool(path) and "sha256" in str(path[-1])
    return HIDDEN if secret and value is not None and value is not ABSENT else value


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "(none)"
    return value if isinstance(value, str) and value else json.dumps(value)


def _matches(pattern: tuple[str, ...], path: Path) -> bool:
    if pattern[-1] == "**":
        return path[: len(pattern) - 1] == pattern[:-1]
    return len(path) == len(pattern) and all(
        one in ("NAME", key) for one, key in zip(pattern, path, strict=True)
    )
