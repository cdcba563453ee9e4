"""Log-probabilities as the API has them: one form for chats, another one for text completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from executor.contract import Logprobs, TokenLogprob
from gateway.detokenise import Pieces
from gateway.token_texts import TokenTexts

# JSON has no infinity; OpenAI writes this where a token is next to impossible.
_LEAST = -9999.0


class Account(Protocol):
    """The log-probabilities of one choice."""

    def take(self, ids: Sequence[int], logprobs: Logprobs) -> None:
        """Those of the next tokens of its completion."""

    def drain(self) -> dict[str, Any] | None:
        """What was taken since the last time, as JSON; None where that is nothing."""


class ChatAccount:
    """A chat's: an object for each token, with its bytes."""

    def __init__(self, texts: TokenTexts) -> None:
        self._texts = texts
        self._content: list[dict[str, Any]] = []

    def take(self, ids: Sequence[int], logprobs: Logprobs) -> None:
        """See Account."""
        for token, told in zip(ids, logprobs.tokens, strict=True):
            top = [self._entry(other, value) for other, value in told.top]
            self._content.append(self._entry(token, told.logprob) | {"top_logprobs": top})

    def drain(self) -> dict[str, Any] | None:
        """See Account."""
        content, self._content = self._content, []
        return {"content": content, "refusal": None} if content else None

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        name, data = self._texts.told(token)
        return {"token": name, "logprob": max(logprob, _LEAST), "bytes": data}


class TextAccount:
    """A text completion's: columns, with the place in the text where each token begins.

    `pieces` is a fresh detokeniser, which tells how far each goes; `prompt` are the ids of a prompt
    that the text begins with, as `echoed`.
    """

    def __init__(
        self, texts: TokenTexts, pieces: Pieces, *, prompt: Sequence[int] = (), echoed: str = ""
    ) -> None:
        self._texts = texts
        self._pieces = pieces
        self._prompt = prompt
        self._echoed = len(echoed)
        self._length = 0
        self._empty()

    def take(self, ids: Sequence[int], logprobs: Logprobs) -> None:
        """See Account."""
        if self._prompt:
            prompt, self._prompt = self._prompt, ()
            self._add(prompt[0], None)
            for token, one in zip(prompt[1:], logprobs.prompt, strict=True):
                self._add(token, one)
            # Its ids need not spell it as it was written.
            self._length = self._echoed
        for token, one in zip(ids, logprobs.tokens, strict=True):
            self._add(token, one)

    def drain(self) -> dict[str, Any] | None:
        """See Account."""
        columns = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops,
            "text_offset": self._places,
        }
        self._empty()
        return columns if columns["tokens"] else None

    def _empty(self) -> None:
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._places: list[int] = []

    def _add(self, token: int, told: TokenLogprob | None) -> None:
        name = self._texts.named(token)
        self._tokens.append(name)
        self._places.append(self._length)
        self._length += len(self._pieces.push([token]))
        if told is None:
            self._logprobs.append(None)
            self._tops.append(None)
            return
        own = max(told.logprob, _LEAST)
        top: dict[str, float] = {}
        # The likelier one, where two tokens are written alike.
        for other, value in told.top:
            top.setdefault(self._texts.named(other), max(value, _LEAST))
        top.setdefault(name, own)
        self._logprobs.append(own)
        self._tops.append(top)
