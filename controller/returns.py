"""What becomes of requests that come back unfinished: they wait again, or fail, each by itself.

Preemption, out of memory, a failed step and the death of a process are one mechanism: the request
waits again at its place, with the tokens that it has. Those who were there at a failure are tried
again in halves (see `Former`), so that the one that is to blame fails alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.book import Book
from controller.ledger import ExecutorSeats, Seat
from controller.lengths import LengthHistory
from controller.listener import Audience
from controller.queues import TierQueue
from controller.request import Outcome, Request
from executor.contract import Returned

# A request that failed this often, the last time by itself, is to blame.
MAX_FAULTS = 3
# Whatever company it had: it fails rather than go on for ever.
MOST_FAULTS = 10


class Returns:
    """Puts requests back into their queues."""

    def __init__(
        self,
        queues: Mapping[str, TierQueue],
        book: Book,
        lengths: Mapping[str, LengthHistory],
        *,
        audience: Audience,
    ) -> None:
        self._queues = queues
        self._book = book
        self._lengths = lengths
        self._audience = audience

    def preempted(self, request: Request, now: float) -> None:
        """It gave up its seat for others."""
        request.preemptions += 1
        self._again(request, "preempted", now, resumes=True)

    def lost(self, seats: Sequence[Seat], now: float, *, resumes: bool) -> None:
        """Their executor is gone."""
        self._suspect(seats)
        for seat in seats:
            self._fault(seat.request, "executor_lost", now, resumes=resumes)

    def returned(
        self, executor: ExecutorSeats, told: Sequence[tuple[Seat, Returned]], now: float
    ) -> None:
        """An executor gave these back with one report; they have left their seats."""
        resumes = executor.capacity is not None and executor.capacity.can_resume
        failed = [seat for seat, back in told if not back.fatal and back.reason != "preempted"]
        # Where others went on, it only had no place beside them.
        whole = not any(True for _ in executor.running())
        if whole:
            self._suspect(failed)
        for seat, back in told:
            request = seat.request
            if back.fatal:
                self._book.end(request, now, Outcome.FAILED, reason=back.reason, detail=back.detail)
            elif back.reason == "preempted" or (back.reason == "out_of_memory" and not whole):
                self._again(request, back.reason, now, resumes=resumes)
            else:
                self._fault(request, back.reason, now, resumes=resumes)

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
        elif request.tokens and not resumes:
            detail = "this executor cannot continue what has begun"
            self._book.end(request, now, Outcome.FAILED, reason=reason, detail=detail)
        else:
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
            request.expected_new_tokens = min(most, has + 1) if known is None else known


def _is_whole(request: Request) -> bool:
    return bool(request.tokens) and request.remaining_tokens <= 0
