"""What it takes to make a body into prompts: template and tokeniser, on the loop or beside it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from executor.contract import Capacity, Sampling, TextModel
from gateway.bodies import Body, ChatBody, CompletionBody
from gateway.detokenise import Pieces, StoppingText
from gateway.forwarding import Forwarded, Guess, forward
from gateway.parameters import check_supported, sampling_of, stops_of, wanted_tokens
from gateway.prompts import chat_messages, fitted, prompts_of
from gateway.text import Language, Languages

# Up to here a prompt is tokenised on the event loop: 1,000 bytes take 0.3 to 0.7 ms there, while
# a thread costs 0.02 to 0.08 ms more for the way there and back. A longer one would hold up the
# tokens of every stream.
_INLINE_BYTES = 1000
_THREADS = 2


class Prepared(msgspec.Struct, frozen=True):
    """What goes to the desk: each prompt with its number of new tokens, and how to complete it."""

    language: Language
    prompts: list[tuple[list[int], int]]
    sampling: Sampling
    stops: tuple[str, ...]
    unbounded: bool

    def pieces(self) -> Pieces:
        """For the text of one completion."""
        pieces = self.language.detokeniser()
        if not self.stops:
            return pieces
        return StoppingText(pieces, self.stops, min_tokens=self.sampling.min_tokens)


class Preparer:
    """Makes bodies into prompts of the model that is served."""

    def __init__(self) -> None:
        self._languages = Languages()
        self._guess = Guess()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenise")

    def learn(self, model: TextModel) -> None:
        """Read the language of a model; otherwise its first request waits for that."""
        if model.kind != "engine":
            self._languages.of(model)

    async def close(self, _app: object) -> None:
        """Let the threads go, when the application is cleaned up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def prepare(
        self, body: Body, model: TextModel, *, capacity: Capacity, raw: bytes
    ) -> Prepared | Forwarded:
        """Check, render and tokenise a body that was read from `raw`; an engine that does so itself
        gets it as it is. Raises InvalidRequest and its kin."""
        if model.kind == "engine":
            return forward(body, raw, capacity=capacity, guess=self._guess)
        check_supported(body, capacity.features)
        stops = stops_of(body)
        language = self._languages.of(model)
        window = min(capacity.max_context_tokens, capacity.kv_tokens)
        if len(raw) <= _INLINE_BYTES:
            prompts = _tokenise(body, language, window)
        else:
            loop = asyncio.get_running_loop()
            prompts = await loop.run_in_executor(self._threads, _tokenise, body, language, window)
        shortest = min(new_tokens for _, new_tokens in prompts)
        sampling = sampling_of(body, capacity.features, max_new_tokens=shortest)
        return Prepared(language, prompts, sampling, stops, wanted_tokens(body) is None)


def _tokenise(body: Body, language: Language, window: int) -> list[tuple[list[int], int]]:
    if isinstance(body, ChatBody):
        # A rendered chat has its own first token; the tokenizer would add a second one.
        ids = language.encode(language.render(chat_messages(body.messages)), special=False)
        return [fitted(ids, body, window)]
    assert isinstance(body, CompletionBody)
    return [
        fitted(
            language.encode(prompt, special=True) if isinstance(prompt, str) else prompt,
            body,
            window,
        )
        for prompt in prompts_of(body, language.vocabulary)
    ]
