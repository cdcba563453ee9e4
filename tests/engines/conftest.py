from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.engine_process import Server
from bench.engine_table import ENGINES
from bench.engines import running
from tests.e2e.daemon import ROOT, Daemon

SEATS = 4


@pytest.fixture(scope="module")
def engine() -> Iterator[Server]:
    """llama.cpp's server with four seats."""
    with running(ENGINES["llamacpp"], seats=SEATS) as server:
        yield server


@pytest.fixture(scope="module")
def front(engine: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Headway before it, as its configuration ships but for the address and the seats."""
    settings = {
        "executors.0.url": engine.url,
        "executors.0.max_seqs": SEATS,
        "envelope.max_batch_size": f"[1, {SEATS}]",
        "limits.max_batch_size": SEATS,
        "tiers.offline.max_seats": SEATS - 1,
        "control.policy.type": "static",
    }
    flags = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    config: Path = ROOT / "configs" / "upstream-llamacpp.yaml"
    folder = tmp_path_factory.mktemp("front")
    with Daemon(folder, config, flags=tuple(flags)) as daemon:
        yield daemon.listening()
