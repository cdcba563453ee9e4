"""What becomes of requests whose seats come free: they end, or wait again, or fail by themselves.

Preemption, out of memory, a failed step and the death of a process are one mechanism: the request
waits again at its place, with the tokens that it has. Those who were there at a failure are tried
again in halves (see `Former`), so that the one that is to blame fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.book import Book
from controller.ledger import ExecutorSeats, Seat, SeatState
from controller.lengths import LengthHistory
from controller.listener import Audience
from controller.queues import TierQueue
from controller.request import Outcome, Request
from controller.scheduler import Scheduler
from executor.contract import Report, Returned

# A request that failed this often, the last time by itself, is to blame.
MAX_FAULTS = 3
# Whatever company it had: it fails rather than go on for ever.
MOST_FAULTS = 10
# Where an engine says whose failure it was, it is tried once more.
MAX_OWN_FAULTS = 2


class Returns:
    """Frees seats, settles the accounts, and ends requests or puts them back into their queues."""

    def __init__(
        self,
        queues: Mapping[str, TierQueue],
        book: Book,
        scheduler: Scheduler,
        *,
        lengths: Mapping[str, LengthHistory],
        audience: Audience,
    ) -> None:
        self._queues = queues
        self._book = book
        self._scheduler = scheduler
        self._lengths = lengths
        self._audience = audience

    def free(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        """Free the seats of which a report says so."""
        for finished in report.finished:
            if seat := self._leave(seats, finished.request_id, finished.attempt):
                request = seat.request
                if finished.reason == "stop":
                    self._lengths[request.tier].add(len(request.tokens))
                self._book.end(request, now, Outcome.FINISHED, reason=finished.reason)
        back = [
            (seat, returned)
            for returned in report.returned
            if (seat := self._leave(seats, returned.request_id, returned.attempt))
        ]
        for key in report.released:
            if seat := self._leave(seats, key.request_id, key.attempt):
                if seat.state is SeatState.RETURNING:
                    seat.request.preemptions += 1
                    resumes = seats.capacity is not None and seats.capacity.can_resume
                    self._again(seat.request, "preempted", now, resumes=resumes)
                else:
                    # Nobody asked for this one: the executor let it go by itself.
                    back.append((seat, Returned(key.request_id, key.attempt, "error")))
        if back:
            self._returned(seats, back, now)
        seats.note_room(now)

    def lost(self, seats: Sequence[Seat], now: float, *, resumes: bool) -> None:
        """Their executor is gone; they have left it."""
        left = [seat for seat in seats if seat.state is not SeatState.RELEASING]
        self._suspect(left)
        for seat in left:
            self.settle(seat)
            self._fault(seat.request, "executor_lost", now, resumes=resumes)

    def settle(self, seat: Seat) -> None:
        """Correct what tier and client were charged by what was used."""
        request = seat.request
        used = len(request.prompt) + len(request.tokens)
        self._scheduler.settle(
            request, charged=seat.charged, unused=seat.booked - used, paid=seat.paid
        )

    def _leave(self, seats: ExecutorSeats, request_id: str, attempt: int) -> Seat | None:
        """Free a seat; answers it if its request still went on."""
        seat = seats.find(request_id, attempt)
        if seat is None:
            return None
        seats.leave(seat)
        if seat.state is SeatState.RELEASING:
            return None
        self.settle(seat)
        return seat

    def _returned(
        self, executor: ExecutorSeats, told: Sequence[tuple[Seat, Returned]], now: float
    ) -> None:
        """An executor gave these back with one report; they have left their seats."""
        resumes = executor.capacity is not None and executor.capacity.can_resume
        failed = [
            seat
            for seat, back in told
            if not back.fatal and not back.alone and back.reason != "preempted"
        ]
        # Where others went on, it only had no place beside them.
        whole = not any(True for _ in executor.running())
        if whole:
            self._suspect(failed)
        for seat, back in told:
            request = seat.request
            if back.fatal:
                self._end(request, back, now)
            elif back.reason in ("preempted", "unavailable") or (
                back.reason == "out_of_memory" and not whole
            ):
                self._again(request, back.reason, now, resumes=resumes)
            elif back.alone:
                request.faults += 1
                request.shuns = executor.name
                begun = request.tokens and not request.unseen
                if request.faults >= MAX_OWN_FAULTS or begun:
                    self._end(request, back, now)
                else:
                    self._again(request, back.reason, now, resumes=resumes)
            else:
                self._fault(request, back.reason, now, resumes=resumes)

    def _end(self, request: Request, back: Returned, now: float) -> None:
        self._book.end(
            request,
            now,
            Outcome.FAILED,
            reason=back.reason,
            detail=back.detail,
            refusal=back.refusal,
        )

    def _suspect(self, seats: Sequence[Seat]) -> None:
        """Those on trial are to blame, if there are any; else it may have been anybody."""
        trials = sum(seat.trial for seat in seats)
        for seat in seats:
            seat.request.suspects = trials if seat.trial else len(seats)

    def _fault(self, request: Request, reason: str, now: float, *, resumes: bool) -> None:
        request.faults += 1
        alone = request.suspects <= 1
        if request.faults >= (MAX_FAULTS if alone else MOST_FAULTS) and not _is_whole(request):
            detail = f"its executor failed {request.faults} times ({reason})"
            self._book.end(request, now, Outcome.FAILED, reason="executor_failed", detail=detail)
        else:
            self._again(request, reason, now, resumes=resumes)

    def _again(self, request: Request, reason: str, now: float, *, resumes: bool) -> None:
        """Let a request wait again, unless it cannot be continued."""
        if _is_whole(request):
            # Its last token came, the word that it was the last did not.
            self._book.end(request, now, Outcome.FINISHED, reason="length")
        elif request.tokens and not resumes and not request.unseen:
            detail = "this executor cannot continue what has begun"
            self._book.end(request, now, Outcome.FAILED, reason=reason, detail=detail)
        else:
            if not resumes:
                request.tokens = []
            self._expect(request)
            self._queues[request.tier].put_back(request)
            for tell in self._audience.given_back:
                tell(request, reason, now)

    def _expect(self, request: Request) -> None:
        """Where the client set no bound, what it has says how much more it may come to."""
        has, expected = len(request.tokens), request.expected_new_tokens
        if expected is not None and has >= expected:
            most = request.max_new_tokens
            known = self._lengths[request.tier].expected(has, at_most=most)
            request.expect(min(most, has + 1) if known is None else known)


def _is_whole(request: Request) -> bool:
    return bool(request.tokens) and request.remaining_tokens <= 0
