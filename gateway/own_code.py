"""Where a policy of the user's own, `module:Class`, is looked for, and when at all."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

# As in `my_rules.night:Night`: neither an address nor a time of day, nor limits as in `static:B=4`.
_NAMED = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*:[A-Za-z_]\w*(?![\w=])")
_YAML = (".yaml", ".yml")
_BEFORE_A_FILE = ("-c", "--config", "check")
# What in the environment overrides the configuration.
_PREFIX = "HEADWAY__"


def reach(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """Let imports find what these words of a command name as `module:Class`.

    Only where a word, a variable that overrides the configuration, or a YAML file among the words
    does name one: then the working folder, and that file's. Last on the path, they cannot take the
    place of anything installed; and without such a name nothing is ever imported from them.
    """
    for folder in _folders(words, environ):
        if folder not in sys.path:
            sys.path.append(folder)


def _folders(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[str]:
    variables = [value for name, value in environ.items() if name.startswith(_PREFIX)]
    if any(_NAMED.search(text) for text in (*words, *variables)):
        yield os.getcwd()
    for before, word in zip(("", *words), words, strict=False):
        path = Path(word.partition("=")[2] if word.startswith("--config=") else word)
        said = before in _BEFORE_A_FILE or word.startswith("--config=")
        if (said or path.suffix in _YAML) and path.is_file() and _names_one(path):
            yield os.getcwd()
            yield str(path.resolve().parent)


def _names_one(path: Path) -> bool:
    """Whether a value in a YAML file is such a name; comments do not count."""
    try:
        tokens = list(yaml.scan(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        # Whoever reads it for its content says what is wrong with it.
        return False
    values = (token.value for token in tokens if isinstance(token, yaml.ScalarToken))
    return any(_NAMED.fullmatch(value) for value in values)
