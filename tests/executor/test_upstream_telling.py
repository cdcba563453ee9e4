"""What is reported of an engine comes in the order in which it happened."""

from __future__ import annotations

import asyncio
import time

import msgspec
import uvloop

from executor.contract import BOUNDLESS, Capacity, Finished, Key, Report, Said
from executor.upstream_scrape import Scraper
from executor.upstream_talk import Lines, Talk
from executor.upstream_telling import Telling
from tests.executor.upstream_rig import Heard, submit

CAPACITY = Capacity(
    model="m",
    device="d",
    max_seqs=4,
    max_step_tokens=512,
    kv_tokens=1000,
    max_context_tokens=BOUNDLESS,
)
WORD = Said({"text": msgspec.Raw(b'"hi"')})


async def nothing() -> str:
    return ""


class Told:
    """A telling of one request, and who hears it."""

    def __init__(self) -> None:
        self.heard = Heard()
        self.errors: list[Exception] = []
        scraper = Scraper(nothing, interval_s=1.0, clock=time.monotonic)
        self.talks: dict[Key, Talk] = {}
        self.telling = Telling(
            "up",
            1,
            self.heard,
            scraper=scraper,
            capacity=CAPACITY,
            clock=time.monotonic,
            on_error=self.errors.append,
            talks=self.talks,
        )
        self.talk = Talk(submit("a"), self.telling, Lines(force_close=True))
        self.talks[self.talk.key] = self.talk
        self.telling.begin()

    def reports(self) -> list[Report]:
        return self.heard.reports


async def end_while_a_timer_is_due() -> None:
    it = Told()
    await asyncio.sleep(0.002)
    it.telling.on_said(it.talk, WORD, 1)
    while not it.reports():  # noqa: ASYNC110 - in the very turn after it
        await asyncio.sleep(0)
    # The loop is busy until the step is over, so that its timer is due at once.
    time.sleep(0.02)  # noqa: ASYNC251 - on purpose
    it.telling.on_said(it.talk, WORD, 1)
    it.telling.on_finished(it.talk, "stop")
    await it.heard.until(lambda: bool(it.heard.finished))
    assert it.heard.tokens("a") == 2
    ended = next(n for n, report in enumerate(it.reports()) if report.finished)
    assert [bool(report.tokens) for report in it.reports()[ended + 1 :]].count(True) == 0
    assert it.heard.finished == [Finished("a", 1, "stop")]


def test_an_end_is_never_told_before_the_tokens_that_came_with_it() -> None:
    # The loop of the daemon has timers that are due go before what is to be done soon.
    uvloop.run(end_while_a_timer_is_due())


async def test_what_comes_in_one_turn_is_one_report() -> None:
    it = Told()
    for _ in range(3):
        it.telling.on_said(it.talk, WORD, 1)
    it.telling.released(Key("b", 1))
    await it.heard.until(lambda: bool(it.reports()))
    report = it.reports()[0]
    (tokens,) = report.tokens
    assert (tokens.ids, tokens.said, report.released) == ([0, 0, 0], [WORD] * 3, [Key("b", 1)])


async def test_after_its_close_nothing_is_told() -> None:
    it = Told()
    it.telling.on_said(it.talk, WORD, 1)
    it.telling.close()
    it.telling.released(Key("b", 1))
    for _ in range(5):
        await asyncio.sleep(0.002)
    assert (it.reports(), it.errors) == ([], [])


async def test_what_was_not_told_of_one_that_is_let_go_is_forgotten() -> None:
    it = Told()
    it.telling.on_said(it.talk, WORD, 1)
    it.telling.forget(it.talk)
    it.telling.released(it.talk.key)
    await it.heard.until(lambda: bool(it.heard.released))
    assert it.heard.tokens("a") == 0
