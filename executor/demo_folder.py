"""Where the demo's model lies once it is made; whoever only asks imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

# The last number counts the ways of converting: whoever changes one makes everybody convert anew.
FOLDER = "SmolLM2-135M-Instruct-b179c952-1"

_NEEDED = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")


def cache_folder() -> Path:
    """Where things that can be made again are kept for this user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "headway"


def made() -> Path | None:
    """The folder of the demo's model, if it was made before."""
    folder = cache_folder() / FOLDER
    return folder if is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Whether everything lies there."""
    return all((folder / name).is_file() for name in _NEEDED)
