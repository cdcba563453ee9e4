"""A client's own deadline is kept where it is shorter than the tier's, and only there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from controller.errors import Infeasible, InvalidRequest
from controller.request import Outcome
from executor.contract import Key, TextModel
from gateway.deadlines import Deadlines, deadlines
from gateway.settings import TierPlan
from tests.gateway.desk_rig import Rig
from tests.gateway.fake_desk import FakeDesk
from tests.gateway.serving import QUESTION, listening, serving

pytestmark = pytest.mark.timeout(30, method="thread")  # uvloop lets no signal interrupt a test

OWN, READ = "x-request-timeout", "x-stainless-read-timeout"
TIER = TierPlan(priority=1, service_tier="paid", start_within_s=20.0, finish_within_s=60.0)
ENDLESS = TierPlan(priority=0, service_tier="flex")
TIERS_OWN = Deadlines(120.0, 160.0)


def of(headers: Mapping[str, str], *, streamed: bool = False, plan: TierPlan = TIER) -> Deadlines:
    """The deadlines of a request that arrived at 100 s."""
    return deadlines(headers, plan, arrival=100.0, streamed=streamed)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("5", Deadlines(105.0, 105.0)),
        ("30", Deadlines(120.0, 130.0)),
        ("60.5", TIERS_OWN),
        ("600", TIERS_OWN),
    ],
)
def test_the_shorter_of_the_tiers_and_the_clients_deadline_holds(
    value: str, expected: Deadlines
) -> None:
    assert of({READ: value}) == of({OWN: value}) == expected


def test_without_a_deadline_of_the_client_the_tier_has_its_own() -> None:
    assert of({}) == of({}, streamed=True) == TIERS_OWN
    assert of({}, plan=ENDLESS) == Deadlines(None, None)


def test_where_the_tier_has_no_deadline_the_clients_is_the_only_one() -> None:
    assert of({READ: "600"}, plan=ENDLESS) == Deadlines(700.0, 700.0)


def test_of_a_stream_a_read_timeout_is_no_deadline_and_a_request_timeout_is() -> None:
    assert of({READ: "5"}, streamed=True) == TIERS_OWN
    assert of({READ: "5", OWN: "7"}, streamed=True) == Deadlines(107.0, 107.0)
    assert of({READ: "5", OWN: "7"}) == of({READ: "7", OWN: "5"}) == Deadlines(105.0, 105.0)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("5", 5.0), ("0.25", 0.25), ("1500ms", 1.5), (" 2 s ", 2.0), ("1m", 60.0), ("2e1", 20.0)],
)
def test_a_request_timeout_is_in_seconds_or_has_a_unit(value: str, seconds: float) -> None:
    assert of({OWN: value}, plan=ENDLESS) == Deadlines(100.0 + seconds, 100.0 + seconds)


BAD = ["", "soon", "0", "-1", "nan", "inf", "9" * 400, "9" * 400 + "s", "5 5", "5M", "0s"]


@pytest.mark.parametrize("value", BAD)
def test_a_request_timeout_that_is_none_is_refused_and_told_what_would_do(value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        of({OWN: value}, streamed=True)
    assert refused.value.param == OWN
    assert str(refused.value) == (
        f"x-request-timeout: {value[:32]!r} should be more than 0: seconds, such as 30 or 0.5, or "
        "a number with its unit, such as 1500ms or 2m"
    )


@pytest.mark.parametrize("value", [*BAD, "1500ms", "None"])
def test_a_read_timeout_that_is_none_is_passed_over(value: str) -> None:
    assert of({READ: value}) == TIERS_OWN


@pytest.mark.parametrize(("stream", "finish_by"), [(False, 112.5), (True, 700.0)])
async def test_the_patience_of_the_official_client_is_the_deadline_of_a_whole_answer(
    text: TextModel, stream: bool, finish_by: float
) -> None:
    desk = FakeDesk(text, reply=lambda _: [70])
    async with serving(desk) as served, served.openai() as client:
        patient = client.with_options(timeout=12.5)
        answer: Any = await patient.chat.completions.create(
            model="tiny", messages=QUESTION, service_tier="priority", stream=stream
        )
        if stream:
            assert [chunk async for chunk in answer]
    assert [end.request.finish_by for end in desk.ends] == [finish_by]


async def test_a_bad_timeout_is_a_400_before_a_place_is_taken(text: TextModel) -> None:
    desk = FakeDesk(text)
    async with serving(desk) as served:
        connection = await served.ask(headers={"X-Request-Timeout": "soon"})
        answer = await connection.answer()
        await connection.leave()
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "x-request-timeout"
    assert desk.reserved == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waits_longer_than_its_client_is_removed_and_never_begun(
    stream: bool,
) -> None:
    rig = Rig(limits={"max_batch_size": 1, "max_batch_tokens": 64, "wait_timeout": "0s"})
    await rig.ready()
    async with listening(rig.parts.app) as served:
        runs = await served.ask(max_tokens=5)
        await rig.until(lambda: rig.batcher.running() == 1)
        waits = await served.ask(headers={OWN: "2"}, max_tokens=5, stream=stream)
        await rig.until(lambda: rig.batcher.queued() == 1)
        rig.clock.now += 2.0
        rig.dispatcher.pump()
        answer = await waits.answer()
        await waits.leave()
        await runs.leave()
    assert (answer.status, answer.json()["error"]["code"]) == (429, "deadline_exceeded")
    assert answer.headers["retry-after"] == "1"
    assert len(rig.wire.begun) == 1
    assert rig.batcher.book.outcomes[Outcome.EXPIRED] == 1


async def test_a_request_that_runs_longer_than_its_client_waits_gives_its_seat_back() -> None:
    rig = Rig()
    await rig.ready()
    async with listening(rig.parts.app) as served:
        connection = await served.ask(headers={READ: "2"}, max_tokens=5)
        await rig.until(lambda: rig.batcher.running() == 1)
        (request,) = rig.batcher.book.requests.values()
        await rig.report({request.id: [70]})
        rig.clock.now += 2.0
        rig.dispatcher.pump()
        answer = await connection.answer()
        await connection.leave()
    assert (answer.status, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert answer.headers["x-should-retry"] == "false"
    assert rig.wire.released == [Key(request.id, 1)]


async def test_the_queue_is_told_by_when_it_has_to_begin_before_anything_is_tokenised(
    text: TextModel,
) -> None:
    desk = FakeDesk(text)
    desk.refuse = Infeasible("too much waits before it", retry_after_s=4.5)
    async with serving(desk) as served:
        connection = await served.ask(headers={OWN: "3"})
        answer = await connection.answer()
        await connection.leave()
    assert desk.to_begin_by == [103.0]
    assert (answer.status, answer.json()["error"]["code"]) == (429, "infeasible")
    assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("5", "4500")
