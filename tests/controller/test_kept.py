"""What was learnt comes back exactly as it was, or not at all, with the reason."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.kept import (
    MOST_BYTES,
    VERSION,
    Ceiling,
    Kept,
    KeptExecutor,
    KeptGroup,
    KeptLimits,
    Unusable,
    dump,
    load,
    model_of,
    remaining,
)
from controller.step_model import StepModel
from executor.contract import StepSample
from policies.contract import StepEstimate

NOW = 1_700_000_000.0
SAME = {"kind": "simulated", "model": "m", "device": "cpu"}


def samples(count: int, seed: int = 0) -> list[StepSample]:
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        n, prefill = rng.randint(1, 120), rng.choice([0, 0, 64, 300])
        seconds = 0.02 + 1e-4 * n + 1e-5 * prefill + rng.gauss(0, 1e-4)
        made.append(StepSample(seconds, n, n, n * rng.randint(10, 900), prefill, prefill**2))
    return made


def learnt(count: int) -> StepModel:
    model = StepModel()
    for sample in samples(count):
        model.learn(sample)
    return model


def kept(model: StepModel, **changes: Any) -> Kept:
    sums = model.sums()
    assert sums is not None
    limits = KeptLimits(23, 1500, 0.0125)
    group = KeptGroup(limits, KeptLimits(16, 1024, 0.005), Ceiling(9000.5, 312.25))
    fields: dict[str, Any] = {
        "version": VERSION,
        "saved_at": NOW,
        "executors": {"main": KeptExecutor(sums=sums, **SAME)},
        "groups": {"default": group},
    }
    return Kept(**(fields | changes))


def known(model: StepModel) -> StepEstimate:
    estimate = model.estimate()
    assert estimate is not None
    return estimate


@pytest.mark.parametrize("count", [1, 19, 500, 60_000])
def test_a_step_model_predicts_what_it_predicted_and_learns_on_as_it_would_have(count: int) -> None:
    model = learnt(count)
    before = known(model)
    loaded = load(dump(kept(model)), now=NOW)
    again = model_of(loaded.executors["main"], **SAME)
    assert known(again) == before
    for sample in samples(200, seed=1):
        model.learn(sample, weight=5.0)
        again.learn(sample, weight=5.0)
    assert known(again) == known(model)
    assert again.lately() == known(again)


def test_limits_and_ceilings_come_back_as_they_were() -> None:
    state = kept(learnt(50))
    assert load(dump(state), now=NOW + 60.0) == state


def test_a_ceiling_lasts_as_long_as_it_would_have() -> None:
    ceiling = Ceiling(100.0, 300.0)
    assert remaining(ceiling, saved_at=NOW, now=NOW + 100.0) == 200.0
    assert remaining(ceiling, saved_at=NOW, now=NOW - 100.0) == 300.0


def test_a_model_that_saw_nothing_has_nothing_to_keep() -> None:
    assert StepModel().sums() is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"version": VERSION + 1}, f"it is of version {VERSION + 1}, and this code writes"),
        ({"saved_at": NOW - 8 * 86400}, "it is 8 days old"),
        ({"saved_at": NOW + 7200}, "it is from 7200 s ahead"),
        ({"saved_at": 1e308}, "s ahead"),
        ({"saved_at": -1e308}, "days old"),
        (
            {"groups": {"g": KeptGroup(KeptLimits(0, 1, 0.0), KeptLimits(1, 1, 0.0))}},
            "it has limits that are none",
        ),
        (
            {"groups": {"g": KeptGroup(KeptLimits(1, 1, 0.0), KeptLimits(1, 1, -1.0))}},
            "it has limits that are none",
        ),
        (
            {
                "groups": {
                    "g": KeptGroup(KeptLimits(1, 1, 0.0), KeptLimits(1, 1, 0.0), Ceiling(0.0, 1.0))
                }
            },
            "it has a ceiling that is none",
        ),
    ],
)
def test_what_is_of_another_version_or_time_is_left_aside(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(Unusable, match=why):
        load(dump(kept(learnt(30), **changes)), now=NOW)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model": "n"}, "its model was 'm' and is 'n'"),
        ({"device": "cuda:0"}, "its device was 'cpu' and is 'cuda:0'"),
        ({"kind": "continuous"}, "its kind was 'simulated' and is 'continuous'"),
    ],
)
def test_another_model_device_or_kind_begins_anew(changed: dict[str, str], why: str) -> None:
    executor = kept(learnt(30)).executors["main"]
    with pytest.raises(Unusable, match=why):
        model_of(executor, **(SAME | changed))


Spoil = Callable[[dict[str, Any]], None]
SPOILT: list[Spoil] = [
    lambda sums: sums["basis"].append(1.0),
    lambda sums: sums["moments"].pop(),
    lambda sums: sums["moments"][2].pop(),
    lambda sums: sums["answers"].append(0.0),
    lambda sums: sums["moments"][0].__setitem__(0, -1.0),
    lambda sums: sums.__setitem__("variance", -1.0),
    lambda sums: sums.__setitem__("weight", -1.0),
    lambda sums: sums.__setitem__("gain", 0.0),
    lambda sums: sums.__setitem__("gain", 1e9),
    lambda sums: sums.__setitem__("samples", 0),
    lambda sums: sums.__setitem__("answers", [0.0] * 6),
    lambda sums: sums.__setitem__("moments", [[1e308] * 6] * 6),
    lambda sums: sums.__setitem__("rows_squared", 1e308),
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_sums_that_no_steps_make_are_left_aside_or_at_least_do_no_harm(spoil: Spoil) -> None:
    record = json.loads(dump(kept(learnt(30))))
    spoil(record["executors"]["main"]["sums"])
    executor = load(json.dumps(record).encode(), now=NOW).executors["main"]
    why, predicted = "", 1.0
    try:
        predicted = known(model_of(executor, **SAME)).predict(1, 1)
    except Unusable as error:
        why = str(error)
    assert 0 < predicted < float("inf")
    assert why == "" or "make no sense" in why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "it is broken: Input data was truncated"),
        (b"\xff\xfe", "it is broken"),
        (b"[]", "it is broken: Expected `object`, got `array`"),
        (b'{"version": 1}', "it is broken: Object missing required field `saved_at`"),
        (b'{"version": "1"}', "it is broken: Expected `int`, got `str`"),
        (b'{"name": "somebody else\'s"}', "it is broken: Object missing required field `version`"),
        (b"[" * 100_000, "it is broken"),
        (b" " * (MOST_BYTES + 1), f"it has {MOST_BYTES + 1} bytes"),
    ],
)
def test_what_is_no_state_is_left_aside_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        load(data, now=NOW)


def _tried(data: bytes) -> None:
    why = "it is right"
    try:
        state = load(data, now=NOW)
        for executor in state.executors.values():
            model_of(executor, **SAME)
    except Unusable as error:
        why = str(error)
    assert why


@given(st.binary(max_size=300))
def test_no_bytes_are_a_failure(data: bytes) -> None:
    _tried(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.data())
def test_no_change_to_a_state_is_a_failure(data: st.DataObject) -> None:
    """Anything in the place of any value, or any byte in the place of another."""
    record = json.loads(dump(kept(learnt(30))))
    place: Any = record
    while True:
        keys = list(range(len(place))) if isinstance(place, list) else list(place)
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans())):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    text = json.dumps(record).encode()
    _tried(text)
    at = data.draw(st.integers(0, len(text) - 1))
    _tried(text[:at] + data.draw(st.binary(max_size=2)) + text[at + 1 :])


def test_a_changed_sum_changes_what_is_predicted() -> None:
    """So that the equality above says something."""
    state = kept(learnt(500))
    sums = state.executors["main"].sums
    other = StepModel.from_sums(
        type(sums)(**{f: getattr(sums, f) for f in sums.__struct_fields__} | {"answers": [9.0] * 6})
    )
    assert known(other) != replace(known(learnt(500)))
