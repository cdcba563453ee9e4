"""What was written, key by key, and where: YAML text and overrides as a tree with places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from controller.errors import ConfigError

Path = tuple[str | int, ...]
Place = tuple[str, int]  # what it was written in, and the line there (0: it has no lines)

# Far above what any configuration needs, and built in well under a second.
MOST_VALUES = 100_000
DEEPEST = 100
_TOO_DEEP = f"mappings and lists are nested more than {DEEPEST} deep"
# A whole number that is longer is beyond every float too, and cannot be compared with one.
LONGEST_BITS = 1023
_TOO_LONG = "a number has 308 digits at most"
# Whoever has more problems has one: the wrong file.
MOST_TOLD = 20
_LONGEST_SHOWN = 60


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


def listed(problems: Sequence[str]) -> str:
    """Problems one a line, the first of them where they are many."""
    rest = len(problems) - MOST_TOLD
    return "\n".join([*problems[:MOST_TOLD], *([f"and {rest} more"] if rest > 0 else [])])


def shortened(text: str) -> str:
    """Text for a message, its beginning where it is long."""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def read_yaml(text: str, *, name: str) -> Tree:
    """Parse YAML text; places are `name:line`. Raises ConfigError with line and column.

    Keys that stand twice in one mapping are refused: YAML's loaders keep the last in silence.
    """
    tree = Tree(origin=name)
    root = _read(text, tree.places, name)
    if root is not None and not isinstance(root, dict):
        raise ConfigError(f"{name}: should be a mapping of sections such as `server:`")
    tree.root = root or {}
    return tree


def _read(text: str, places: dict[Path, Place], name: str) -> Any:
    """The plain value of YAML text; None where it holds nothing."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Measure(name).take(node)
        reader = _Reader(loader, places, name)
        value = reader.read(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: not valid YAML: {error.problem}") from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position].split("\n")
        told = f"the character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigError(
            f"{name}:{len(before)}:{len(before[-1]) + 1}: not valid YAML: {told}"
        ) from error
    # The parser itself goes one call deeper for each level.
    except RecursionError as error:
        raise ConfigError(f"{name}: {_TOO_DEEP}") from error
    if reader.wrong:
        raise ConfigError(listed(reader.wrong), count=len(reader.wrong))
    return value


class _Measure:
    """Refuses what is too deep or too much before it is built: aliases multiply what they name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._around: list[yaml.Node] = []

    def take(self, node: yaml.Node) -> None:
        """Count a node with all that is in it. Raises ConfigError."""
        self._count += 1
        if self._count > MOST_VALUES:
            raise self._refusal(node, f"holds more than {MOST_VALUES} values, aliases written out")
        if isinstance(node, yaml.ScalarNode):
            return
        if any(one is node for one in self._around):
            raise self._refusal(node, "an alias (`*name`) stands inside its own anchor")
        if len(self._around) == DEEPEST:
            raise self._refusal(node, _TOO_DEEP)
        self._around.append(node)
        for item in node.value:
            for inner in item if isinstance(item, tuple) else (item,):
                self.take(inner)
        self._around.pop()

    def _refusal(self, node: yaml.Node, told: str) -> ConfigError:
        return ConfigError(f"{self._name}:{node.start_mark.line + 1}: {told}")


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
        try:
            value = self._loader.construct_object(node)
            if not isinstance(value, int) or value.bit_length() <= LONGEST_BITS:
                return value
            why = _TOO_LONG
        # What looks like a date or a number, and is none, or has too many digits for Python.
        except ValueError as error:
            why = _TOO_LONG if len(node.value) > LONGEST_BITS else str(error)
        line, told = node.start_mark.line + 1, f"{why}; given {shortened(node.value)}"
        self.wrong.append(": ".join([f"{self._name}:{line}", *filter(None, [dotted(path)]), told]))
        return None

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
    value = _read(text, {}, f"{place}: {dotted(path)}")
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
