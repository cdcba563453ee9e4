"""Where the words of an engine go that writes text by itself: to the client, as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from controller.request import Ended, Outcome
from executor.contract import Said
from gateway.answers import Choice, Chunks, Kind, Usage
from gateway.failures import failure_of
from gateway.gathering import Gathering
from gateway.merging import whole_choice
from gateway.streams import Channel

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class Account:
    """The usage of one choice, as the engine counts it; as it was counted here where it does not.

    `first` says that its prompt is on its account, and `alone` that the whole answer is this one.
    """

    def __init__(
        self, usage: Usage, learn: Callable[[int], None], *, first: bool, alone: bool
    ) -> None:
        self._usage = usage
        self._learn = learn
        self._first = first
        self._alone = alone
        self._told: dict[str, msgspec.Raw] = {}

    def take(self, said: Said) -> None:
        """The latest counts."""
        if said.usage:
            self._told = said.usage

    def close(self, ended: Ended) -> None:
        """The choice is done."""
        told = {name: msgspec.json.decode(raw) for name, raw in self._told.items()}
        prompt, new = told.get("prompt_tokens"), told.get("completion_tokens")
        if isinstance(prompt, int) and self._first:
            self._learn(prompt)
        if self._first:
            length = len(ended.request.prompt)
            self._usage.prompt_tokens += prompt if isinstance(prompt, int) else length
        counted = len(ended.request.tokens)
        self._usage.completion_tokens += new if isinstance(new, int) else counted
        if self._alone:
            self._usage.more = {k: v for k, v in told.items() if k not in _COUNTS}


class PassedStream:
    """The sink of one choice of a stream."""

    __slots__ = ("_account", "_begun", "_channel", "_chunks", "_closing", "_late", "_late_bytes")

    def __init__(self, channel: Channel, *, chunks: Chunks, account: Account) -> None:
        self._channel = channel
        self._chunks = chunks
        self._account = account
        self._begun = False
        self._closing = False
        self._late: list[bytes] = []
        self._late_bytes = 0

    def on_tokens(self, ids: list[Said], now: float) -> None:
        """See Sink."""
        events = b""
        for said in ids:
            self._account.take(said)
            if said.choice:
                events += self._chunks.passed(said.choice)
                self._closing = self._closing or _closes(said)
        if events:
            self._send(events)

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is not Outcome.FINISHED:
            self._channel.fail(failure_of(ended))
            return
        self._account.close(ended)
        events = b"".join(self._late)
        if not self._begun:
            events = self._chunks.role() + events
        if not self._closing:
            events += self._chunks.finish(ended.reason)
        self._channel.finish(events)

    def _send(self, events: bytes) -> None:
        channel = self._channel
        if channel.congested():
            self._late.append(events)
            self._late_bytes += len(events)
            channel.hold(len(events))
            return
        if self._late:
            channel.hold(-self._late_bytes)
            events = b"".join([*self._late, events])
            self._late, self._late_bytes = [], 0
        if not self._begun:
            self._begun = True
            events = self._chunks.role() + events
        channel.write(events)


class PassedWhole:
    """The sink of one choice of an answer that is sent whole."""

    __slots__ = ("_account", "_chat", "_gathering", "_index", "_said")

    def __init__(self, gathering: Gathering, *, index: int, kind: Kind, account: Account) -> None:
        self._gathering = gathering
        self._index = index
        self._chat = kind == "chat"
        self._account = account
        self._said: list[dict[str, msgspec.Raw]] = []

    def on_tokens(self, ids: list[Said], now: float) -> None:
        """See Sink."""
        for said in ids:
            if said.begins:
                self._said.clear()
            self._account.take(said)
            if said.choice:
                self._said.append(said.choice)

    def on_end(self, ended: Ended) -> None:
        """See Sink."""
        if ended.outcome is not Outcome.FINISHED:
            self._gathering.fail(failure_of(ended))
            return
        self._account.close(ended)
        deltas: list[dict[str, Any]] = [
            {name: msgspec.json.decode(raw) for name, raw in choice.items()}
            for choice in self._said
        ]
        fields = whole_choice(deltas, chat=self._chat)
        reason = fields["finish_reason"] or ended.reason
        self._gathering.put(Choice(self._index, "", reason, fields | {"finish_reason": reason}))


def _closes(said: Said) -> bool:
    reason = said.choice.get("finish_reason")
    return reason is not None and bytes(reason) != b"null"
