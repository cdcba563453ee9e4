"""Which policies there are, and how one is built from its type and parameters."""

from __future__ import annotations
from collections.abc import Mapping
from typing import Any
def problems(type: str, parameters: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    return []
