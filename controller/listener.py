"""What the core tells those who watch it: windows, metrics and logs listen, none of them steers."""

from __future__ import annotations

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

    def tokens(self, request: Request, count: int, gap_s: float, now: float) -> None:
        """The completion went on: `count` tokens, `gap_s` after the previous ones."""

    def stepped(self, seats: ExecutorSeats, report: Report, now: float) -> None:
        """An executor did a step; its seats are as they were during the step."""

    def given_back(self, request: Request, reason: str, now: float) -> None:
        """A request lost its seat unfinished and waits again; `request.executor` had it."""

    def ended(self, ended: Ended, now: float) -> None:
        """A request is over."""
