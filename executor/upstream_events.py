"""What an engine's event stream says: events out of bytes, and what each of them means."""

from __future__ import annotations

from typing import Any

import msgspec

from executor.contract import Refusal

DONE = b"[DONE]"
_EMPTY = (b"null", b'""', b"[]", b"{}")
# What no engine writes on purpose: a line that never ends must not fill the memory.
MOST_BYTES = 16 * 2**20


class BadStream(Exception):
    """What came is no event stream of a completion; the message says what is wrong with it."""


class EventParser:
    """Server-sent events out of the bytes of a stream, however these are cut."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that these bytes complete. Raises BadStream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MOST_BYTES:
            raise BadStream(f"a line of more than {MOST_BYTES} bytes")
        events = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        return events

    def finish(self) -> list[bytes]:
        """The event that the end of the stream has cut short, if it is whole nevertheless."""
        return self.feed(b"\n\n")


class Chunk(msgspec.Struct):
    """One event of a completion. What it repeats of the whole answer is left out."""

    choices: list[dict[str, msgspec.Raw]] | None = None
    usage: dict[str, msgspec.Raw] | None = None
    error: Any = None
    object: str | None = None

    @property
    def finish_reason(self) -> str | None:
        """Why the completion is over; None: it goes on."""
        raw = self.choices[0].get("finish_reason") if self.choices else None
        reason = None if raw is None else msgspec.json.decode(raw)
        return reason if isinstance(reason, str) else None


class Counter:
    """Counts the tokens of one completion: by the engine's own word where it gives one with each
    event, else an event with text is one token."""

    def __init__(self) -> None:
        self.tokens = 0

    def take(self, chunk: Chunk) -> int:
        """How many tokens came with this event."""
        told = None if chunk.usage is None else number(chunk.usage.get("completion_tokens"))
        if told is not None:
            new = max(0, told - self.tokens)
        else:
            new = int(_has_token(chunk.choices[0])) if chunk.choices else 0
        self.tokens += new
        return new


def parse(data: bytes) -> Chunk:
    """One event. Raises BadStream."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadStream(f"{data[:80]!r} is no event of a completion: {error}") from error


def only_greets(choice: dict[str, msgspec.Raw]) -> bool:
    """Whether it says who speaks, and nothing yet."""
    delta = _delta(choice)
    return delta is not None and "role" in delta and not _has_content(delta)


def number(raw: msgspec.Raw | None) -> int | None:
    """A count as JSON; None where it is none."""
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    return value if isinstance(value, int) and value >= 0 else None


def refusal(status: int, body: bytes) -> Refusal:
    """An engine's error, in whichever of the usual forms it is."""
    try:
        record: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        record = body.decode(errors="replace").strip()[:500]
    if isinstance(record, dict):
        # OpenAI's {"error": {...}}, TGI's {"error": "..."}, FastAPI's {"detail": ...}, or bare.
        record = record.get("error") or record.get("detail") or record
    if not isinstance(record, dict):
        text = record if isinstance(record, str) else msgspec.json.encode(record).decode()
        return Refusal(status, text or f"the engine answered {status}")
    code = record.get("code")
    return Refusal(
        status,
        str(record.get("message") or f"the engine answered {status}"),
        type=str(record.get("type") or "invalid_request_error"),
        code=None if code is None else str(code),
        param=record["param"] if isinstance(record.get("param"), str) else None,
    )


def _has_token(choice: dict[str, msgspec.Raw]) -> bool:
    """An event without text is a token that has none, unless it only begins or ends something."""
    ends = bytes(choice.get("finish_reason", msgspec.Raw(b"null"))) != b"null"
    delta = _delta(choice)
    if delta is not None:
        return _has_content(delta) or not (ends or "role" in delta)
    return bytes(choice.get("text", msgspec.Raw(b'""'))) not in _EMPTY or not ends


def _delta(choice: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw] | None:
    raw = choice.get("delta")
    if raw is None:
        return None
    try:
        return _delta_decoder.decode(raw)
    except msgspec.DecodeError:
        return {}


def _has_content(delta: dict[str, msgspec.Raw]) -> bool:
    return any(name != "role" and bytes(raw) not in _EMPTY for name, raw in delta.items())


_decoder = msgspec.json.Decoder(Chunk)
_delta_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
