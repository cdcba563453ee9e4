from __future__ import annotations

from typing import Any

import pytest

from controller.errors import InvalidRequest, QueueFull
from controller.places import Permit
from controller.queues import TierQueue
from controller.request import Request
from controller.tiers import Targets, Tier
from executor.contract import Sampling


def request(name: str, arrival: float, *, start_by: float | None = None, new: int = 10) -> Request:
    return Request(
        id=name,
        tier="paid",
        client="c",
        prompt=[1] * 10,
        max_new_tokens=new,
        sampling=Sampling(),
        arrival=arrival,
        arrived_at=arrival,
        start_by=start_by,
    )


def queue(**bounds: Any) -> TierQueue:
    return TierQueue(Tier("paid", 1, Targets(ttft_s=1.0), **bounds))


def wait(line: TierQueue, *requests: Request) -> None:
    for one in requests:
        line.offer(one, line.reserve(1, one.work_tokens, size=10))


def test_requests_leave_in_the_order_of_arrival_and_one_put_back_keeps_its_place() -> None:
    line = queue()
    a, b, c = request("a", 1.0), request("b", 1.0), request("c", 2.0)
    wait(line, a, b, c)
    for one in (a, b):
        assert line.head() is one
        line.take(one)
    line.put_back(b)
    line.put_back(a)
    order = []
    while (head := line.head()) is not None:
        order.append(head.id)
        line.take(head)
    assert order == ["a", "b", "c"]
    assert line.oldest() is None


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ({"max_queue_requests": 2}, "2 requests of 2 waiting, no room for 1 more"),
        ({"max_queue_tokens": 45}, "40 tokens of 45 waiting, no room for 20 more"),
        ({"max_queue_bytes": 25}, "20 bytes of 25 waiting, no room for 10 more"),
    ],
)
def test_a_full_queue_says_which_bound_was_met(bound: dict[str, int], message: str) -> None:
    line = queue(**bound)
    wait(line, request("a", 1.0), request("b", 1.0))
    with pytest.raises(QueueFull, match=message):
        line.reserve(1, 20, size=10)


def test_what_an_empty_queue_would_not_take_is_no_matter_of_time() -> None:
    line = queue(max_queue_tokens=45)
    with pytest.raises(InvalidRequest, match="46 tokens are more than the queue of tier 'paid'"):
        line.reserve(1, 46, size=10)


def test_a_reserved_place_counts_until_it_is_given_back_or_used() -> None:
    line = queue(max_queue_requests=2)
    permit = line.reserve(2, 40, size=20)
    with pytest.raises(QueueFull):
        line.reserve(1, 1, size=1)
    line.offer(request("a", 1.0), permit)
    line.give_back(permit)
    line.give_back(permit)
    assert line.reserved == Permit("paid", 0, 0, 0) or (
        line.reserved.requests,
        line.reserved.tokens,
        line.reserved.size,
    ) == (0, 0, 0)
    assert (len(line), line.tokens, line.size) == (1, 20, 10)


def test_a_permit_lets_in_no_more_than_it_says() -> None:
    line = queue()
    permit = line.reserve(1, 20, size=10)
    line.offer(request("a", 1.0), permit)
    with pytest.raises(ValueError, match="used up"):
        line.offer(request("b", 1.0), permit)


def test_only_those_that_have_not_begun_expire() -> None:
    line = queue()
    fresh, begun = request("a", 1.0, start_by=5.0), request("b", 1.0, start_by=5.0)
    wait(line, fresh, begun)
    line.take(begun)
    begun.tokens = [7]
    line.put_back(begun)
    assert line.next_deadline() == 5.0
    assert line.expired(4.9) == []
    assert line.expired(5.0) == [fresh]


def test_who_was_given_up_went_and_came_back_stands_in_the_line_once() -> None:
    line = queue()
    a, b, c = request("a", 1.0), request("b", 2.5), request("c", 3.0)
    wait(line, a, b, c)
    line.give_up([c])
    line.take(c)
    # Its place is that of its arrival now, before the due time of the other.
    line.put_back(c)
    assert line.firsts(5) == [a, c, b]


def test_those_beyond_their_target_are_late_while_they_wait() -> None:
    line = queue()
    a, b = request("a", 1.0), request("b", 1.5)
    wait(line, a, b)
    assert line.late(2.0) == 0
    assert line.late(2.1) == 1
    line.take(a)
    assert line.late(2.1) == 0
    assert line.late(3.0) == 1


def test_a_queue_that_empties_keeps_nothing_of_what_went_through() -> None:
    line = queue(max_queue_requests=10_000)
    for i in range(5000):
        one = request(str(i), float(i), start_by=1e9)
        wait(line, one)
        line.take(one)
    heaps = (line._dues, line._deadlines, line._arrivals, line.lines._lines["c"]._entries)
    assert max(len(heap) for heap in heaps) < 200
