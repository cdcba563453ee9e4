from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from bench.command import main
from bench.traces import read
from tests.e2e.conftest import Start
from tests.e2e.daemon import settings


async def test_what_a_daemon_records_is_replayed_by_the_simulator(
    start: Start, tmp_path: Path
) -> None:
    record, figures = tmp_path / "traffic.csv", tmp_path / "figures.json"
    daemon = start(settings(record={"path": str(record)})).listening()
    async with daemon.client() as client:
        await client.ready()
        for tier, tokens in (("priority", 3), ("default", 4), ("flex", 5)):
            await client.ask("hello", tokens=tokens, service_tier=tier)
    daemon.signal(signal.SIGTERM)
    assert await daemon.exit_code() == 0
    lines = read(record)
    assert [(line.tier, line.prompt, line.output, line.asked) for line in lines] == [
        ("paid", 5, 3, 3),
        ("free", 5, 4, 4),
        ("offline", 5, 5, 5),
    ]
    config = str(tmp_path / "1" / "headway.yaml")
    words = ["-c", config, "--workload", str(record), "--seeds", "1", "--no-cache"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json", str(figures)])
    assert not ended.value.code
    (outcome,) = json.loads(figures.read_text())["results"]["static"]
    assert sum(tier["offered"] for tier in outcome["tiers"].values()) <= 3
    assert outcome["tiers"]["offline"]["attainment"] == 1.0
