"""A policy that does not answer until the test lets it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from policies.contract import Limits, Proposal, Signals

# Only for a test that waits for something that does not come.
PATIENCE_S = 20.0


@dataclass
class Blocked:
    """Answers once its gate is open; `threads` are those in which it was asked."""

    gate: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        self.threads.append(threading.current_thread())
        self.asked.set()
        assert self.gate.wait(PATIENCE_S)
        return Proposal(limits, "at last")

    def let_go(self) -> None:
        """Let it answer, and wait until it has."""
        self.gate.set()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(PATIENCE_S)
