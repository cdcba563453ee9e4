"""Where tokens go that have more to tell than their text: the sinks with a transcript."""

from __future__ import annotations

from controller.request import Ended, Outcome
from executor.contract import Logprobs
from gateway.answers import Choice, Chunks, Usage
from gateway.failures import failure_of
from gateway.gathering import Gathering
from gateway.siblings import Siblings
from gateway.streams import Channel
from gateway.transcript import Transcript


class AnnotatedChoice:
    """The sink of one choice of an answer that is sent whole."""

    __slots__ = ("_gathering", "_id", "_index", "_siblings", "_text", "_transcript", "_usage")

    def __init__(
        self,
        request_id: str,
        gathering: Gathering,
        *,
        siblings: Siblings,
        index: int,
        transcript: Transcript,
        usage: Usage,
    ) -> None:
        self._id = request_id
        self._gathering = gathering
        self._siblings = siblings
        self._index = index
        self._transcript = transcript
        self._usage = usage
        self._text = ""

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        """See Sink."""
        transcript = self._transcript
        if transcript.stopped:
            return
        text, counted = transcript.push(ids, logprobs)
        self._text += text
        self._usage.completion_tokens += counted
        if transcript.stopped:
            self._siblings.stop(self._id)

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is not Outcome.FINISHED:
            self._gathering.fail(failure_of(ended))
            return
        transcript = self._transcript
        text = self._text + transcript.finish()
        reason = transcript.reason(ended.reason)
        self._gathering.put(Choice(self._index, text, reason, transcript.told()))


class AnnotatedStream:
    """The sink of one choice of a stream: an event for all that comes together."""

    __slots__ = (
        "_begun",
        "_channel",
        "_chunks",
        "_id",
        "_late",
        "_siblings",
        "_transcript",
        "_usage",
    )

    def __init__(
        self,
        request_id: str,
        channel: Channel,
        *,
        siblings: Siblings,
        chunks: Chunks,
        transcript: Transcript,
        usage: Usage,
    ) -> None:
        self._id = request_id
        self._channel = channel
        self._siblings = siblings
        self._chunks = chunks
        self._transcript = transcript
        self._usage = usage
        self._begun = False
        self._late = b""

    def on_tokens(self, ids: list[int], now: float, logprobs: Logprobs | None = None) -> None:
        """See Sink."""
        transcript = self._transcript
        if transcript.stopped:
            return
        text, counted = transcript.push(ids, logprobs)
        self._usage.completion_tokens += counted
        self._send(self._event(text))
        if transcript.stopped:
            self._siblings.stop(self._id)

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is not Outcome.FINISHED:
            self._channel.fail(failure_of(ended))
            return
        events = self._late + self._event(self._transcript.finish())
        reason = self._transcript.reason(ended.reason)
        self._channel.finish(events + self._chunks.finish(reason))

    def _event(self, text: str) -> bytes:
        """What is new, after the beginning if that was not sent; empty where there is nothing."""
        told = self._transcript.told()
        event = self._chunks.annotated(text, told) if text or told else b""
        if self._begun:
            return event
        self._begun = True
        return self._chunks.role() + event

    def _send(self, event: bytes) -> None:
        channel = self._channel
        if channel.congested():
            self._late += event
            channel.hold(len(event))
            return
        if self._late:
            channel.hold(-len(self._late))
            event = self._late + event
            self._late = b""
        channel.write(event)
