"""A simulated executor keeps its promises step by step, in no time at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.contract import (
    Fault,
    Finished,
    Key,
    Report,
    Returned,
    Sampling,
    SimulatedSettings,
    StepSample,
    Submit,
    Tokens,
)
from executor.simulated_text import END_OF_TEXT, byte_at
from executor.simulation import Simulation

CHUNKED: dict[str, Any] = {}
PREFILL_FIRST: dict[str, Any] = {"splits_prefill": False}
TO_COMPLETION: dict[str, Any] = {"runs_to_completion": True}
KINDS = pytest.mark.parametrize("kind", [CHUNKED, PREFILL_FIRST, TO_COMPLETION])


def simulation(kind: dict[str, Any], **settings: Any) -> Simulation:
    return Simulation(SimulatedSettings(**kind, **settings))


def ask(
    name: str, prompt: int, output: int, *, prior: Sequence[int] = (), **sampling: Any
) -> Submit:
    """A prompt of so many tokens; `prior` was generated before it was given back."""
    tokens = [ord("x")] * prompt + list(prior)
    return Submit(name, 1, tokens, prompt, output - len(prior), Sampling(**sampling))


def rows(report: Report) -> str:
    """Who got a token in this step."""
    return "".join(tokens.request_id for tokens in report.tokens)


def shape(report: Report) -> tuple[int, int, int, int]:
    """Rows, rows that decoded, context tokens, prefill tokens of the step."""
    assert report.sample is not None
    sample = report.sample
    return sample.sequences, sample.decodes, sample.context_tokens, sample.prefill_tokens


def run(model: Simulation) -> list[Report]:
    """All steps until nothing is left to do."""
    reports = []
    while model.has_work():
        reports.append(model.next_step()[1])
        assert len(reports) < 10_000
    return reports


def text_of(reports: list[Report], name: str) -> list[int]:
    return [
        token
        for report in reports
        for tokens in report.tokens
        if tokens.request_id == name
        for token in tokens.ids
    ]


# Time


def test_a_step_takes_what_the_coefficients_say() -> None:
    model = simulation(CHUNKED, a_s=1.0, b_s=0.5, c_s=0.25, d_s=2.0, e_s=4.0)
    model.begin([ask("a", 3, 3)])
    durations = [model.next_step()[0] for _ in range(3)]
    assert durations == [
        1.0 + 0.25 + 2.0 * 3 + 4.0 * 9,  # the prompt, and the first token
        1.0 + 0.25 + 0.5 * 3,
        1.0 + 0.25 + 0.5 * 4,
    ]
    assert not model.has_work()


def test_rows_beyond_the_knee_cost_the_second_slope() -> None:
    model = simulation(CHUNKED, c_s=1.0, c_above_s=10.0, knee=2)
    model.begin([ask(name, 1, 1) for name in "abcde"])
    duration_s, report = model.next_step()
    assert duration_s == 2 * 1.0 + 3 * 10.0
    assert report.sample == StepSample(32.0, 5, 0, 0, 5, 5)


def test_jitter_has_mean_one_the_asked_width_and_the_seed_decides_it() -> None:
    def durations(seed: int) -> list[float]:
        model = simulation(CHUNKED, a_s=1.0, jitter=0.2, seed=seed)
        model.begin([ask("a", 1, 4000)])
        return [model.next_step()[0] for _ in range(4000)]

    first = durations(1)
    assert first == durations(1)
    assert first != durations(2)
    mean = sum(first) / len(first)
    deviation = (sum((duration - mean) ** 2 for duration in first) / len(first)) ** 0.5
    assert mean == pytest.approx(1.0, abs=0.02)
    assert deviation == pytest.approx(0.2, abs=0.02)
    assert min(first) > 0


# Who has a row


def test_chunked_decodes_first_and_shares_the_rest_of_the_budget_among_prompts() -> None:
    model = simulation(CHUNKED)
    model.limit(7, 8)
    model.begin([ask("a", 4, 9), ask("b", 2, 9)])
    assert shape(model.next_step()[1]) == (2, 0, 0, 6)
    model.begin([ask("c", 10, 9), ask("d", 6, 9), ask("e", 4, 9)])
    seen = [model.next_step()[1] for _ in range(4)]
    assert [shape(report) for report in seen] == [
        (4, 2, 6, 6),  # a and b, 3 tokens each of c and of e, which is shorter
        (4, 2, 8 + 6, 6),  # e is done, 5 tokens of c
        (5, 3, 10 + 8 + 4, 2 + 3),  # c is done, 3 tokens of d
        (5, 4, 12 + 10 + 5 + 3, 3),
    ]
    assert [rows(report) for report in seen] == ["ab", "abe", "abec", "abced"]
    assert [report.epoch for report in seen] == [7, 7, 7, 7]


def test_prefill_first_either_prefills_whole_prompts_or_decodes() -> None:
    model = simulation(PREFILL_FIRST)
    model.limit(1, 8)
    model.begin([ask("a", 4, 9)])
    assert shape(model.next_step()[1]) == (1, 0, 0, 4)
    model.begin([ask("b", 5, 9), ask("c", 3, 9), ask("d", 1, 9)])
    seen = [model.next_step()[1] for _ in range(3)]
    assert [shape(report) for report in seen] == [(2, 0, 0, 8), (1, 0, 0, 1), (4, 4, 13, 0)]
    assert [rows(report) for report in seen] == ["bc", "d", "abcd"]


def test_a_whole_prompt_over_the_budget_goes_alone() -> None:
    model = simulation(PREFILL_FIRST)
    model.limit(1, 8)
    model.begin([ask("a", 2, 9), ask("b", 20, 9), ask("c", 2, 9)])
    assert [rows(model.next_step()[1]) for _ in range(4)] == ["a", "b", "c", "abc"]


def test_a_batch_that_runs_to_completion_is_joined_by_nobody() -> None:
    model = simulation(TO_COMPLETION)
    model.begin([ask("a", 2, 2), ask("b", 2, 4)])
    seen = [model.next_step()[1]]
    model.begin([ask("c", 2, 1)])
    seen += run(model)
    assert [rows(report) for report in seen] == ["ab", "ab", "b", "b", "c"]


def test_in_a_batch_that_runs_to_completion_a_row_costs_until_the_last_is_done() -> None:
    model = simulation(TO_COMPLETION, a_s=1.0, c_s=0.5)
    model.begin([ask("a", 2, 1), ask("b", 2, 3)])
    steps = [model.next_step() for _ in range(3)]
    assert [duration_s for duration_s, _ in steps] == [2.0, 2.0, 2.0]
    assert [shape(report)[:2] for _, report in steps] == [(2, 0), (2, 1), (2, 1)]
    assert [report.finished for _, report in steps] == [
        [Finished("a", 1, "length")],
        [],
        [Finished("b", 1, "length")],
    ]
    assert [report.kv_tokens for _, report in steps] == [2, 3, 0]


def test_a_lowered_budget_is_kept_from_the_next_step_on() -> None:
    model = simulation(CHUNKED)
    model.begin([ask("a", 100, 2)])
    model.limit(1, 60)
    assert shape(model.next_step()[1])[3] == 60
    model.limit(2, 30)
    assert [shape(model.next_step()[1])[3] for _ in range(2)] == [30, 10]


def test_the_budget_never_exceeds_the_capacity() -> None:
    model = simulation(CHUNKED, max_step_tokens=16)
    model.limit(1, 1_000_000)
    model.begin([ask("a", 20, 2)])
    assert shape(model.next_step()[1])[3] == 16


# Memory


def test_kv_counts_the_prompt_and_each_token_that_was_read() -> None:
    model = simulation(CHUNKED)
    model.begin([ask("a", 5, 3)])
    assert [report.kv_tokens for report in run(model)] == [5, 6, 0]


def test_sequences_stall_when_kv_runs_out_and_go_on_when_it_comes_back() -> None:
    model = simulation(CHUNKED, kv_tokens=12)
    model.begin([ask("a", 4, 3), ask("b", 5, 4)])
    seen = run(model)
    assert [rows(report) for report in seen] == ["ab", "ab", "a", "b", "b"]
    assert [report.stalled for report in seen] == [[], [], [Key("b", 1)], [], []]
    assert [report.kv_tokens for report in seen] == [9, 11, 6, 7, 0]


def test_when_all_are_stalled_the_youngest_is_given_back() -> None:
    model = simulation(CHUNKED, kv_tokens=8)
    model.begin([ask("a", 4, 5), ask("b", 4, 5)])
    seen = run(model)
    gone = Returned("b", 1, "out_of_memory", "no KV left for any sequence")
    assert [report.returned for report in seen] == [[], [gone], [], [], []]
    assert [rows(report) for report in seen] == ["ab", "a", "a", "a", "a"]


def test_a_whole_prompt_waits_stalled_until_it_fits() -> None:
    model = simulation(PREFILL_FIRST, kv_tokens=10)
    model.begin([ask("a", 6, 3), ask("b", 6, 1), ask("c", 1, 1)])
    seen = run(model)
    assert [rows(report) for report in seen] == ["a", "a", "a", "bc"]
    waits = [Key("b", 1), Key("c", 1)]
    assert [report.stalled for report in seen] == [waits, waits, waits, []]


@pytest.mark.parametrize(
    ("kind", "submit", "why"),
    [
        (CHUNKED, ask("a", 60, 41), "101 tokens exceed max_context_tokens = 100"),
        (CHUNKED, ask("a", 60, 32), "91 tokens of KV exceed kv_tokens = 90"),
        (
            PREFILL_FIRST,
            ask("a", 51, 1),
            "a prompt of 51 tokens exceeds max_step_tokens = 50, and prompts are not split here",
        ),
        (CHUNKED, ask("a", 0, 1), "a prompt and an output of at least one token each are needed"),
    ],
)
def test_what_can_never_fit_is_given_back_for_good_with_the_numbers(
    kind: dict[str, Any], submit: Submit, why: str
) -> None:
    model = simulation(kind, max_context_tokens=100, kv_tokens=90, max_step_tokens=50)
    model.begin([submit])
    duration_s, report = model.next_step()
    assert (duration_s, report.steps, report.sample) == (0.0, 0, None)
    assert report.returned == [Returned("a", 1, "does_not_fit", why, fatal=True)]
    assert not model.has_work()


def test_what_fits_to_the_last_token_runs() -> None:
    model = simulation(CHUNKED, max_context_tokens=100, kv_tokens=90, max_step_tokens=50)
    model.begin([ask("a", 60, 31)])
    assert run(model)[-1].finished == [Finished("a", 1, "length")]


def test_a_sequence_beyond_the_seats_is_given_back() -> None:
    model = simulation(CHUNKED, max_seqs=1)
    model.begin([ask("a", 1, 1), ask("b", 1, 1)])
    report = model.next_step()[1]
    assert report.returned == [Returned("b", 1, "error", "all 1 seats are taken")]
    assert rows(report) == "a"


def test_an_attempt_that_runs_cannot_be_submitted_again() -> None:
    model = simulation(CHUNKED)
    model.begin([ask("a", 1, 1)])
    with pytest.raises(ValueError, match="a, attempt 1, runs already"):
        model.begin([ask("a", 1, 1)])


# Text


@KINDS
@given(cut=st.integers(min_value=1, max_value=39), seed=st.integers(0, 2**63))
def test_what_was_given_back_goes_on_as_if_nothing_had_happened(
    kind: dict[str, Any], cut: int, seed: int
) -> None:
    settings = {"output_tokens": 40, "seed": 3}
    undisturbed = simulation(kind, **settings)
    undisturbed.begin([ask("a", 5, 60, seed=seed)])
    whole = text_of(run(undisturbed), "a")
    assert (len(whole), whole[-1]) == (40, END_OF_TEXT)

    resumed = simulation(kind, **settings)
    resumed.begin([ask("a", 5, 60, prior=whole[:cut], seed=seed)])
    reports = run(resumed)
    assert reports[0].tokens == [Tokens("a", 1, cut, [whole[cut]])]
    assert text_of(reports, "a") == whole[cut:]
    assert reports[-1].finished == [Finished("a", 1, "stop")]


def test_text_is_printable_and_has_characters_of_one_to_four_bytes() -> None:
    text = bytes(byte_at(0, 1, position) for position in range(4096)).decode()
    assert text.isprintable()
    assert {len(character.encode()) for character in text} == {1, 2, 3, 4}


def test_text_depends_on_either_seed_and_on_nothing_else() -> None:
    def text(seed: int, request_seed: int) -> list[int]:
        return [byte_at(seed, request_seed, position) for position in range(64)]

    assert text(1, 2) == text(1, 2)
    assert len({bytes(text(*seeds)) for seeds in [(1, 2), (2, 1), (1, 3), (-1, 2)]}) == 4


@pytest.mark.parametrize(
    ("settings", "sampling", "length", "reason"),
    [
        ({"output_tokens": 4}, {}, 4, "stop"),
        ({"output_tokens": 4}, {"min_tokens": 6}, 7, "stop"),
        ({"output_tokens": 4}, {"ignore_eos": True}, 10, "length"),
        ({"output_tokens": 11}, {}, 10, "length"),
        ({}, {}, 10, "length"),
    ],
)
def test_a_completion_is_as_long_as_the_settings_and_the_request_say(
    settings: dict[str, Any], sampling: dict[str, Any], length: int, reason: str
) -> None:
    model = simulation(CHUNKED, **settings)
    model.begin([ask("a", 1, 10, **sampling)])
    reports = run(model)
    text = text_of(reports, "a")
    assert (len(text), reports[-1].finished[0].reason) == (length, reason)
    assert (text[-1] == END_OF_TEXT) == (reason == "stop")


def test_a_stop_token_ends_the_text_once_the_least_length_is_reached() -> None:
    text = [byte_at(0, 9, position) for position in range(64)]
    stop = text[3]
    later = text.index(stop, 4)
    for min_tokens, last in ((0, text.index(stop)), (4, later)):
        model = simulation(CHUNKED)
        model.begin([ask("a", 1, 64, seed=9, stop_token_ids=(stop,), min_tokens=min_tokens)])
        reports = run(model)
        assert text_of(reports, "a") == text[: last + 1]
        assert reports[-1].finished == [Finished("a", 1, "stop")]


# Letting go


def test_a_release_frees_the_seat_and_is_acknowledged_with_the_next_step() -> None:
    model = simulation(CHUNKED, max_seqs=2)
    model.begin([ask("a", 3, 9), ask("b", 3, 9)])
    model.next_step()
    model.release([Key("a", 1)])
    model.begin([ask("c", 3, 9)])
    report = model.next_step()[1]
    assert (report.released, rows(report), report.kv_tokens) == ([Key("a", 1)], "bc", 7)


@KINDS
def test_an_idle_executor_acknowledges_a_release_without_a_sample(kind: dict[str, Any]) -> None:
    model = simulation(kind, a_s=1.0, utilization="model")
    model.begin([ask("a", 3, 9)])
    model.release([Key("a", 1), Key("gone", 4)])
    assert model.next_step() == (
        0.0,
        Report(
            epoch=0, steps=0, kv_tokens=0, released=[Key("a", 1), Key("gone", 4)], utilization=0.0
        ),
    )
    assert not model.has_work()


# Faults


@KINDS
@pytest.mark.parametrize(
    ("fault", "reason", "detail"),
    [
        ("fail", "error", "told to fail"),
        ("oom", "out_of_memory", "told to run out of memory"),
    ],
)
def test_a_failed_step_gives_everything_back_and_the_next_one_works(
    kind: dict[str, Any], fault: Any, reason: Any, detail: str
) -> None:
    model = simulation(kind, a_s=1.0)
    model.begin([ask("a", 3, 9)])
    model.next_step()
    model.begin([ask("b", 3, 9)])
    model.inject(Fault(fault))
    duration_s, report = model.next_step()
    assert (duration_s, report.steps, report.sample, report.kv_tokens) == (0.0, 0, None, 0)
    assert report.returned == [Returned(name, 1, reason, detail) for name in "ab"]
    assert not model.has_work()
    model.begin([ask("a", 3, 9)])
    assert rows(model.next_step()[1]) == "a"


def test_a_stall_delays_the_next_step_and_is_no_part_of_it() -> None:
    model = simulation(CHUNKED, a_s=1.0)
    model.inject(Fault("stall", 5.0))
    model.begin([ask("a", 3, 9)])
    duration_s, report = model.next_step()
    assert report.sample is not None
    assert (duration_s, report.sample.duration_s) == (6.0, 1.0)
    assert model.next_step()[0] == 1.0


@pytest.mark.parametrize(("claimed", "seen"), [(0.97, 0.97), ("model", 0.25), (None, None)])
def test_utilization_is_what_the_settings_claim(claimed: Any, seen: float | None) -> None:
    model = simulation(CHUNKED, max_seqs=8, utilization=claimed)
    model.begin([ask("a", 3, 9), ask("b", 3, 9)])
    assert model.next_step()[1].utilization == seen


# Whatever happens

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 30), st.integers(1, 20)),
        st.tuples(st.just("release"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("limit"), st.integers(1, 40), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("oom"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@KINDS
@given(actions=ACTIONS)
def test_every_sequence_ends_once_and_no_step_exceeds_its_bounds(
    kind: dict[str, Any], actions: list[tuple[str, int, int]]
) -> None:
    model = simulation(kind, max_seqs=6, max_step_tokens=32, kv_tokens=60, output_tokens=8)
    begun: list[str] = []
    ended: list[str] = []
    texts: dict[str, list[int]] = {}
    budget = 32

    def step() -> None:
        report = model.next_step()[1]
        for tokens in report.tokens:
            assert tokens.index == len(texts.setdefault(tokens.request_id, []))
            texts[tokens.request_id] += tokens.ids
        ended.extend(finished.request_id for finished in report.finished)
        ended.extend(returned.request_id for returned in report.returned)
        ended.extend(key.request_id for key in report.released)
        assert report.kv_tokens is not None
        assert 0 <= report.kv_tokens <= 60
        if report.sample is not None:
            computed = report.sample.prefill_tokens + report.sample.decodes
            alone = kind is not CHUNKED and len(report.tokens) == 1
            assert computed <= budget or alone
            assert 0 < report.sample.sequences <= 6

    for action, first, second in actions:
        if action == "begin":
            name = str(len(begun))
            begun.append(name)
            model.begin([ask(name, first, second)])
        elif action == "release" and str(first) in begun and str(first) not in ended:
            model.release([Key(str(first), 1)])
            step()
        elif action == "limit":
            budget = min(first, 32)
            model.limit(1, first)
        elif action == "oom":
            model.inject(Fault("oom"))
        elif action == "step":
            for _ in range(first):
                step()
    for _ in range(2000):
        if not model.has_work():
            break
        step()
    assert not model.has_work()
    assert sorted(ended) == sorted(begun)
