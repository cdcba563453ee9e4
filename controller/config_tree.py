"""What was written, key by key, and where: YAML text and overrides as a tree with places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from controller.errors import ConfigError

Path = tuple[str | int, ...]
Place = tuple[str, int]  # what it was written in, and the line there (0: it has no lines)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: the key's path, the words, and other keys that are part of it."""

    path: Path
    message: str
    beside: tuple[Path, ...] = ()


@dataclass(slots=True)
class Tree:
    """Nested mappings and lists of plain values, and for each path where it was written."""

    root: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, Place] = field(default_factory=dict)
    origin: str = "defaults"

    def place(self, path: Path) -> Place:
        """Where this path, or the nearest thing around it, was written."""
        for length in range(len(path), 0, -1):
            if (found := self.places.get(path[:length])) is not None:
                return found
        return (self.origin, 0)

    def get(self, path: Path) -> Any:
        """The value at this path. Raises LookupError or TypeError where there is none."""
        value: Any = self.root
        for key in path:
            value = value[key]
        return value

    def put(self, path: Path, value: Any, *, place: str) -> None:
        """Write one value; mappings on the way are created, list items must exist."""
        parent: Any = self.root
        for depth, key in enumerate(path[:-1], start=1):
            if isinstance(parent, dict) and not isinstance(parent.get(key), dict | list):
                parent[key] = {}
                self.places[path[:depth]] = (place, 0)
            parent = parent[key]
        parent[path[-1]] = value
        self.places[path] = (place, 0)

    def drop(self, path: Path) -> None:
        """Remove a key or a list item, where there is one."""
        try:
            del self.get(path[:-1])[path[-1]]
        except (LookupError, TypeError):
            return


def dotted(path: Iterable[str | int]) -> str:
    """A path as people write it: `executors.0.model`."""
    return ".".join(str(part) for part in path)


def read_yaml(text: str, *, name: str) -> Tree:
    """Parse YAML text; places are `name:line`. Raises ConfigError with line and column.

    Keys that stand twice in one mapping are refused: YAML's loaders keep the last in silence.
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        tree = Tree(origin=name)
        if node is None:
            return tree
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{name}: should be a mapping of sections such as `server:`")
        reader = _Reader(loader, tree.places, name)
        tree.root = reader.read(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: an alias (`*name`) stands inside its own anchor") from error
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{name}: not valid YAML: {error.reason}") from error
    finally:
        loader.dispose()
    if reader.wrong:
        raise ConfigError("\n".join(reader.wrong))
    return tree


class _Reader:
    """Walks YAML nodes into plain values and notes the line of each."""

    def __init__(self, loader: yaml.SafeLoader, places: dict[Path, Place], name: str) -> None:
        self._loader = loader
        self._places = places
        self._name = name
        self.wrong: list[str] = []

    def read(self, node: yaml.Node, path: Path) -> Any:
        """The plain value of a node."""
        self._places.setdefault(path, (self._name, node.start_mark.line + 1))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._loader.construct_object(node)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.wrong.append(f"{self._name}:{line}: a key should be a name, not a collection")
            elif key in seen and key_node.tag != "tag:yaml.org,2002:merge":
                told = f"{dotted((*path, key))}: stands in line {seen[key]} already"
                self.wrong.append(f"{self._name}:{line}: {told}")
            seen[key] = line
        self._loader.flatten_mapping(node)
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            # A key such as `on` or `1` is a name here, whatever YAML takes it for.
            key = str(key_node.value)
            self._places[(*path, key)] = (self._name, key_node.start_mark.line + 1)
            made[key] = self.read(value_node, (*path, key))
        return made


def overlay(tree: Tree, path: Path, text: str, *, place: str, defaults: Mapping[str, Any]) -> None:
    """Write `text` (read as YAML) at `path`, over what the tree or else the defaults have there.

    A mapping or list that the tree does not have yet is taken from `defaults` whole, so that a
    change to one tier leaves the others. Raises ConfigError when the path leads nowhere.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{place}: {dotted(path)}: not valid YAML: {text!r}") from error
    here: Any = tree.root
    spare: Any = defaults
    for depth, key in enumerate(path[:-1]):
        spare = step(spare, key)
        if step(here, key) is None and isinstance(spare, dict | list):
            tree.put(path[: depth + 1], spare, place=place)
        here = step(here, key)
    try:
        tree.put(path, value, place=place)
    except (LookupError, TypeError) as error:
        raise ConfigError(f"{place}: {dotted(path)}: there is no such list item") from error


def step(value: Any, key: str | int) -> Any:
    """What a mapping or list has under a key; None where it has nothing."""
    try:
        return value[key]
    except (LookupError, TypeError):
        return None
