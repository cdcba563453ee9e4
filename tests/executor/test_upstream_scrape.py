"""What an engine says of itself: found under any of its names, missing or stale, and never 0."""

from __future__ import annotations

import asyncio

import pytest

from executor.upstream_dialects import Signal
from executor.upstream_scrape import Scrape, Scraper, kv_tokens, read

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:num_preemptions_total{engine="0",model_name="m"} 7.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1234.0
vllm:time_to_first_token_seconds_bucket{le="0.001",model_name="m"} 0.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 2
sglang:num_queue_reqs{model_name="m"} 5
sglang:token_usage{model_name="m"} 0.75
sglang:max_total_num_tokens{model_name="m"} 4096
"""
TGI = """\
tgi_batch_current_size 6
tgi_queue_size 2
tgi_batch_current_max_tokens 300
tgi_batch_max_total_tokens 1200
"""
LLAMACPP = (
    "llamacpp:requests_processing 1\nllamacpp:requests_deferred 0\nllamacpp:n_decode_total 9\n"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            VLLM,
            {"running": 7, "waiting": 1, "kv": 0.5, "preemptions": 7, "progress": 1234},
        ),
        # The older name counts where the newer one is missing.
        (VLLM.replace("kv_cache_usage", "gpu_cache_usage"), None),
        (SGLANG, {"running": 2, "waiting": 5, "kv": 0.75}),
        (TGI, {"running": 6, "waiting": 2, "kv": 0.25}),
        (TGI.replace("1200", "0"), {"running": 6, "waiting": 2}),
        (LLAMACPP, {"running": 1, "waiting": 0, "progress": 9}),
        ("process_cpu_seconds_total 5\n", {}),
        ("vllm:num_requests_running NaN\n", {}),
    ],
)
def test_signals_have_many_names_and_without_one_they_are_missing(
    text: str, found: dict[Signal, float] | None
) -> None:
    assert read(text) == (read(VLLM) if found is None else found)


def test_what_is_no_exposition_is_told() -> None:
    with pytest.raises(ValueError, match="could not convert"):
        read("vllm:num_requests_running{ oops\n")


def test_the_memory_is_what_the_engine_says_it_has() -> None:
    assert [kv_tokens(text) for text in (VLLM, SGLANG, TGI, "")] == [16000, 4096, None, None]


class Looking:
    """A scraper on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.text = VLLM
        self.scraper = Scraper(self.get, interval_s=1.0, clock=lambda: self.now)

    async def get(self) -> str:
        return self.text

    def take(self, text: str, *, after: float = 1.0) -> None:
        self.now += after
        self.scraper.take(text)

    def fresh(self) -> Scrape | None:
        return self.scraper.fresh(self.now)


def preempted(count: int) -> str:
    return VLLM.replace(
        'preemptions_total{engine="0",model_name="m"} 7', f"preemptions_total {count}"
    )


def test_counters_count_from_one_look_to_the_next() -> None:
    looking = Looking()
    looking.take(preempted(7))
    assert looking.fresh() == Scrape(7, 1, 0.5, None, None)
    looking.take(preempted(9))
    assert looking.fresh() == Scrape(7, 1, 0.5, 2, 0)
    # The engine was restarted, and began to count again.
    looking.take(preempted(4))
    assert looking.fresh() == Scrape(7, 1, 0.5, 4, 0)
    assert looking.scraper.take_paused() == 6
    assert looking.scraper.take_paused() == 0


def test_an_old_look_is_stale_and_what_was_counted_meanwhile_is_not_of_now() -> None:
    looking = Looking()
    assert looking.fresh() is None
    assert looking.scraper.view(looking.now, 0)["state"] == "missing"
    looking.take(preempted(7))
    looking.now += 3.0
    assert looking.fresh() is not None
    looking.now += 0.1
    assert looking.fresh() is None
    assert looking.scraper.view(looking.now, 0) == {
        "state": "stale",
        "age_s": 3.1,
        "running": None,
        "waiting": None,
        "kv": None,
        "foreign": None,
    }
    looking.take(preempted(1000))
    assert looking.fresh() == Scrape(7, 1, 0.5, None, None)
    assert looking.scraper.take_paused() == 0


def test_what_is_not_ours_is_foreign_and_never_less_than_nothing() -> None:
    looking = Looking()
    looking.take(VLLM)
    assert looking.scraper.view(looking.now, 5)["foreign"] == 3
    assert looking.scraper.view(looking.now, 50)["foreign"] == 0


async def test_a_look_that_fails_or_hangs_is_followed_by_the_next() -> None:
    turns: list[str] = []
    enough = asyncio.Event()
    clock = asyncio.get_running_loop().time

    async def get() -> str:
        turns.append("asked")
        if len(turns) == 5:
            enough.set()
        if len(turns) == 1:
            raise OSError("refused")
        if len(turns) == 2:
            return "}{"
        if len(turns) == 3:
            await asyncio.Event().wait()
        return VLLM

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    async with asyncio.timeout(10.0):
        scraper = Scraper(get, interval_s=0.01, clock=clock, sleep=sleep)
        task = asyncio.create_task(scraper.run())
        await enough.wait()
    assert scraper.fresh(clock()) == Scrape(7, 1, 0.5, 0, 0)
    task.cancel()
