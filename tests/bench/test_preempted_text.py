"""A real model under the real batcher: who loses a seat on the way writes what it would have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.preempted_text import TIE, Ask, Stage, difference
from controller.request import Outcome
from executor.continuous import ContinuousEngine
from executor.contract import Capacity, Key, Sampling
from tests.executor.engine_driver import held, load, prompt
from tests.tiny_model import build

GREEDY = Sampling(ignore_eos=True)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[ContinuousEngine, Capacity]:
    engine, ready = load(folder)
    return engine, ready.capacity


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32")


def offline(number: int, *, new: int = 60, turn: int = 0, sampling: Sampling = GREEDY) -> Ask:
    return Ask(turn, f"offline {number}", "offline", prompt(number, 9 + number), new, sampling)


def paid(number: int, *, turn: int, new: int = 10, sampling: Sampling = GREEDY) -> Ask:
    return Ask(turn, f"paid {number}", "paid", prompt(100 + number, 12), new, sampling)


def played(
    loaded: tuple[ContinuousEngine, Capacity], asked: list[Ask], *, size: int, is_late: bool = False
) -> Stage:
    stage = Stage.build(*loaded, size=size, is_late=is_late)
    stage.play(asked)
    assert held(loaded[0]) == (0, True)
    for ask in asked:
        assert stage.ended[ask.name].outcome is Outcome.FINISHED
        assert stage.streams[ask.name] == stage.requests[ask.name].tokens
    return stage


def test_a_paid_request_at_a_full_batch_of_offline_work_is_the_next_to_begin(
    loaded: tuple[ContinuousEngine, Capacity],
) -> None:
    stage = Stage.build(*loaded, size=4)
    for number in range(6):
        stage.arrive(offline(number))
    for _ in range(10):
        stage.turn()
    stage.arrive(paid(0, turn=10))
    stage.turn()
    ((turn, gone),) = stage.released
    assert turn == 10
    stage.turn()
    assert stage.seated == [*((0, f"offline {number}") for number in range(4)), (11, "paid 0")]
    assert len(stage.streams["paid 0"]) == 1
    stage.play([])
    # The one that made room goes on first, before those that have not begun.
    assert stage.seated[5:] == [
        (21, gone.request_id),
        (60, "offline 4"),
        (60, "offline 5"),
    ]
    assert stage.cuts.seen == [(gone.request_id, 10)]


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_the_texts_are_those_of_a_run_in_which_nobody_had_to_go(
    loaded: tuple[ContinuousEngine, Capacity],
    reference: Any,
    sampling: Sampling,
    is_late: bool,
) -> None:
    asked = [offline(number, sampling=sampling) for number in range(5)]
    asked += [paid(number, turn=12 + 9 * number, sampling=sampling) for number in range(4)]
    whole = played(loaded, asked, size=len(asked))
    stage = played(loaded, asked, size=3, is_late=is_late)
    assert whole.cuts.seen == []
    assert len(stage.cuts.seen) >= 3
    for ask in asked:
        text = stage.streams[ask.name]
        assert len(text) == ask.new
        assert stage.ended[ask.name].reason == "length"
        parts = difference(reference, ask.prompt, text, whole.streams[ask.name])
        assert parts is None or (sampling is GREEDY and parts.gap < TIE)


def test_the_end_of_a_text_is_counted_from_the_clients_prompt(
    loaded: tuple[ContinuousEngine, Capacity],
) -> None:
    text = played(loaded, [offline(1)], size=1).streams["offline 1"]
    last = next(i for i in range(30, 60) if text[i] not in text[:i])
    # The seat is lost at token 12; the count of `min_tokens` goes on where it was.
    rules = Sampling(ignore_eos=True, stop_token_ids=(text[last],), min_tokens=last)
    asked = [offline(1, sampling=rules), paid(0, turn=12)]
    stage = played(loaded, asked, size=1)
    assert stage.cuts.seen == [("offline 1", 12)]
    assert stage.streams["offline 1"] == text[: last + 1]
    assert stage.ended["offline 1"].reason == "stop"
    later = Sampling(ignore_eos=True, stop_token_ids=(text[last],), min_tokens=last + 1)
    stage = played(loaded, [offline(1, sampling=later), paid(0, turn=12)], size=1)
    assert stage.streams["offline 1"][:last] == text[:last]
    assert stage.streams["offline 1"][last] != text[last]


def test_nobody_loses_a_seat_more_than_three_times(
    loaded: tuple[ContinuousEngine, Capacity],
) -> None:
    asked = [offline(0, new=260), *(paid(number, turn=20 + 50 * number) for number in range(6))]
    stage = played(loaded, asked, size=1)
    assert [name for name, _ in stage.cuts.seen] == ["offline 0"] * 3
    assert stage.requests["offline 0"].preemptions == 3
    assert [key for _, key in stage.released] == [
        Key("offline 0", attempt) for attempt in (1, 2, 3)
    ]
    whole = played(loaded, [asked[0]], size=1)
    assert stage.streams["offline 0"] == whole.streams["offline 0"]
