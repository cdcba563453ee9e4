from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.campaign import Cache, run_all
from bench.case import BadContender, Case, Contender, play
from bench.command import main
from bench.presets import executor_of
from bench.table import as_json
from controller.config import Config

ROOT = Path(__file__).parents[2]
QUICK = ["--stretch", "0.1", "--seeds", "2", "--jobs", "1", "--no-cache", "--executor", "E2"]


def case(seed: int = 1, policy: str = "static:B=8") -> Case:
    executors = {"main": executor_of("E2")}
    return Case(Config(), executors, "steady", Contender.parse(policy), seed, stretch=0.05)


def simulate(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(words)
    return int(caught.value.code or 0)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        assert simulate(*QUICK, "--policy", "aimd", "--json", str(file)) == 0
    assert files[0].read_bytes() == files[1].read_bytes()
    told = json.loads(files[0].read_text())
    assert [list(told), list(told["results"])] == [["about", "results"], ["aimd"]]


def test_runs_side_by_side_come_to_the_same_as_one_after_the_other(tmp_path: Path) -> None:
    cases = [case(seed) for seed in (1, 2)]
    alone = [play(one) for one in cases]
    told: list[tuple[int, int]] = []
    both = run_all(cases, Cache(None), jobs=2, progress=lambda *done: told.append(done))
    assert as_json({"x": alone}, {}) == as_json({"x": both}, {})
    assert told == [(0, 2), (1, 2), (2, 2)]


def test_no_run_is_played_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, played = Cache(tmp_path), []

    def counted(one: Case) -> Any:
        played.append(one.seed)
        return play(one)

    monkeypatch.setattr("bench.campaign.play", counted)

    def ignore(done: int, of: int) -> None:
        return None

    first = run_all([case(1)], cache, jobs=1, progress=ignore)
    again = run_all([case(1), case(2)], cache, jobs=1, progress=ignore)
    assert played == [1, 2]
    assert again[0] == first[0]
    # Nor within one call, whatever its limits are called.
    named = replace(case(3), contender=replace(case(3).contender, label="best static"))
    told = run_all([case(3), case(1), named], cache, jobs=1, progress=ignore)
    assert played == [1, 2, 3]
    assert told[0] == told[2] != told[1]


def test_what_a_run_depends_on_is_in_its_identity() -> None:
    first = case(1)
    others = [case(2), case(1, "static:B=9"), case(1, "static:B=8,queue=fifo")]
    assert first.identity() == case(1).identity()
    assert len({first.identity(), *(other.identity() for other in others)}) == 4


def test_the_table_compares_policies_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    fifo, ours = "static:B=16,queue=fifo", "static:B=16"
    assert simulate(*QUICK, "--policy", fifo, "--policy", ours) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith(("all tiers", "paid", "free"))]
    assert titles[0].split() == ["all", "tiers", fifo, ours]
    assert "against the first" in out
    assert "1.000 [1.000, 1.000]" in out


def test_a_configurations_own_executors_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-c", str(ROOT / "configs/simulated.yaml"), *QUICK[:-2], "--seeds", "1"]
    assert simulate(*words) == 0
    assert "the configuration's executors" in capsys.readouterr().out


def test_a_trace_is_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "night.csv"
    lines = [f"{1000 + index},paid,20,5,,finished" for index in range(30)]
    head = "arrival_s,tier,prompt_tokens,output_tokens,asked_tokens,outcome"
    trace.write_text("\n".join([head, *lines]) + "\n")
    assert simulate(*QUICK, "--workload", str(trace), "--policy", "static") == 0
    assert "100.0%" in capsys.readouterr().out


def test_b_over_time_is_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "b.png"
    assert simulate(*QUICK, "--policy", "aimd", "--plot", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--executor", "E9"], "no executor 'E9'"),
        (["--policy", "nope"], "unknown policy 'nope'"),
        (["--policy", "static:B=0"], "B should be a number from 1, not 0"),
        (["--policy", "static:queue=lifo"], "queue should be tiers or fifo, not 'lifo'"),
        (["--policy", "static:W=nan"], "W should be seconds from 0, not nan"),
        (["--policy", "static:B=9,T=5"], "T=5 is below B=9"),
        (["--policy", "static:B"], "'B' should be KEY=VALUE"),
        (["--policy", "static:Z=3"], "Z: unknown parameter"),
        (["--stretch", "0"], "--stretch: 0 should be a number above 0"),
        (["--load", "inf"], "--load: inf should be a number above 0"),
        (["--minutes", "2"], "--minutes and --jitter are for traces"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
        (["--policy", "aimd:backof=0.5"], "backof"),
        (["--workload", "nope.csv"], "nope.csv: cannot be read"),
        (["-c", "nope.yaml"], "nope.yaml"),
        ([], "no executor of kind simulated"),
    ],
)
def test_bad_words_are_told_and_nothing_runs(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*words) == 1
    assert told in capsys.readouterr().err


def test_a_contender_has_parameters_and_limits_of_its_own() -> None:
    made = Contender.parse("aimd:B=8,T=512,W=0.01,backoff=0.5")
    assert (made.type, made.size, made.tokens, made.wait_s) == ("aimd", 8, 512, 0.01)
    assert (dict(made.parameters), made.fifo) == ({"backoff": 0.5}, False)
    assert Contender.parse("static:queue=fifo").fifo
    with pytest.raises(BadContender, match="queue=fifo is for static"):
        Contender.parse("aimd:queue=fifo")
    assert Contender.parse("tests.bench.runs:Still:B=8").type == "tests.bench.runs:Still"
    assert [Contender.parse(f"static{rest}").hold for rest in ("", ":hold=fixed")] == [
        None,
        "fixed",
    ]
    with pytest.raises(BadContender, match="hold should be join_gain or fixed, not 'never'"):
        Contender.parse("static:hold=never")
    with pytest.raises(BadContender, match="'B' should be KEY=VALUE"):
        Contender.parse("static:B,T=3")
