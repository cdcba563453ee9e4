from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bench.held_out import check
from bench.profile_against_live import CLIENTS, DEMO, Round, configured, held_out, simulated
from bench.profile_report import as_yaml
from bench.step_fit import cells_of, fit
from controller.config_load import load
from tests.bench.profiled import ABOUT, decode, slower


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
    one = Round(90.0, held_out=0.05, live=100.0, simulated=88.0)
    assert one.off == pytest.approx(-0.12)


def test_what_was_held_out_is_read_from_the_file_of_the_profile() -> None:
    steps = [decode(n, 0.010 + 0.001 * n) for n in (1, 2, 3, 4, 6, 8)]
    steps = [(c, slower(s)) for c, s in steps]
    cells = cells_of(steps)
    text = as_yaml(fit(cells), ABOUT, held_out=check(cells))
    assert held_out(text) == pytest.approx(0.5, abs=1e-3)
    with pytest.raises(SystemExit, match="too few kinds of step"):
        held_out(as_yaml(fit(cells), ABOUT))
