"""What is told of a completion beside its text: the prompt before it, and log-probabilities."""

from __future__ import annotations

from typing import Any

from executor.contract import Logprobs
from gateway.answers import Kind
from gateway.logprobs import Account, ChatAccount, TextAccount
from gateway.preparing import Prepared


class Transcript:
    """The text of one choice, piece by piece, and the log-probabilities that belong to it.

    `stopped` says that a stop string was found: the text is complete, whatever tokens still come.
    """

    __slots__ = ("_account", "_echoed", "_is_silent", "_pieces")

    def __init__(self, kind: Kind, prepared: Prepared, number: int) -> None:
        """For a completion of the prompt with this number."""
        language = prepared.language
        pieces = language.detokeniser()
        prompt: list[int] = []
        self._echoed = ""
        if prepared.echoes:
            prompt, _ = prepared.prompts[number]
            given = prepared.echoes[number]
            # The completion goes on from there, in the middle of a character even.
            text = pieces.push(prompt)
            self._echoed = text if given is None else given
        self._pieces = prepared.stopping(pieces)
        self._is_silent = prepared.is_silent
        self._account: Account | None = None
        if prepared.sampling.logprobs is not None:
            texts = language.token_texts()
            self._account = (
                ChatAccount(texts)
                if kind == "chat"
                else TextAccount(texts, language.detokeniser(), prompt=prompt, echoed=self._echoed)
            )

    @property
    def stopped(self) -> bool:
        """See the class."""
        return self._pieces.stopped

    def push(self, ids: list[int], logprobs: Logprobs | None) -> tuple[str, int]:
        """The next tokens: what they add to the text, as far as it is certain, and how many of them
        are part of the answer."""
        if self._is_silent:
            ids, logprobs = [], logprobs and Logprobs([], logprobs.prompt)
        if self._account is not None and logprobs is not None:
            self._account.take(ids, logprobs)
        text, self._echoed = self._echoed, ""
        return text + self._pieces.push(ids), len(ids)

    def finish(self) -> str:
        """What was held back, now that no more tokens come."""
        return self._echoed + self._pieces.finish()

    def told(self) -> dict[str, Any] | None:
        """The log-probabilities since the last time, as JSON."""
        return None if self._account is None else self._account.drain()

    def reason(self, reason: str) -> str:
        """Why the text ends, where its last token came for this reason."""
        if self._is_silent:
            return "length"
        return "stop" if self.stopped else reason
