"""Where tokens go when an answer is sent whole: the choices are gathered until the last is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller.errors import HeadwayError
from controller.request import Ended, Outcome
from executor.contract import Logprobs
from gateway.answers import Choice, Usage
from gateway.detokenise import Pieces
from gateway.failures import failure_of
from gateway.siblings import Siblings


class Gathering:
    """The choices of one answer. `done` gets them all in order, or fails with the first failure."""

    __slots__ = ("_choices", "_expected", "_siblings", "done")

    def __init__(self, siblings: Siblings, choices: int) -> None:
        self.done: asyncio.Future[list[Choice]] = asyncio.get_running_loop().create_future()
        self._choices: list[Choice] = []
        self._siblings = siblings
        self._expected = choices

    def put(self, choice: Choice) -> None:
        """One more is done."""
        self._choices.append(choice)
        if len(self._choices) == self._expected and not self.done.done():
            self.done.set_result(sorted(self._choices, key=lambda one: one.index))

    def fail(self, error: HeadwayError) -> None:
        """One failed, and so does the answer."""
        if not self.done.done():
            self.done.set_exception(error)
            self._siblings.cancel("sibling_failed")

    def abandon(self) -> None:
        """Nobody waits any more: whatever comes is dropped."""
        self.done.cancel()


class WholeChoice:
    """The sink of one choice: nothing but keep the tokens, then make a text of all at once."""

    __slots__ = ("_decode", "_gathering", "_ids", "_index", "_usage")

    def __init__(
        self, gathering: Gathering, *, index: int, decode: Callable[[list[int]], str], usage: Usage
    ) -> None:
        self._gathering = gathering
        self._index = index
        self._decode = decode
        self._usage = usage
        self._ids: list[int] = []

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        """See Sink."""
        self._ids += ids

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is Outcome.FINISHED:
            self._usage.completion_tokens += len(self._ids)
            self._gathering.put(Choice(self._index, self._decode(self._ids), ended.reason))
        else:
            self._gathering.fail(failure_of(ended))


class StoppingChoice:
    """The sink of one choice with stop strings, which have to be looked for in every new text."""

    __slots__ = ("_gathering", "_id", "_index", "_pieces", "_siblings", "_text", "_usage")

    def __init__(
        self,
        request_id: str,
        gathering: Gathering,
        *,
        siblings: Siblings,
        index: int,
        pieces: Pieces,
        usage: Usage,
    ) -> None:
        self._id = request_id
        self._gathering = gathering
        self._siblings = siblings
        self._index = index
        self._pieces = pieces
        self._usage = usage
        self._text = ""

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        """See Sink."""
        pieces = self._pieces
        if pieces.stopped:
            return
        self._usage.completion_tokens += len(ids)
        self._text += pieces.push(ids)
        if pieces.stopped:
            self._siblings.stop(self._id)

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is Outcome.FINISHED:
            text = self._text + self._pieces.finish()
            # Its last token may have been its last one anyway.
            reason = "stop" if self._pieces.stopped else ended.reason
            self._gathering.put(Choice(self._index, text, reason))
        else:
            self._gathering.fail(failure_of(ended))
