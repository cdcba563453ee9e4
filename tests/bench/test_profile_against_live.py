from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench.profile_against_live import CLIENTS, DEMO, Round, configured, simulated
from controller.config_load import load


def test_the_simulator_serves_sixteen_clients_a_token_each_with_every_step(tmp_path: Path) -> None:
    written, like = tmp_path / "headway.yaml", tmp_path / "like.yaml"
    written.write_text(yaml.safe_dump(configured(DEMO, CLIENTS)))
    profile = {"kind": "simulated", "max_seqs": 32, "max_step_tokens": 512, "a": "100ms"}
    like.write_text(yaml.safe_dump(profile))
    config = load(written, env={})
    assert (config.control.policy.type, config.limits.max_batch_size) == ("static", CLIENTS)
    # Who is done is replaced in the next step; a long prompt takes a few steps to its first token.
    told = simulated(config, like, 215.0, seed=1)
    assert told == pytest.approx(CLIENTS / 0.1, rel=0.04)
    assert simulated(config, like, 215.0, seed=1) == told


def test_by_how_much_the_simulator_is_off_is_relative_to_what_was_served() -> None:
    assert Round(90.0, live=100.0, simulated=88.0).off == pytest.approx(-0.12)
