"""What the HTTP side and the serving core owe each other: a sink for tokens, a desk to ask at."""

from __future__ import annotations

from typing import Any, Protocol

from controller.places import Permit
from controller.request import Ended, Outcome, Request
from executor.contract import Capacity, TextModel
from policies.contract import Limits


class Sink(Protocol):
    """Where one request's completion goes. Called on the event loop, must not block or raise.

    A sink that finds a stop string calls `Desk.cancel(id, Outcome.FINISHED, "stop")` from within
    `on_tokens`. Tokens may still come after that; `on_end` comes exactly once, last.
    """

    def on_tokens(self, ids: list[Any], now: float) -> None:
        """The next tokens of the completion, in order, none twice: their ids, or what an engine
        that writes text by itself said (`executor.contract.Said`), as the request was made for."""

    def on_end(self, ended: Ended) -> None:
        """The request is over."""


class Desk(Protocol):
    """The daemon as the HTTP handlers see it. What is not awaited returns at once; `now` is
    monotonic."""

    def now(self) -> float:
        """Seconds on the monotonic clock."""

    def model(self) -> tuple[TextModel, Capacity]:
        """What is served. Raises NotReady before the first executor was ready."""

    def reserve(
        self,
        tier: str,
        *,
        requests: int,
        tokens: int,
        size: int,
        start_by: float | None = None,
        client: str = "",
    ) -> Permit:
        """Take places in a tier's queue before costly work: `tokens` estimated, `size` bytes,
        `start_by` the instant by which they have to begin to be of use, `client` who asks.

        Raises QueueFull, Infeasible, Shed (429), NotReady, Draining (503).
        """

    def give_back(self, permit: Permit) -> None:
        """Return what is left of a permit; harmless when it was used up."""

    def offer(self, request: Request, permit: Permit, sink: Sink) -> None:
        """Queue a request against a permit. Raises ContextLengthExceeded and other 400s."""

    def cancel(self, request_id: str, outcome: Outcome, reason: str) -> bool:
        """End a request now. False when it is unknown or over already."""

    def healthy(self) -> bool:
        """Whether the process itself works (the control loop ticks)."""

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether work can be done now, with the reasons as a JSON object."""

    def state(self) -> dict[str, Any]:
        """Everything an operator asks for first, as a JSON object (`GET /admin/state`)."""

    def decisions(self, count: int) -> list[dict[str, Any]]:
        """The newest decisions, newest first (`GET /admin/decisions`)."""

    def request(self, request_id: str) -> dict[str, Any] | None:
        """Where a request waits or where its time went (`GET /admin/requests/{id}`)."""

    def pin(self, limits: dict[str, Any], expires_s: float) -> Limits:
        """Hold limits by hand until they expire. Raises InvalidRequest with the envelope."""

    def release(self) -> Limits:
        """Let the policy have the limits again; answers those in force."""

    async def switch_policy(self, kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Put another policy in force; answers what is, and what was, as a JSON object.

        Raises InvalidRequest that names the key.
        """

    def roll_back_policy(self) -> dict[str, Any]:
        """Put the last good policy in force again. Raises InvalidRequest where there is none."""

    def metrics(self) -> bytes:
        """The Prometheus exposition, text format."""
