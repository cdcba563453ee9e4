from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon

Start = Callable[..., Daemon]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons on a configuration; they are ended with the test."""
    with ExitStack() as stack:
        count = 0

        def started(config: Mapping[str, Any] | Path, **more: Any) -> Daemon:
            nonlocal count
            count += 1
            folder = tmp_path / str(count)
            folder.mkdir()
            return stack.enter_context(Daemon(folder, config, **more))

        yield started
