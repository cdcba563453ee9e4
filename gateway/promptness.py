"""How long somebody else's code may take before it is not waited for any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from policies.conformance import ANSWER_S, SEEDS, Result, checked

IN_TIME = "answers in time"


def checked_in_time(
    name: str,
    parameters: Mapping[str, Any],
    *,
    seeds: Iterable[int] = SEEDS,
    answer_s: float = ANSWER_S,
) -> list[Result]:
    """Every check on a policy, and whether it answers in time.

    One that cannot be built has one result. One that takes longer than `answer_s` seconds for an
    answer is given up: it has the results of the checks before that, and the one that says so.
    """
    watch = Watch()
    results: list[Result] = []

    def work() -> None:
        found = checked(name, parameters, list(seeds), during=watch.during, answer_s=answer_s)
        for result in found:
            results.append(result)  # noqa: PERF402  # each at once: the next one may hang

    overdue = watch.run(work, look_every_s=answer_s / 5)
    # Whoever is given up may yet go on and write there.
    told = list(results)
    if overdue is None and not told[0].passed:
        return told
    return [*told, Result(IN_TIME, overdue is None, overdue or "")]


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
