"""An engine behind HTTP is an executor like any other: it is given work, it reports, it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from executor.contract import (
    Feature,
    Finished,
    Key,
    PromptLength,
    Refusal,
    Report,
    Returned,
)
from executor.process import State
from tests.executor.fake_engine import WORDS, engine
from tests.executor.upstream_rig import Heard, submit, upstream, work


async def test_it_is_ready_with_what_the_engine_says_of_itself() -> None:
    heard = Heard()
    async with engine() as there, upstream(heard, there.url) as executor:
        assert (executor.state, executor.pid, executor.restarts) == (State.READY, None, 0)
        assert executor.words == f"their-model on vllm at {there.url}"
    (ready,) = heard.ready
    assert ready.text.kind == "engine"
    capacity = ready.capacity
    assert (capacity.model, capacity.max_seqs) == ("their-model", 64)
    assert (capacity.max_context_tokens, capacity.kv_tokens) == (4096, 16000)
    assert (capacity.can_preempt, capacity.can_resume, capacity.reports_kv) == (False, False, True)
    assert (capacity.tells_prefill, capacity.features) == (False, frozenset(Feature))
    assert (executor.state, executor.words) == (State.STOPPED, "stopped")


async def test_what_is_configured_goes_before_what_the_engine_says() -> None:
    heard = Heard()
    async with (
        engine(kind="other") as there,
        upstream(
            heard, there.url, served_name="ours", max_context_tokens=99, kv_tokens=777, max_seqs=3
        ) as executor,
    ):
        assert executor.words == f"ours on openai at {there.url}"
    capacity = heard.ready[0].capacity
    assert (capacity.model, capacity.max_context_tokens) == ("ours", 99)
    assert (capacity.kv_tokens, capacity.max_seqs, capacity.reports_kv) == (777, 3, False)


async def test_while_nobody_is_there_it_waits_and_says_so_once() -> None:
    heard = Heard()
    async with engine() as there:
        await there.kill()
        async with upstream(heard, there.url, ready=False) as executor:
            await heard.until(lambda: executor.state is State.LOADING)
            assert executor.words == f"waits for {there.url}: Connection refused"
            await asyncio.sleep(0.1)
            assert [entry[0] for entry in heard.log] == ["loading"]
            await there.start()
            await heard.until(lambda: executor.ready)
    assert [entry[0] for entry in heard.log] == ["loading", "ready"]


async def test_a_model_that_the_engine_does_not_have_is_waited_for() -> None:
    heard = Heard()
    async with engine() as there, upstream(heard, there.url, ready=False, model="x") as executor:
        await heard.until(lambda: executor.state is State.LOADING)
        assert executor.words == (f"waits for {there.url}: it has no model 'x', it has their-model")


async def test_what_is_asked_goes_in_and_what_is_said_comes_out() -> None:
    heard = Heard()
    async with engine() as there, upstream(heard, there.url, priorities=(0, 5)) as executor:
        executor.send(work(submit("a", max_tokens=4, seed=9), submit("b", priority=5)))
        await heard.until(lambda: len(heard.finished) == 2)
        bodies = {ask.body.get("seed"): ask.body for ask in there.asks}
        assert (bodies[9]["priority"], bodies[None]["priority"]) == (1, -1)
        assert (bodies[9]["model"], bodies[9]["max_tokens"]) == ("their-model", 4)
        assert there.headers_of("a")["X-Request-Id"] == "a-1"
    assert (heard.text("a"), heard.text("b")) == ("".join(WORDS[:4]), "".join(WORDS))
    assert (heard.tokens("a"), heard.tokens("b")) == (4, 10)
    assert set(heard.finished) == {Finished("a", 1, "length"), Finished("b", 1, "stop")}
    told = [one for report in heard.reports for one in report.prompts]
    assert len(told) == 2
    assert set(told) == {PromptLength("a", 1, 7), PromptLength("b", 1, 7)}


def both_have(heard: Heard, tokens: int) -> bool:
    return heard.tokens("a") + heard.tokens("b") == tokens


async def test_a_step_is_told_with_its_rows_and_only_once() -> None:
    heard = Heard()
    async with engine(pace_s=None) as there, upstream(heard, there.url) as executor:
        executor.send(work(submit("a", max_tokens=3), submit("b", max_tokens=3), epoch=7))
        await there.until(lambda: len(there.running) == 2)
        for told in (0, 2, 4):
            await asyncio.sleep(0.03)
            there.step()
            await heard.until(partial(both_have, heard, told + 2))
        await heard.until(lambda: sum(r.steps for r in heard.reports) == 3)
    samples = [report.sample for report in heard.reports if report.sample is not None]
    assert [(s.sequences, s.decodes, s.prefill_tokens) for s in samples] == [
        (2, 0, 14),
        (2, 2, 0),
        (2, 2, 0),
    ]
    assert [s.context_tokens for s in samples] == [14, 16, 18]
    assert all(0.02 < s.duration_s < 1.0 for s in samples)
    assert {report.epoch for report in heard.reports} == {7}


async def test_letting_go_frees_the_engines_seat_before_it_is_told() -> None:
    # BEHAVIOURS 38.
    heard = Heard()
    async with engine(pace_s=None) as there, upstream(heard, there.url) as executor:
        gone: list[bool] = []

        def look(report: Report) -> None:
            if report.released:
                gone.append(there.asks[0].gone)

        heard.during_report = look
        executor.send(work(submit("a")))
        await there.until(lambda: len(there.running) == 1)
        there.step(2)
        await heard.until(lambda: heard.tokens("a") == 2)
        executor.send(work(release=(Key("a", 1),)))
        there.step(2)
        await heard.until(lambda: bool(heard.released))
        assert (heard.released, gone, heard.tokens("a")) == ([Key("a", 1)], [True], 2)
    assert (heard.finished, heard.returned, heard.lost) == ([], [], [])


async def test_letting_go_of_one_that_nothing_came_of_yet_frees_its_seat() -> None:
    heard = Heard()
    async with engine(pace_s=None) as there, upstream(heard, there.url) as executor:
        executor.send(work(submit("a")))
        await there.until(lambda: len(there.running) == 1)
        executor.send(work(release=(Key("a", 1),)))
        await heard.until(lambda: bool(heard.released))
        assert (there.running, heard.released) == ([], [Key("a", 1)])
        # And one that was not even sent.
        executor.send(work(submit("b")))
        executor.send(work(release=(Key("b", 1),)))
        await heard.until(lambda: len(heard.released) == 2)
        # And one that nobody knows.
        executor.send(work(release=(Key("c", 1),)))
        await heard.until(lambda: len(heard.released) == 3)
        assert len(there.asks) == 1
    assert heard.lost == []


@asynccontextmanager
async def deaf_engine() -> AsyncIterator[tuple[str, list[str]]]:
    """One that takes a completion and never answers, nor notices that somebody hangs up: its
    address, and what happened to each connection of that kind."""
    log: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    log.append("asked")
                    while await reader.read(1000):
                        pass
                    log.append("half gone")
                    while True:
                        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                        await writer.drain()
                        await asyncio.sleep(0.01)
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        except ConnectionError:
            log.append("gone")
        except asyncio.IncompleteReadError:
            pass
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", log


async def test_an_engine_that_does_not_notice_is_cut_off_after_a_second() -> None:
    heard = Heard()
    async with deaf_engine() as (url, log), upstream(heard, url) as executor:
        executor.send(work(submit("a")))
        await heard.until(lambda: log == ["asked"])
        begun = asyncio.get_running_loop().time()
        executor.send(work(release=(Key("a", 1),)))
        await heard.until(lambda: bool(heard.released))
        assert asyncio.get_running_loop().time() - begun >= 0.9
        await heard.until(lambda: log == ["asked", "half gone", "gone"])
    assert heard.lost == []


async def test_a_client_error_of_the_engine_is_handed_on_as_it_is() -> None:
    heard = Heard()
    error = {"error": {"message": "too long", "type": "t", "param": "prompt", "code": "c"}}
    async with (
        engine(status=400, error=error) as there,
        upstream(heard, there.url) as executor,
    ):
        executor.send(work(submit("a")))
        await heard.until(lambda: bool(heard.returned))
    refusal = Refusal(400, "too long", "t", "c", "prompt")
    assert heard.returned == [Returned("a", 1, "refused", "too long", True, True, refusal)]


async def test_a_failure_of_the_engine_is_that_requests_alone() -> None:
    heard = Heard()
    async with engine(status=500) as there, upstream(heard, there.url) as executor:
        executor.send(work(submit("a")))
        await heard.until(lambda: bool(heard.returned))
        assert heard.returned == [
            Returned("a", 1, "error", "the engine answered 500: no", alone=True)
        ]
        there.status = 401
        executor.send(work(submit("b")))
        await heard.until(lambda: len(heard.returned) == 2)
        words = "the engine does not let this server in: 401"
        assert heard.returned[1] == Returned("b", 1, "error", words, True, alone=True)
        assert executor.ready


async def test_what_a_full_engine_turns_away_is_given_back_after_the_pause_that_it_asks_for() -> (
    None
):
    heard = Heard()
    async with (
        engine(status=429, headers={"Retry-After": "0.2"}) as there,
        upstream(heard, there.url) as executor,
    ):
        begun = asyncio.get_running_loop().time()
        executor.send(work(submit("a"), submit("b")))
        await there.until(lambda: len(there.asks) == 2)
        executor.send(work(release=(Key("b", 1),)))
        await heard.until(lambda: bool(heard.released))
        assert asyncio.get_running_loop().time() - begun < 0.2
        await heard.until(lambda: bool(heard.returned))
        assert asyncio.get_running_loop().time() - begun >= 0.2
    assert heard.returned == [Returned("a", 1, "unavailable", "no", alone=True)]


async def test_fields_that_the_engine_refuses_are_left_out_from_then_on() -> None:
    heard = Heard()
    async with (
        engine(refuses=frozenset({"top_k", "stream_options"}), kind="other") as there,
        upstream(heard, there.url) as executor,
    ):
        executor.send(work(submit("a", top_k=5, max_tokens=2)))
        await heard.until(lambda: len(heard.finished) == 1)
        executor.send(work(submit("b", top_k=5, max_tokens=2)))
        await heard.until(lambda: len(heard.finished) == 2)
        assert [sorted({"top_k", "stream_options"} & ask.body.keys()) for ask in there.asks] == [
            ["stream_options", "top_k"],
            [],
            [],
        ]
    assert (heard.text("a"), heard.tokens("a")) == ("Paris is", 2)
    warnings = [report.warning for report in heard.reports if report.warning]
    assert warnings == ["the engine refuses stream_options, top_k: left out from now"]


async def test_an_answer_without_done_and_usage_is_complete_when_it_says_why_it_ends() -> None:
    heard = Heard()
    async with (
        engine(says_done=False, kind="other") as there,
        upstream(heard, there.url) as executor,
    ):
        executor.send(work(submit("a")))
        await heard.until(lambda: bool(heard.finished))
    assert (heard.text("a"), heard.returned) == ("".join(WORDS), [])


async def test_a_connection_that_breaks_costs_that_request_alone() -> None:
    heard = Heard()
    async with engine(cut_after=2) as there, upstream(heard, there.url) as executor:
        executor.send(work(submit("a", max_tokens=5)))
        await heard.until(lambda: bool(heard.returned))
        assert executor.ready
    (returned,) = heard.returned
    assert (returned.reason, returned.alone, returned.fatal) == ("error", True, False)
    assert heard.lost == []


async def test_an_engine_that_dies_is_lost_at_once_and_back_when_it_is() -> None:
    heard = Heard()
    async with engine(pace_s=None) as there, upstream(heard, there.url) as executor:
        executor.send(work(submit("a"), submit("b")))
        await there.until(lambda: len(there.running) == 2)
        await there.kill()
        await heard.until(lambda: bool(heard.lost))
        ((incarnation, reason, restart_in_s),) = heard.lost
        assert (incarnation, restart_in_s) == (1, 0.01)
        assert reason == "disconnected: Connection refused"
        told = len(heard.reports)
        await heard.until(lambda: executor.state is State.LOADING)
        assert not executor.ready
        await there.start()
        await heard.until(lambda: executor.ready)
        assert (executor.incarnation, executor.restarts) == (2, 1)
        # Nothing of the first incarnation is told after its end.
        assert len(heard.reports) == told
        there.pace_s = 0.001
        executor.send(work(submit("c", max_tokens=1)))
        await heard.until(lambda: heard.finished == [Finished("c", 1, "length")])


async def test_work_without_a_token_is_a_stall_and_a_rest_is_none() -> None:
    heard = Heard()
    async with (
        engine(hang=True) as there,
        upstream(heard, there.url, stall_after_s=5.0) as executor,
    ):
        clock = asyncio.get_running_loop().time
        executor.check_progress(clock() + 100.0, 0)
        executor.check_progress(clock() + 100.0, 0)
        assert executor.ready
        before = clock()
        executor.send(work(submit("a")))
        after = clock()
        await there.until(lambda: len(there.running) == 1)
        executor.check_progress(before + 4.99, 1)
        assert executor.ready
        executor.check_progress(after + 5.0, 1)
        await heard.until(lambda: bool(heard.lost))
        assert heard.lost == [(1, "stalled: 5.0 s without a token, 1 in flight", 0.01)]
        # The engine has been let go, and is asked again.
        await there.until(lambda: there.running == [])
        await heard.until(lambda: executor.ready)


async def test_one_that_says_that_it_is_unwell_is_out_until_it_is_well() -> None:
    heard = Heard()
    async with (
        engine(status=503, unwell=True) as there,
        upstream(heard, there.url, ready=False) as executor,
    ):
        await heard.until(lambda: executor.state is State.LOADING)
        assert executor.words == f"waits for {there.url}: /health answered 503"
        there.unwell = False
        await heard.until(lambda: executor.ready)
        there.unwell = True
        executor.send(work(submit("a")))
        await heard.until(lambda: bool(heard.lost))
        assert heard.lost[0][1] == "disconnected: /health answered 503"


async def test_whoever_cannot_bear_a_report_costs_the_incarnation_its_life() -> None:
    heard = Heard()

    def fail(report: Report) -> None:
        heard.during_report = lambda report: None
        raise KeyError("oops")

    heard.during_report = fail
    async with engine() as there, upstream(heard, there.url) as executor:
        executor.send(work(submit("a")))
        await heard.until(lambda: bool(heard.lost))
        assert heard.lost == [(1, "handler: KeyError('oops')", 0.01)]
        await heard.until(lambda: executor.ready)


async def test_a_hung_scrape_holds_nobody_up_and_is_stale_in_the_end() -> None:
    # BEHAVIOURS 44.
    heard = Heard()
    async with engine(foreign=3) as there, upstream(heard, there.url) as executor:
        clock = asyncio.get_running_loop().time
        await heard.until(lambda: executor.view(clock())["scrape"]["foreign"] == 3)
        there.hang_metrics = True
        await heard.until(lambda: executor.view(clock())["scrape"]["state"] == "stale")
        assert executor.view(clock())["scrape"]["foreign"] is None
        executor.send(work(submit("a", max_tokens=2)))
        await heard.until(lambda: bool(heard.finished))
        assert {report.kv_tokens for report in heard.reports} == {None}
        there.hang_metrics = False
        await heard.until(lambda: executor.view(clock())["scrape"]["state"] == "fresh")
        executor.send(work(submit("b", max_tokens=2)))
        await heard.until(lambda: len(heard.finished) == 2)
        assert heard.reports[-1].kv_tokens == 4000
