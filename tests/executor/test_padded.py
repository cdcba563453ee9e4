"""Batches that run to completion: nobody joins, who is done leaves, steps say what they held."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from executor.contract import Capacity, Fault, Feature, Finished, Key, Sampling
from executor.padded import PaddedEngine
from tests.executor.alone import write_alone
from tests.executor.engine_driver import GREEDY, Driver, load_padded, prompt

PROMPTS = [prompt(i, length) for i, length in enumerate((5, 40, 17, 90, 33, 8))]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> PaddedEngine:
    """One for the tests that leave it as they found it."""
    return load_padded(tiny_folder)[0]


@pytest.fixture(scope="module")
def together(tiny_folder: Path) -> PaddedEngine:
    """The old way."""
    return load_padded(tiny_folder, leave="together")[0]


@pytest.fixture
def driver(engine: PaddedEngine) -> Driver:
    assert not engine.has_work()
    return Driver(engine)


@contextmanager
def forwards(engine: PaddedEngine) -> Iterator[list[tuple[int, int, int]]]:
    """Rows and tokens that the model is called with, and the columns of their mask."""
    seen: list[tuple[int, int, int]] = []
    model: Any = engine._batch._model

    def note(module: Any, args: Any, inputs: dict[str, Any]) -> None:
        rows, tokens = inputs["input_ids"].shape
        seen.append((rows, tokens, inputs["attention_mask"].shape[1]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    yield seen
    handle.remove()


def test_who_is_done_leaves_the_computation_and_takes_its_padding_along(driver: Driver) -> None:
    for name, length, new in (("long", 20, 2), ("short", 4, 5), ("middle", 9, 3)):
        driver.submit(name, prompt(1, length), new)
    with forwards(driver.engine) as seen:
        driver.run()
    # 20 columns for three; without the longest the 9 + 2 of the next one; then the shortest alone.
    assert seen == [(3, 20, 20), (3, 1, 21), (2, 1, 11), (1, 1, 7), (1, 1, 8)]
    samples = [report.sample for report in driver.reports]
    assert [
        (s.sequences, s.decodes, s.context_tokens, s.prefill_tokens, s.prefill_squares)
        for s in samples
        if s is not None and s.duration_s > 0
    ] == [
        (3, 0, 0, 60, 1200),
        (3, 3, 60, 0, 0),
        (2, 2, 20, 0, 0),
        (1, 1, 6, 0, 0),
        (1, 1, 7, 0, 0),
    ]
    assert [report.kv_tokens for report in driver.reports] == [60, 63, 22, 7, 0]
    assert [report.steps for report in driver.reports] == [1] * 5


def test_the_old_way_computes_everybody_until_the_longest_is_done(
    together: PaddedEngine, reference: Any
) -> None:
    driver = Driver(together)
    for name, length, new in (("long", 20, 2), ("short", 4, 4)):
        driver.submit(name, prompt(1, length), new)
    with forwards(together) as seen:
        driver.run()
    assert seen == [(2, 20, 20), (2, 1, 21), (2, 1, 22), (2, 1, 23)]
    # Tokens come as they are chosen; the end, and with it the seat, with the batch's.
    assert [len(report.tokens) for report in driver.reports] == [2, 2, 1, 1]
    ends = [[f.request_id for f in report.finished] for report in driver.reports]
    assert ends == [[], [], [], ["long", "short"]]
    for name, length, new in (("long", 20, 2), ("short", 4, 4)):
        alone = write_alone(reference, prompt(1, length), new, sampling=GREEDY)
        alone.assert_same(driver.text[name], driver.ended[name].reason)


def test_the_old_way_ends_too_when_those_who_went_on_are_released(together: PaddedEngine) -> None:
    driver = Driver(together)
    driver.submit("done", PROMPTS[0], 1)
    driver.submit("gone", PROMPTS[0], 9)
    driver.step()
    driver.release("gone")
    assert driver.engine.has_work()
    report = driver.step()
    assert (report.finished, report.released) == ([Finished("done", 1, "length")], [Key("gone", 1)])
    assert not driver.engine.has_work()


def test_what_comes_during_a_batch_waits_for_the_next_one(driver: Driver, reference: Any) -> None:
    driver.submit("a", PROMPTS[1], 6)
    driver.step()
    driver.submit("b", PROMPTS[0], 3)
    driver.submit("c", PROMPTS[2], 2)
    steps = [{part.request_id for part in driver.step().tokens} for _ in range(8)]
    assert steps == [{"a"}] * 5 + [{"b", "c"}] * 2 + [{"b"}]
    for name, tokens, new in (("a", PROMPTS[1], 6), ("b", PROMPTS[0], 3), ("c", PROMPTS[2], 2)):
        alone = write_alone(reference, tokens, new, sampling=GREEDY)
        alone.assert_same(driver.text[name], "length")


def test_a_batch_is_prefilled_in_steps_within_the_token_limit(
    driver: Driver, reference: Any
) -> None:
    """Like lengths together, and the one beyond the limit alone: no wait would make it fit."""
    driver.max_tokens = 64
    for i, tokens in enumerate(PROMPTS):
        driver.submit(str(i), tokens, 3)
    with forwards(driver.engine) as seen:
        driver.run()
    # 5, 8 and 17, padded, are 51 tokens; 33, 40 and 90 do not go with another.
    assert seen[:5] == [(3, 17, 17), (1, 33, 33), (1, 40, 40), (1, 90, 90), (6, 1, 91)]
    first = [[part.request_id for part in report.tokens] for report in driver.reports[:4]]
    assert first == [["0", "5", "2"], ["4"], ["1"], ["3"]]
    for i, tokens in enumerate(PROMPTS):
        write_alone(reference, tokens, 3, sampling=GREEDY).assert_same(
            driver.text[str(i)], "length"
        )


def test_a_higher_priority_is_prefilled_first(driver: Driver) -> None:
    driver.max_tokens = 40
    driver.submit("low", PROMPTS[0], 1)
    driver.submit("high", PROMPTS[1], 1, priority=1)
    driver.run()
    assert [[p.request_id for p in report.tokens] for report in driver.reports] == [
        ["high"],
        ["low"],
    ]


def test_a_row_that_is_released_leaves_at_the_next_step(driver: Driver, reference: Any) -> None:
    for name in "abc":
        driver.submit(name, prompt(ord(name), 12), 9)
    for _ in range(3):
        driver.step()
    driver.release("b")
    driver.work(release=[Key("nobody", 7)])
    with forwards(driver.engine) as seen:
        report = driver.step()
    assert [rows for rows, _, _ in seen] == [2]
    assert report.released == [Key("b", 1), Key("nobody", 7)]
    driver.run()
    assert len(driver.text["b"]) == 3
    for name in "ac":
        alone = write_alone(reference, prompt(ord(name), 12), 9, sampling=GREEDY)
        alone.assert_same(driver.text[name], "length")


def test_who_is_released_before_its_batch_begins_never_runs(driver: Driver) -> None:
    driver.submit("a", PROMPTS[0], 2)
    driver.submit("b", PROMPTS[0], 2)
    driver.release("a")
    assert [p.request_id for p in driver.step().tokens] == ["b"]
    driver.run()
    assert driver.text["a"] == []
    driver.submit("c", PROMPTS[0], 2)
    driver.release("c")
    report = driver.step()
    assert (report.steps, report.sample, report.kv_tokens) == (0, None, 0)
    assert report.released == [Key("c", 1)]
    assert not driver.engine.has_work()


def test_new_limits_are_acknowledged_even_when_idle(driver: Driver) -> None:
    driver.epoch = 7
    driver.work()
    assert driver.engine.has_work()
    assert (driver.step().epoch, driver.reports[-1].steps) == (7, 0)
    assert not driver.engine.has_work()


def test_a_sampled_text_is_its_own_whoever_is_beside_it(driver: Driver) -> None:
    rules = Sampling(temperature=1.0, top_p=0.95, seed=42, ignore_eos=True)
    driver.submit("alone", PROMPTS[2], 12, sampling=rules)
    alone = driver.run()["alone"]
    driver.submit("long", PROMPTS[3], 5)
    driver.submit("hot", PROMPTS[4], 9, sampling=Sampling(temperature=2.0, seed=1))
    driver.submit("beside", PROMPTS[2], 12, sampling=rules)
    driver.submit("other seed", PROMPTS[2], 12, sampling=Sampling(temperature=1.0, seed=43))
    driver.run()
    assert driver.text["beside"] == alone
    assert driver.text["other seed"] != alone


@pytest.mark.parametrize(
    "rules", [GREEDY, Sampling(temperature=1.0, top_p=0.95, seed=42, ignore_eos=True)]
)
def test_a_text_that_is_submitted_again_with_its_tokens_goes_on(
    driver: Driver, rules: Sampling
) -> None:
    driver.submit("whole", PROMPTS[2], 20, sampling=rules)
    whole = driver.run()["whole"]
    driver.submit("broken", PROMPTS[2], 20, sampling=rules)
    driver.submit("other", PROMPTS[3], 9)
    for _ in range(7):
        driver.step()
    driver.release("broken")
    driver.resubmit("broken")
    assert driver.run()["broken"] == whole
    assert len(driver.text["other"]) == 9


@pytest.mark.parametrize(
    ("tokens", "new", "detail"),
    [
        (prompt(1, 1000), 25, "1000 tokens and 25 to come exceed max_context_tokens = 1024"),
        (prompt(1, 201), 5, "a prompt of 201 tokens exceeds max_step_tokens = 200, and prompts"),
        ([], 5, "0 tokens and 5 to come: neither may be 0"),
        ([5, 384], 5, "a token id is outside the vocabulary of 384"),
    ],
)
def test_what_can_never_run_is_given_back_and_its_neighbours_run(
    short_steps: Driver, tokens: list[int], new: int, detail: str
) -> None:
    driver = short_steps
    driver.submit("good", PROMPTS[0], 3)
    driver.submit("bad", tokens, new)
    driver.run()
    (returned,) = driver.returned
    assert (returned.request_id, returned.reason, returned.fatal) == ("bad", "does_not_fit", True)
    assert returned.detail.startswith(detail)
    assert len(driver.text["good"]) == 3


def test_what_was_generated_already_does_not_count_as_a_prompt_that_is_too_long(
    short_steps: Driver,
) -> None:
    driver = short_steps
    driver.submit("a", prompt(1, 195), 10)
    for _ in range(8):
        driver.step()
    driver.release("a")
    driver.resubmit("a")
    driver.run()
    assert (len(driver.text["a"]), driver.returned) == (10, [])


@pytest.fixture(scope="module")
def short_engine(tiny_folder: Path) -> tuple[PaddedEngine, Capacity]:
    engine, ready = load_padded(
        tiny_folder, max_step_tokens=200, max_seqs=4, warmup_sizes=(1, 4, 8), kv_tokens=1600
    )
    samples = [(s.sequences, s.decodes, s.context_tokens, s.prefill_tokens) for s in ready.warmup]
    # Four sequences of 512 tokens would not fit, eight are not allowed, nor a prompt of 256.
    assert samples == [(1, 1, 64, 0), (1, 1, 512, 0), (4, 4, 256, 0), (1, 0, 0, 64)]
    return engine, ready.capacity


@pytest.fixture
def short_steps(short_engine: tuple[PaddedEngine, Capacity]) -> Driver:
    return Driver(short_engine[0])


def test_ready_tells_what_such_an_executor_is(
    short_engine: tuple[PaddedEngine, Capacity],
) -> None:
    engine, capacity = short_engine
    assert (capacity.model, capacity.device, capacity.max_seqs) == ("tiny", "cpu", 4)
    assert (capacity.kv_tokens, capacity.max_context_tokens) == (1600, 1024)
    assert (capacity.runs_to_completion, capacity.splits_prefill) == (True, False)
    assert (capacity.can_preempt, capacity.can_resume, capacity.reports_kv) == (False, True, True)
    assert capacity.features == set(Feature)
    assert capacity.eos_token_ids == (2,)
    with pytest.raises(ValueError, match="only a simulated executor can be told to stall"):
        engine.inject(Fault("stall"))


def test_memory_for_kv_is_bounded_on_a_cpu(tiny_folder: Path) -> None:
    _, ready = load_padded(tiny_folder, max_seqs=3)
    assert ready.capacity.kv_tokens == 3 * 1024
