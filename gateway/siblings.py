"""The requests behind one HTTP request: they are ended together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.request import Outcome

if TYPE_CHECKING:
    from gateway.contract import Desk


class Siblings:
    """Ids of requests at one desk."""

    __slots__ = ("_desk", "_ids")

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._ids: list[str] = []

    def add(self, request_id: str) -> None:
        """One more."""
        self._ids.append(request_id)

    def stop(self, request_id: str) -> None:
        """This one has all of its text: a stop string came."""
        self._desk.cancel(request_id, Outcome.FINISHED, "stop")

    def cancel(self, reason: str) -> None:
        """End all that still wait or run; nothing happens to the others."""
        for request_id in self._ids:
            self._desk.cancel(request_id, Outcome.CANCELLED, reason)
