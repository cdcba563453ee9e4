"""What single tokens are called and which bytes they stand for, as log-probabilities name them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Protocol

import msgspec
from tokenizers import Tokenizer

_REMEMBERED = 32_768
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Spelling(Protocol):
    """How one vocabulary writes its tokens: half a character is a token, too."""

    def bytes_of(self, token: int) -> bytes | None:
        """What it adds to a text; None where it adds nothing, as special tokens do."""

    def name_of(self, token: int) -> str:
        """What a token without bytes is called."""


class TokenTexts:
    """The tokens of one vocabulary as answers have them. Those that come often are remembered."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self.told = lru_cache(_REMEMBERED)(self._told)
        self.named = lru_cache(_REMEMBERED)(self._named)

    def _told(self, token: int) -> tuple[str, list[int] | None]:
        """Text and bytes of a token; no bytes where it adds nothing to a text."""
        data = self._spelling.bytes_of(token)
        if data is None:
            return self._spelling.name_of(token), None
        return _read(data), list(data)

    def _named(self, token: int) -> str:
        """The text of a token where its bytes are not told: no two others have the same."""
        data = self._spelling.bytes_of(token)
        return self._spelling.name_of(token) if data is None else _read(data, prefix="bytes:")


class VocabularySpelling:
    """Those of a `tokenizer.json`.

    Read from the form that tokens have in the vocabulary, since decoding one alone loses the space
    in front of it or the half of a character that it is.
    """

    def __init__(self, tokenizer: Tokenizer, tokenizer_json: str) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        steps = _steps(msgspec.json.decode(tokenizer_json, type=_File).decoder)
        kinds = {step.get("type") for step in steps}
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else {}
        self._falls_back = "ByteFallback" in kinds
        self._spaces = [
            (step.get("replacement", "▁"), " ") for step in steps if step.get("type") == "Metaspace"
        ] + [
            (step["pattern"]["String"], step["content"])
            for step in steps
            if step.get("type") == "Replace" and "String" in step["pattern"]
        ]

    def bytes_of(self, token: int) -> bytes | None:
        """See Spelling."""
        if (added := self._added.get(token)) is not None:
            return None if added.special else added.content.encode()
        written = self._tokenizer.id_to_token(token)
        if written is None:
            return None
        if self._alphabet:
            return b"".join(self._alphabet.get(char) or char.encode() for char in written)
        if self._falls_back and (found := _BYTE_TOKEN.fullmatch(written)):
            return bytes.fromhex(found[1])
        for pattern, content in self._spaces:
            written = written.replace(pattern, content)
        return written.encode()

    def name_of(self, token: int) -> str:
        """See Spelling."""
        return self._tokenizer.id_to_token(token) or f"<{token}>"


class ByteSpelling:
    """Tokens that are bytes; ids from 256 on have no text."""

    def bytes_of(self, token: int) -> bytes | None:
        """See Spelling."""
        return bytes((token,)) if token < 256 else None

    def name_of(self, token: int) -> str:
        """See Spelling."""
        return f"<{token}>"


def _read(data: bytes, *, prefix: str = "") -> str:
    """Bytes as text; where they are no whole characters, after `prefix` as `\\xe4\\xbd`, as OpenAI
    writes them, so that different tokens are told apart."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in data)


class _File(msgspec.Struct):
    """The part of a `tokenizer.json` that says how its tokens are written."""

    decoder: dict[str, Any] | None = None


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder["decoders"] for step in _steps(part)]
    return [decoder]


def _byte_alphabet() -> dict[str, bytes]:
    """The byte that each character stands for in byte-level vocabularies (Radford et al., 2019):
    itself where it can be seen, else the next one from U+0100 on stands for it."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    shown = {chr(byte): byte for byte in visible}
    shown |= {chr(0x100 + place): byte for place, byte in enumerate(hidden)}
    return {char: bytes((byte,)) for char, byte in shown.items()}
