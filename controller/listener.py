"""What the core tells those who watch it: windows, metrics and logs listen, none of them steers."""

from __future__ import annotations

from collections.abc import Sequence

from controller.ledger import ExecutorSeats
from controller.plan import Dispatch
from controller.request import Ended, Request
from executor.contract import Report


class Listener:
    """Told by the batcher as things happen, with the instant; every method does nothing here.

    A listener must not call back into the batcher.
    """

    def offered(self, request: Request, now: float) -> None:
        """A request began to wait."""

    def rejected(self, tier: str, requests: int, reason: str, now: float) -> None:
        """Requests were turned away before they began to wait."""

    def dispatched(self, request: Request, now: float) -> None:
        """A request got a seat; `request.executor`, `attempt` and `epoch` say which."""

    def batch(self, dispatch: Dispatch, now: float) -> None:
        """Requests went to an executor together."""

    def first_token(self, request: Request, now: float) -> None:
        """The completion began."""

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        """An executor did a step; its seats are as they were during the step."""

    def given_back(self, request: Request, reason: str, now: float) -> None:
        """A request lost its seat unfinished and waits again; `request.executor` had it."""

    def ended(self, ended: Ended, now: float) -> None:
        """A request is over."""


class Audience:
    """Listeners by event. Who does not care for an event is not called.

    No event is told per token: they come in masses, and who wants them looks at the seats.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        def who(event: str) -> list[Listener]:
            still = getattr(Listener, event)
            return [one for one in listeners if getattr(type(one), event) is not still]

        self.offered = [one.offered for one in who("offered")]
        self.rejected = [one.rejected for one in who("rejected")]
        self.dispatched = [one.dispatched for one in who("dispatched")]
        self.batch = [one.batch for one in who("batch")]
        self.first_token = [one.first_token for one in who("first_token")]
        self.stepped = [one.stepped for one in who("stepped")]
        self.given_back = [one.given_back for one in who("given_back")]
        self.ended = [one.ended for one in who("ended")]
