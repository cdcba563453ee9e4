"""Where the published traces lie, which are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

TRACES = Path(os.environ.get("HEADWAY_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
