"""In which thread a policy is asked, how long its answer is waited for, and when it is given up.

Python cannot end a thread. A policy that never answers keeps its own for as long as the process
lives, and, where it computes, a part of the processor; so few are tolerated.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from controller.asking import Answer, Named, Question, answer_to, failed, is_own
from policies.contract import Policy

# Whoever answers within this decides in the same tick. The event loop waits so long at most, once
# for all questions of a tick: shorter than a token of any stream.
PATIENCE_S = 0.005
# Abandoned policies that are tolerated before no more of their kind are taken into service.
MAX_ABANDONED = 4

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Open:
    """A question that a thread has, and its answer once it is there. Policies are not made to be
    asked twice at once: where an earlier thread still has this one, it waits for that."""

    question: Question
    since: float
    after: threading.Thread | None
    done: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None

    def work(self) -> None:
        """What the thread does."""
        if self.after is not None:
            self.after.join()
        try:
            self.answer = answer_to(self.question)
        # No signal is handled in a thread: this one comes from the policy.
        except KeyboardInterrupt as error:
            self.answer = failed(error)
        finally:
            self.done.set()


class Abandoned:
    """Policies whose answer nobody waits for any more, of all loops together, with the threads that
    still have them."""

    def __init__(self) -> None:
        self._busy: list[tuple[Policy, threading.Thread]] = []

    def add(self, policy: Policy, thread: threading.Thread) -> None:
        """Nobody waits for this one."""
        self._busy.append((policy, thread))

    def thread_of(self, policy: Policy) -> threading.Thread | None:
        """The last thread that still has this policy."""
        return next((thread for one, thread in reversed(self._running()) if one is policy), None)

    def __len__(self) -> int:
        return len(self._running())

    def _running(self) -> list[tuple[Policy, threading.Thread]]:
        self._busy = [(policy, thread) for policy, thread in self._busy if thread.is_alive()]
        return self._busy


class ThreadAsker:
    """Asks a policy in a thread that dies with the process, and never waits long.

    Headway's own policies are asked at once, in the caller's thread: they compute for microseconds
    and are tested to answer, and a thread that is woken late on a busy machine would only make
    their decisions late. Everybody else's code (`module:Class`, installed packages, and policies
    that others may be named to) gets a thread. Who has not answered within `patience_s` is looked
    at again at the next tick, and given up after `timeout_s()`; what it says then is not heard.
    """

    def __init__(
        self,
        abandoned: Abandoned,
        *,
        timeout_s: Callable[[], float],
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._abandoned = abandoned
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._clock = clock
        self._open: dict[int, tuple[_Open, threading.Thread]] = {}

    def ask(self, questions: Sequence[Question], now: float) -> list[Answer]:
        """What each says by now; a question that is open already is not asked again."""
        self._forget({id(question.named.policy) for question in questions})
        asked_now = [
            self._pose(question, now)
            for question in questions
            if not is_own(question.named) and id(question.named.policy) not in self._open
        ]
        # Threads work while these are asked.
        own = [answer_to(q) if is_own(q.named) else None for q in questions]
        give_up_at = self._clock() + self._patience_s
        for one in asked_now:
            one.done.wait(max(0.0, give_up_at - self._clock()))
        return [
            answer or self._collect(question, now)
            for question, answer in zip(questions, own, strict=True)
        ]

    def refusal(self, named: Named) -> str | None:
        """Why this policy is not taken into service: too many like it were abandoned."""
        if is_own(named) or len(self._abandoned) < MAX_ABANDONED:
            return None
        return (
            f"{len(self._abandoned)} policies were abandoned because they did not answer, and "
            "their threads still run: only Headway's own are taken until a restart"
        )

    def _pose(self, question: Question, now: float) -> _Open:
        policy = question.named.policy
        posed = _Open(question, now, self._abandoned.thread_of(policy))
        thread = threading.Thread(
            target=posed.work, name=f"policy {question.named.name}", daemon=True
        )
        self._open[id(policy)] = posed, thread
        thread.start()
        return posed

    def _collect(self, question: Question, now: float) -> Answer:
        key = id(question.named.policy)
        posed, _ = self._open[key]
        waited_s = now - posed.since
        # Looked at after the instant: an answer that is there is never called late.
        if posed.done.is_set():
            del self._open[key]
            told = posed.answer or Answer("failed", told="its thread ended without an answer")
            return Answer(told.state, told.proposal, told.told, waited_s)
        if waited_s < self._timeout_s():
            return Answer("slow", waited_s=max(waited_s, self._patience_s))
        self._give_up(key)
        return Answer("hung", waited_s=waited_s)

    def _forget(self, asked: set[int]) -> None:
        """Whoever is not asked any more is not waited for either."""
        for key in [key for key in self._open if key not in asked]:
            self._give_up(key)

    def _give_up(self, key: int) -> None:
        posed, thread = self._open.pop(key)
        self._abandoned.add(posed.question.named.policy, thread)


async def aside(call: Callable[[], T], *, timeout_s: float) -> T:
    """Call something that may take its time, in a thread of its own that dies with the process.

    Raises what it raises, and TimeoutError when it is not done in time; then nobody hears of it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # there is no error, so it is a T

    def work() -> None:
        result: T | None = None
        error: Exception | None = None
        try:
            result = call()
        except BaseException as raised:
            # A future takes no StopIteration, and the rest is made to end more than this call.
            if isinstance(raised, Exception) and not isinstance(raised, StopIteration):
                error = raised
            else:
                error = RuntimeError(f"it would end the process: {raised!r}")
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the daemon has ended meanwhile

    threading.Thread(target=work, name="policy builder", daemon=True).start()
    return await asyncio.wait_for(future, timeout_s)
