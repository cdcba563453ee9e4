"""How long somebody else's code may take before it is not waited for any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Watch:
    """Runs work in a thread that dies with the process, and looks how long its parts take.

    Python cannot end a thread: what never returns keeps it until the process ends.
    """

    def __init__(self) -> None:
        # Written by the work's thread only: until when, of how many seconds, and what it is.
        self._open: list[tuple[float, float, str]] = []

    @contextmanager
    def during(self, what: str, limit_s: float) -> Iterator[None]:
        """A part of the work that should be done in so many seconds; parts may lie in others."""
        self._open.append((time.monotonic() + limit_s, limit_s, what))
        try:
            yield
        finally:
            self._open.pop()

    def run(self, work: Callable[[], None], *, look_every_s: float) -> str | None:
        """Do the work. None once it is done, else which part was overdue, and is given up.

        Raises what the work raises.
        """
        raised: list[BaseException] = []

        def worked() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=worked, name="policy under test", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(look_every_s)
            now = time.monotonic()
            # The innermost first: it says most.
            for until, limit_s, what in reversed(tuple(self._open)):
                if now > until and thread.is_alive():
                    return f"{what} takes more than {limit_s:g} s"
        if raised:
            raise raised[0]
        return None
