"""What text new tokens add: never half a character, never a stop string, not even its beginning."""

from __future__ import annotations

import codecs
from typing import Protocol

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

# A character has at most four bytes, so at most four tokens. What stays undecided for longer is
# not text at all, and decoding it again with every token would cost ever more.
_MAX_UNDECIDED = 64


class Pieces(Protocol):
    """The text of one completion, piece by piece. The pieces make up the whole.

    `stopped` says that a stop string was found: the text is complete, whatever tokens still come.
    """

    stopped: bool

    def push(self, ids: list[int]) -> str:
        """What these tokens add, as far as it is certain."""

    def finish(self) -> str:
        """What was held back, now that no more tokens come."""


class TokenDetokeniser:
    """On top of `tokenizers.decoders.DecodeStream`, which takes 0.7 us a token."""

    __slots__ = ("_last", "_special", "_step", "_tokenizer", "_undecided", "stopped")

    def __init__(self, tokenizer: Tokenizer, special: frozenset[int]) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._special = special
        self._step = DecodeStream(skip_special_tokens=True).step
        self._last: list[int] = []
        self._undecided: list[int] = []

    def push(self, ids: list[int]) -> str:
        """See Pieces."""
        try:
            piece = self._step(self._tokenizer, ids)
        except Exception:  # the library knows no narrower one for bytes that contradict its state
            return self._begin_again(ids)
        if piece is None:
            self._undecided += ids
            return "" if len(self._undecided) <= _MAX_UNDECIDED else self._begin_again([])
        self._last = self._undecided + ids if self._undecided else ids
        self._undecided = []
        return piece

    def finish(self) -> str:
        """See Pieces."""
        tail, self._undecided = self._undecided, []
        # An end-of-sequence token stays undecided, too: it has no text.
        if all(token in self._special for token in tail):
            return ""
        # In front of them stand the tokens before, since some decoders treat a first one apart.
        before = self._tokenizer.decode(self._last, skip_special_tokens=True)
        both = self._tokenizer.decode(self._last + tail, skip_special_tokens=True)
        return both[len(before) :]

    def _begin_again(self, ids: list[int]) -> str:
        self._undecided += ids
        piece = self.finish()
        self._step = DecodeStream(skip_special_tokens=True).step
        self._last = []
        return piece


class ByteDetokeniser:
    """One token a byte."""

    __slots__ = ("_decoder", "stopped")

    def __init__(self) -> None:
        self.stopped = False
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: list[int]) -> str:
        """See Pieces."""
        return self._decoder.decode(bytes(token for token in ids if token < 256))

    def finish(self) -> str:
        """See Pieces."""
        return self._decoder.decode(b"", final=True)


class StoppingText:
    """Lets text through up to the first stop string; holds back only what could begin one.

    The first `min_tokens` tokens are let through as they are.
    """

    __slots__ = ("_free", "_held", "_pieces", "_stops", "stopped")

    def __init__(self, pieces: Pieces, stops: tuple[str, ...], *, min_tokens: int) -> None:
        self.stopped = False
        self._pieces = pieces
        self._stops = stops
        self._free = min_tokens
        self._held = ""

    def push(self, ids: list[int]) -> str:
        """See Pieces."""
        text = self._pieces.push(ids)
        if self._free > 0:
            self._free -= len(ids)
            return text
        return self._filter(text)

    def finish(self) -> str:
        """See Pieces."""
        if self.stopped:
            return ""
        text = self._filter(self._pieces.finish())
        held, self._held = self._held, ""
        return text + held

    def _filter(self, text: str) -> str:
        if self.stopped or not text:
            return ""
        text = self._held + text
        cuts = [cut for stop in self._stops if (cut := text.find(stop)) >= 0]
        if cuts:
            self.stopped = True
            self._held = ""
            return text[: min(cuts)]
        keep = len(text) - max(_beginning(text, stop) for stop in self._stops)
        self._held = text[keep:]
        return text[:keep]


def _beginning(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, shorter than `stop`."""
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
