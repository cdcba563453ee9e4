"""What it takes to make a body into prompts: template and tokeniser, on the loop or beside it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import msgspec

from executor.contract import Capacity, Sampling, TextModel
from gateway.bodies import Body, ChatBody, CompletionBody
from gateway.detokenise import Pieces, StoppingText
from gateway.parameters import check_supported, echoes, sampling_of, stops_of, wanted_tokens
from gateway.prompts import chat_messages, fitted, prompts_of
from gateway.text import Language, Languages

# Up to here a prompt is tokenised on the event loop: 1,000 bytes take 0.3 to 0.7 ms there, while
# a thread costs 0.02 to 0.08 ms more for the way there and back. A longer one would hold up the
# tokens of every stream.
_INLINE_BYTES = 1000
_THREADS = 2


class Prompt(msgspec.Struct, frozen=True):
    """The ids of a prompt, how many tokens may follow it, and the text that all of it was given as;
    None where it was ids, or only its end is left."""

    ids: list[int]
    new_tokens: int
    text: str | None = None


class Prepared(msgspec.Struct, frozen=True):
    """What goes to the desk, and how its completions become text.

    `echoes`: the prompt is part of the text. `is_silent`: what is generated is not.
    """

    language: Language
    prompts: list[Prompt]
    sampling: Sampling
    stops: tuple[str, ...]
    echoes: bool = False
    is_silent: bool = False

    @property
    def is_annotated(self) -> bool:
        """Whether there is more to tell than the text of the completion."""
        return self.echoes or self.sampling.logprobs is not None

    def pieces(self) -> Pieces:
        """For the text of one completion."""
        return self.stopping(self.language.detokeniser())

    def stopping(self, pieces: Pieces) -> Pieces:
        """These, as far as the stop strings let them."""
        if not self.stops:
            return pieces
        return StoppingText(pieces, self.stops, min_tokens=self.sampling.min_tokens)


class Preparer:
    """Makes bodies into prompts of the model that is served."""

    def __init__(self) -> None:
        self._languages = Languages()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokenise")

    def learn(self, model: TextModel) -> Language:
        """Read the language of a model; otherwise its first request waits for that."""
        return self._languages.of(model)

    async def close(self, _app: object) -> None:
        """Let the threads go, when the application is cleaned up."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def prepare(
        self, body: Body, model: TextModel, *, capacity: Capacity, size: int
    ) -> Prepared:
        """Check, render and tokenise a body of `size` bytes. Raises InvalidRequest and its kin."""
        check_supported(body, capacity.features)
        stops = stops_of(body)
        language = self._languages.of(model)
        window = min(capacity.max_context_tokens, capacity.kv_tokens)
        if size <= _INLINE_BYTES:
            prompts = _tokenise(body, language, window)
        else:
            loop = asyncio.get_running_loop()
            prompts = await loop.run_in_executor(self._threads, _tokenise, body, language, window)
        sampling = sampling_of(
            body,
            capacity.features,
            max_new_tokens=min(prompt.new_tokens for prompt in prompts),
            vocabulary=language.vocabulary,
        )
        return Prepared(
            language,
            prompts,
            sampling,
            stops,
            echoes=echoes(body),
            is_silent=wanted_tokens(body) == 0,
        )


def _tokenise(body: Body, language: Language, window: int) -> list[Prompt]:
    if isinstance(body, ChatBody):
        # A rendered chat has its own first token; the tokenizer would add a second one.
        ids = language.encode(language.render(chat_messages(body.messages)), special=False)
        return [Prompt(*fitted(ids, body, window))]
    assert isinstance(body, CompletionBody)
    prompts = []
    for given in prompts_of(body, language.vocabulary):
        ids = language.encode(given, special=True) if isinstance(given, str) else given
        kept, new_tokens = fitted(ids, body, window)
        text = given if isinstance(given, str) and len(kept) == len(ids) else None
        prompts.append(Prompt(kept, new_tokens, text))
    return prompts
