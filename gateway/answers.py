"""What an answer looks like on the wire: whole answers, and the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.json import encode

Kind = Literal["chat", "completion"]
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


# These records are made for every request; msgspec's cost a fifth of frozen dataclasses.
class Heading(msgspec.Struct, frozen=True):
    """What every part of one answer repeats. `created` is unix time in seconds."""

    kind: Kind
    id: str
    created: int
    model: str
    service_tier: str


class Usage(msgspec.Struct):
    """Tokens of one HTTP request: its prompts once each, however many choices they have. `more` is
    what an engine has to say beyond that."""

    prompt_tokens: int
    completion_tokens: int = 0
    more: dict[str, Any] = {}

    def to_json(self) -> dict[str, Any]:
        """As the API has it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            **self.more,
        }


class Choice(msgspec.Struct, frozen=True):
    """One completion that is done. `finish_reason` is "stop" or "length", or what an engine says
    that made the choice by itself: then `fields` are all of it but its index."""

    index: int
    text: str
    finish_reason: str
    fields: dict[str, Any] | None = None


def whole(heading: Heading, choices: Sequence[Choice], usage: Usage) -> bytes:
    """A whole answer as JSON."""
    return encode(
        {
            "id": heading.id,
            "object": "chat.completion" if heading.kind == "chat" else "text_completion",
            "created": heading.created,
            "model": heading.model,
            "service_tier": heading.service_tier,
            "choices": [_whole_choice(heading.kind, choice) for choice in choices],
            "usage": usage.to_json(),
        }
    )


class Chunks:
    """The events of one choice of a stream. What they repeat is serialised once.

    With `usage_follows`, every event but the last says `"usage": null`, as OpenAI's do.
    """

    __slots__ = ("_head", "_index", "_kind", "_tail", "text_after", "text_before")

    def __init__(self, heading: Heading, index: int, *, usage_follows: bool) -> None:
        self._kind = heading.kind
        self._index = index
        self._head = b"data: " + _head(heading)
        self._tail = b',"usage":null}\n\n' if usage_follows else b"}\n\n"
        before = '"delta":{"content":' if heading.kind == "chat" else '"text":'
        after = "}" if heading.kind == "chat" else ""
        self.text_before = self._head + f'[{{"index":{index},{before}'.encode()
        self.text_after = f'{after},"logprobs":null,"finish_reason":null}}]'.encode() + self._tail

    def role(self) -> bytes:
        """The first event of a chat; a text completion has none."""
        if self._kind != "chat":
            return b""
        return self._choice({"delta": {"role": "assistant", "content": ""}}, None)

    def text(self, text: str) -> bytes:
        """An event with more text."""
        return b"%b%b%b" % (self.text_before, encode(text), self.text_after)

    def passed(self, choice: dict[str, msgspec.Raw]) -> bytes:
        """An event with a choice that an engine wrote, as it is but for its index."""
        return self._head + encode([{**choice, "index": self._index}]) + self._tail

    def finish(self, reason: str) -> bytes:
        """The last event of the choice."""
        return self._choice({"delta": {}} if self._kind == "chat" else {"text": ""}, reason)

    def _choice(self, content: dict[str, Any], reason: str | None) -> bytes:
        choice = {"index": self._index, **content, "logprobs": None, "finish_reason": reason}
        return self._head + encode([choice]) + self._tail


def usage_event(heading: Heading, usage: Usage) -> bytes:
    """The event after the last choice, when the client asked for it."""
    return b'data: %b[],"usage":%b}\n\n' % (_head(heading), encode(usage.to_json()))


def error_event(error: bytes) -> bytes:
    """An error object as an event; nothing comes after it."""
    return b"data: %b\n\n" % error


def _head(heading: Heading) -> bytes:
    """An event up to the value of "choices"."""
    record = {
        "id": heading.id,
        "object": "chat.completion.chunk" if heading.kind == "chat" else "text_completion",
        "created": heading.created,
        "model": heading.model,
        "service_tier": heading.service_tier,
    }
    return encode(record)[:-1] + b',"choices":'


def _whole_choice(kind: Kind, choice: Choice) -> dict[str, Any]:
    if choice.fields is not None:
        return {"index": choice.index, **choice.fields}
    content: dict[str, Any] = (
        {"message": {"role": "assistant", "content": choice.text}}
        if kind == "chat"
        else {"text": choice.text}
    )
    return {
        "index": choice.index,
        **content,
        "logprobs": None,
        "finish_reason": choice.finish_reason,
    }
