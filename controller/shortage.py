"""What a report says about its executor's memory: what fitted, what did not, and who may join."""

from __future__ import annotations

import math

from controller.ledger import ExecutorSeats, SeatState
from controller.request import Request
from executor.contract import Report


def note(seats: ExecutorSeats, report: Report, now: float) -> None:
    """Learn from a report; the seats are as they were during the step."""
    if report.returned or report.released:
        _note_returned(seats, report, now)
    if (sample := report.sample) is not None:
        computed = sample.prefill_tokens + sample.decodes
        seats.memory.fitted(sample.context_tokens + computed, computed)
    seats.look_at_memory(now)


def may_join(seats: ExecutorSeats, request: Request) -> bool:
    """Whether a request may join those who are seated, after memory ran out: not beyond what is
    tried again for now."""
    most = seats.memory.retry.held
    return most == math.inf or _held(seats) + _has(request) <= most


def _note_returned(seats: ExecutorSeats, report: Report, now: float) -> None:
    """Some are given back: whether these are all that there were, and whether for memory."""
    assert seats.capacity is not None
    memory = seats.memory
    gone = {(one.request_id, one.attempt) for one in report.returned}
    gone |= {(one.request_id, one.attempt) for one in report.released}
    gone |= {(one.request_id, one.attempt) for one in report.finished}
    # Who was seated since the last report was perhaps still on the way.
    memory.whole = report.sample is None and all(
        key in gone or seat.since == seats.reports
        for key, seat in seats.seats.items()
        if seat.state is SeatState.RUNNING
    )
    memory.alone = False
    if not any(
        one.reason == "out_of_memory" and seats.find(one.request_id, one.attempt)
        for one in report.returned
    ):
        return
    held, step = _next_step(seats)
    if memory.whole:
        least = seats.size_limit if seats.capacity.splits_prefill else step
        memory.ran_out(held, step, now, rows=len(seats.seats), least_step=least)
    else:
        memory.ceiling.ran_out(held, None, now)


def _next_step(seats: ExecutorSeats) -> tuple[int, int]:
    """Tokens that are held after the next step, and those that it computes, as far as we know:
    what was cached of a prompt was not computed."""
    assert seats.capacity is not None
    prompts, decodes = seats.prompt_tokens, len(seats.seats) - len(seats.prefilling)
    step = prompts + decodes
    if seats.capacity.splits_prefill:
        step = min(step, seats.step_tokens)
    return _held(seats) - prompts + step - decodes, step


def _held(seats: ExecutorSeats) -> int:
    """Tokens of those who are seated once all are prefilled."""
    return sum([_has(seat.request) for seat in seats.seats.values()])


def _has(request: Request) -> int:
    return len(request.prompt) + len(request.tokens)
