"""The model's language: how chats and texts become token ids, and ids become text again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from controller.errors import InvalidRequest
from executor.contract import TextModel
from gateway.detokenise import ByteDetokeniser, Pieces, TokenDetokeniser
from gateway.template import ChatTemplate
from gateway.token_texts import ByteSpelling, TokenTexts, VocabularySpelling

# Spoken by the simulated executor, which has no template of its own.
_BYTES_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


class Language(Protocol):
    """What the gateway must be able to do with one model's text. `vocabulary` ids begin at 0."""

    vocabulary: int

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt of a chat. Raises InvalidRequest."""

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text; `special` adds what the tokenizer puts around a text by itself.

        A rendered chat brings its own beginning, so that `special` would double it.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole completion, without special tokens."""

    def detokeniser(self) -> Pieces:
        """A fresh one, for the tokens of one completion as they come."""

    def token_texts(self) -> TokenTexts:
        """Its tokens, one by one."""


class TokenLanguage:
    """A model with a `tokenizer.json`."""

    def __init__(self, model: TextModel) -> None:
        """Read the tokenizer: 0.1 s for 50,000 tokens, while it holds the GIL."""
        self._tokenizer = Tokenizer.from_str(model.tokenizer_json)
        # A tokenizer.json may ask for padding or truncation: both are the executor's business.
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._special = frozenset(
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        self._template = (
            None
            if model.chat_template is None
            else ChatTemplate(model.chat_template, model.special_tokens)
        )
        self._texts = TokenTexts(VocabularySpelling(self._tokenizer, model.tokenizer_json))
        self.vocabulary = self._tokenizer.get_vocab_size(with_added_tokens=True)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """See Language."""
        if self._template is None:
            raise InvalidRequest(
                "messages: this model has no chat template; use /v1/completions", param="messages"
            )
        return self._template.render(messages)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """See Language. Lets go of the GIL."""
        # `encode` holds the GIL throughout (0.2 s for 240,000 characters); the batch call lets it
        # go, and without offsets it is a quarter faster.
        found = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = found[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """See Language."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def detokeniser(self) -> Pieces:
        """See Language."""
        return TokenDetokeniser(self._tokenizer, self._special)

    def token_texts(self) -> TokenTexts:
        """See Language."""
        return self._texts


class ByteLanguage:
    """One token a UTF-8 byte; ids from 256 on have no text."""

    vocabulary = 257

    def __init__(self, model: TextModel) -> None:
        self._template = ChatTemplate(model.chat_template or _BYTES_TEMPLATE, model.special_tokens)
        self._texts = TokenTexts(ByteSpelling())

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """See Language."""
        return self._template.render(messages)

    def encode(self, text: str, *, special: bool) -> list[int]:
        """See Language."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """See Language."""
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def detokeniser(self) -> Pieces:
        """See Language."""
        return ByteDetokeniser()

    def token_texts(self) -> TokenTexts:
        """See Language."""
        return self._texts


class Languages:
    """The language of the model that is served now, read once for each model."""

    def __init__(self) -> None:
        self._model: TextModel | None = None
        self._language: Language | None = None

    def of(self, model: TextModel) -> Language:
        """The language of this model. The first call for a model takes a while."""
        # A worker that was started again hands over an equal model, not the same one.
        if self._language is None or (model is not self._model and model != self._model):
            self._language = (
                TokenLanguage(model) if model.kind == "tokenizers" else ByteLanguage(model)
            )
        self._model = model
        return self._language
