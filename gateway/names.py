"""Whether the packages that run are Headway's own, and not others of the same plain names.

Imports nothing of Headway: it runs before anything that might turn out to be foreign.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path

PACKAGES = ("controller", "policies", "executor", "metrics", "gateway", "bench")


class ForeignPackage(Exception):
    """Another package has the name of one of Headway's and would be imported in its place."""


def check_packages(search: Sequence[str] | None = None) -> None:
    """Raise ForeignPackage when a name of Headway's leads elsewhere on `search` (sys.path)."""
    own = Path(__file__).resolve().parent.parent
    for name in PACKAGES:
        spec = PathFinder.find_spec(name, list(sys.path if search is None else search))
        if spec is None:
            raise ForeignPackage(
                f"the package {name!r} of Headway cannot be found: it should lie in {own}"
            )
        found = (
            Path(spec.origin).parent if spec.origin else _namespace(spec.submodule_search_locations)
        )
        if found.resolve() != own / name:
            raise ForeignPackage(
                f"{spec.origin or found} hides Headway's own package {name!r} in {own}: "
                "uninstall or rename what put it there, or run Headway in an environment of its own"
            )


def _namespace(locations: Sequence[str] | None) -> Path:
    """Where a folder without `__init__.py` lies, which import takes for a package too."""
    return Path(next(iter(locations or ()), ""))
