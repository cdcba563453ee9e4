"""How a configuration comes about: from defaults, file, environment and flags, all checked."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from controller.config import Config
from controller.config_checks import cross_check
from controller.config_messages import explain, written_path
from controller.config_tree import (
    MOST_TOLD,
    Path,
    Place,
    Problem,
    Tree,
    dotted,
    listed,
    overlay,
    read_yaml,
    step,
)
from controller.errors import ConfigError

PREFIX = "HEADWAY__"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that is right, and where each of its keys was written."""

    config: Config
    tree: Tree

    def at(self, path: Path) -> str:
        """`file:line` of a key, or of the nearest thing around it. API keys go by their names."""
        if path[:2] == ("auth", "keys") and len(path) > 2:
            names = [key.name for key in self.config.auth.keys]
            index = names.index(str(path[2])) if path[2] in names else path[2]
            path = (*path[:2], index, *path[3:])
        return _at(self.tree.place(path))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a configuration comes from; each overrules the one before it.

    The defaults, the YAML file at `path` (None: no file), variables `HEADWAY__SECTION__KEY` of
    `env`, `overrides` (dotted key to value, as flags give them). Values of the last two are read
    as YAML.
    """

    path: FilePath | None
    env: Mapping[str, str]
    overrides: Mapping[str, str] = field(default_factory=dict)

    def digest(self) -> bytes:
        """A hash of the file's content. Raises ConfigError where it cannot be read."""
        return b"" if self.path is None else hashlib.sha256(_content(self.path)).digest()

    def read(self) -> Loaded:
        """Read and check it. Raises ConfigError that lists every problem, one a line, as
        `place: key: what`."""
        tree = Tree() if self.path is None else _file(self.path)
        wrong = _lay_over(tree, self.env, self.overrides)
        config, problems = check(tree)
        wrong += [
            f"{_at(tree.place(p.path))}: {dotted(p.path)}: {p.message}"
            for p in sorted(problems, key=lambda p: tree.place(p.path))
        ]
        if wrong or config is None:
            raise ConfigError(listed(wrong), count=len(wrong))
        return Loaded(config, tree)


def load(
    path: FilePath | str | None,
    *,
    env: Mapping[str, str],
    overrides: Mapping[str, str] | None = None,
) -> Config:
    """Read and check a configuration; see `Source`."""
    file = None if path is None else FilePath(path)
    return Source(file, env, overrides or {}).read().config


def _at(place: Place) -> str:
    name, line = place
    return f"{name}:{line}" if line else name


def _content(path: FilePath) -> bytes:
    try:
        # A FIFO would be waited for without end, and is empty when it is loaded again.
        if not stat.S_ISREG(path.stat().st_mode) and not path.is_dir():
            raise ConfigError(f"{path}: cannot be read: should be a regular file")
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _file(path: FilePath) -> Tree:
    try:
        text = _content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: should be UTF-8 text: {error.reason}") from error
    return read_yaml(text, name=str(path))


def _lay_over(tree: Tree, env: Mapping[str, str], overrides: Mapping[str, str]) -> list[str]:
    """Write variables and flags over the tree; what cannot be written is told."""
    defaults = json.loads(Config().model_dump_json())
    written = [
        (name.removeprefix(PREFIX).split("__"), env[name], f"environment {name}")
        for name in sorted(env, key=lambda name: (name.count("__"), name))
        if name.startswith(PREFIX)
    ]
    written += [(key.split("."), text, f"flag {key}") for key, text in overrides.items()]
    wrong = []
    for parts, text, place in written:
        try:
            overlay(tree, _resolve(parts, tree, defaults), text, place=place, defaults=defaults)
        except ConfigError as error:
            wrong.append(str(error))
    return wrong


def _resolve(parts: list[str], tree: Tree, defaults: Any) -> Path:
    """The path that these words mean: as the file or else the defaults spell its keys."""
    path: list[str | int] = []
    here: Any = tree.root
    for part in parts:
        level = here if isinstance(here, dict | list) else defaults
        if isinstance(level, list) and part.isdigit():
            key: str | int = int(part)
        else:
            names = [*(here if isinstance(here, dict) else ())]
            names += [*(defaults if isinstance(defaults, dict) else ())]
            key = next((name for name in names if _folded(name) == _folded(part)), part.lower())
        path.append(key)
        here, defaults = step(here, key), step(defaults, key)
    return tuple(path)


def _folded(name: str) -> str:
    return name.upper().replace("-", "_")


def check(tree: Tree) -> tuple[Config | None, list[Problem]]:
    """The configuration that a tree spells, or everything that is wrong with it.

    Values that are wrong by themselves are set aside for the defaults, so that contradictions
    between the others are found in the same pass.
    """
    config, problems = _validate(tree)
    if config is not None:
        found = cross_check(config)
        return (None if found else config), found
    for problem in problems:
        tree.drop(problem.path)
    config, _ = _validate(tree)
    if config is not None:
        dropped = [problem.path for problem in problems]
        problems += [p for p in cross_check(config) if not _touches(p, dropped)]
    return None, problems


def _touches(problem: Problem, paths: list[Path]) -> bool:
    """Whether a problem rests on a value that was set aside."""
    return any(
        mine[: len(path)] == path or path[: len(mine)] == mine
        for mine in (problem.path, *problem.beside)
        for path in paths
    )


def _validate(tree: Tree) -> tuple[Config | None, list[Problem]]:
    root = tree.root
    try:
        return Config.model_validate(root, context={"written": True}), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    details.sort(key=lambda detail: tree.place(written_path(detail, root)))
    # Which key was meant takes long to find out, and nobody reads it of thousands.
    return None, [explain(d, root, hint=i < MOST_TOLD) for i, d in enumerate(details)]
