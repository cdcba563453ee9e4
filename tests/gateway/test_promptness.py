"""Policies that never come back, and whoever tests them does."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gateway.promptness import IN_TIME, Watch, checked_in_time
from policies.conformance import ANSWERS, BUILDS, DOCUMENTED, EMPTY, FROZEN, Result
from policies.contract import Limits, Proposal, Signals

ANSWER_S = 0.3


@dataclass(frozen=True)
class NoParameters:
    """It has none."""


class Hangs:
    """Never answers."""

    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, parameters: NoParameters) -> None:
        self.never = threading.Event()

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Waits for what does not come."""
        self.never.wait()
        return Proposal(limits, "at last")


class HangsOnNothing(Hangs):
    """Answers only where somebody is."""

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Waits where nothing was ever seen."""
        if signals == Signals(interval_s=0.25, age_s=None):
            self.never.wait()
        return Proposal(limits, "as it is")


def test_a_policy_that_never_answers_fails_in_time_and_by_name() -> None:
    assert checked_in_time(f"{__name__}:Hangs", {}, seeds=[1], answer_s=ANSWER_S) == [
        Result(BUILDS, True),
        Result(DOCUMENTED, True),
        Result(FROZEN, True),
        Result(IN_TIME, False, "an answer takes more than 0.3 s"),
    ]


def test_one_that_hangs_later_keeps_the_results_from_before() -> None:
    results = checked_in_time(f"{__name__}:HangsOnNothing", {}, seeds=[1], answer_s=ANSWER_S)
    assert Result(ANSWERS, True) in results
    assert EMPTY not in [result.check for result in results]
    assert results[-1] == Result(IN_TIME, False, "an answer takes more than 0.3 s")


def test_the_process_ends_though_the_policy_computes_for_ever(tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(
        "from dataclasses import dataclass\n"
        "class Loops:\n"
        "    @dataclass(frozen=True)\n"
        "    class Parameters: pass\n"
        "    def __init__(self, parameters): pass\n"
        "    def decide(self, signals, limits):\n"
        "        while True: pass\n"
    )
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from gateway.promptness import checked_in_time\n"
        f"print(checked_in_time('rules:Loops', {{}}, seeds=[1], answer_s={ANSWER_S})[-1].detail)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert (ended.stdout, ended.stderr) == ("an answer takes more than 0.3 s\n", "")


def test_a_policy_that_would_end_the_process_is_told_to_raise() -> None:
    results = checked_in_time(f"{__name__}:Exits", {}, seeds=[1])
    (told,) = (result.detail for result in results if result.check == ANSWERS)
    assert "raises SystemExit: 3" in told


class Exits(Hangs):
    """Ends the process."""

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        """Goes home."""
        sys.exit(3)


def test_what_the_work_raises_is_raised() -> None:
    def work() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        Watch().run(work, look_every_s=0.1)


def test_the_innermost_part_that_is_overdue_is_named() -> None:
    watch, never = Watch(), threading.Event()

    def work() -> None:
        with watch.during("a check", 0.0), watch.during("an answer", 0.0):
            never.wait()

    assert watch.run(work, look_every_s=0.05) == "an answer takes more than 0 s"
    never.set()
