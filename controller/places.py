"""Room in a queue, and the right to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True, eq=False)
class Permit:
    """Places in a tier's queue, taken before costly work: `requests`, and their `tokens` and
    `size` (bytes) as estimated. Offering a request uses one place up."""

    tier: str
    requests: int
    tokens: int
    size: int


class Places(NamedTuple):
    """Room in a queue: requests, their tokens, their bodies' bytes."""

    requests: int
    tokens: int
    size: int

    def plus(self, other: Places) -> Places:
        """Both together."""
        return Places(
            self.requests + other.requests, self.tokens + other.tokens, self.size + other.size
        )

    def cover(self, other: Places) -> bool:
        """Whether there is at least as much of everything."""
        return (
            self.requests >= other.requests
            and self.tokens >= other.tokens
            and self.size >= other.size
        )
