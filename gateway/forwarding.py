"""What an engine that reads text by itself is asked, and how long its prompts are thought to be."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from executor.contract import Ask, Capacity, Sampling
from gateway.bodies import Body, ChatBody, CompletionBody
from gateway.parameters import clip_seed

# Until an engine has said how long some prompts were: English in most vocabularies.
TOKENS_A_CHAR = 0.25
# What has been learnt halves after so many requests: languages come and go.
HALF_LIFE = 200
# What a chat's template puts around a message.
MESSAGE_CHARS = 16
# Addressed to this server, or set by whoever talks to the engine.
_NOT_PASSED = ("n", "stream", "stream_options", "service_tier", "model")
_CHAT_PATH, _TEXT_PATH = "/v1/chat/completions", "/v1/completions"


class Guess:
    """How many tokens a prompt of so many characters has, learnt from what engines count."""

    def __init__(self) -> None:
        self._chars = 1000.0
        self._tokens = TOKENS_A_CHAR * self._chars

    def tokens(self, chars: int) -> int:
        """A guess, at least 1."""
        return max(1, round(chars * self._tokens / self._chars))

    def learn(self, chars: int, tokens: int) -> None:
        """A prompt of so many characters had so many tokens."""
        keep = 0.5 ** (1 / HALF_LIFE)
        # Long prompts say more than short ones, but not more than dozens of them.
        weight = min(1.0, 4000 / max(1, chars))
        self._chars = keep * self._chars + weight * chars
        self._tokens = keep * self._tokens + weight * tokens


class Forwarded(msgspec.Struct, frozen=True):
    """What goes to the desk: what the engine gets for each choice, each prompt as long as it is
    thought to be with its number of new tokens, and who hears how long it really was."""

    asks: list[Ask]
    prompts: list[tuple[range, int]]
    learn: list[Callable[[int], None]]
    unbounded: bool
    sampling: Sampling = Sampling()


def forward(body: Body, raw: bytes, *, capacity: Capacity, guess: Guess) -> Forwarded:
    """Take a body, whose bytes are `raw`, apart into its choices. What is right in it is for the
    engine to say."""
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    kept = {name: value for name, value in fields.items() if name not in _NOT_PASSED}
    window, wanted = min(capacity.max_context_tokens, capacity.kv_tokens), _wanted(body)
    path = _CHAT_PATH if isinstance(body, ChatBody) else _TEXT_PATH
    made = Forwarded([], [], [], wanted is None)
    for prompt, chars, known in _prompts(body, fields):
        length = guess.tokens(chars) if known is None else known
        # A guess turns nobody away: the engine counts for itself.
        length = min(length, max(1, window - (wanted or 1)))
        made.prompts.append((range(length), min(wanted or window, max(1, window - length))))
        made.learn.append(partial(_learn, guess, chars, known))
        for _ in range(body.n or 1):
            one = kept if prompt is None else {**kept, "prompt": prompt}
            if body.seed is not None and made.asks:
                seed = clip_seed(body.seed + len(made.asks))
                one = {**one, "seed": msgspec.Raw(msgspec.json.encode(seed))}
            made.asks.append(Ask(path, one))
    return made


def _wanted(body: Body) -> int | None:
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens


def _prompts(
    body: Body, fields: dict[str, msgspec.Raw]
) -> list[tuple[msgspec.Raw | None, int, int | None]]:
    """Each prompt: in place of what is there if that is several, its characters, and its tokens
    where they are known."""
    if isinstance(body, ChatBody):
        chars = sum(_chars(message.get("content")) + MESSAGE_CHARS for message in body.messages)
        return [(None, chars + len(bytes(fields.get("tools", msgspec.Raw(b"")))), None)]
    assert isinstance(body, CompletionBody)
    if isinstance(body.prompt, str) or not body.prompt or isinstance(body.prompt[0], int):
        return [(None, *_size(body.prompt))]
    raws = msgspec.json.decode(fields["prompt"], type=list[msgspec.Raw])
    return [(raw, *_size(one)) for raw, one in zip(raws, body.prompt, strict=True)]


def _size(prompt: Any) -> tuple[int, int | None]:
    if isinstance(prompt, str):
        return len(prompt), None
    return 0, max(1, len(prompt)) if isinstance(prompt, list) else 1


def _chars(content: Any) -> int:
    """Of a message; what is no text is the engine's to count."""
    if isinstance(content, str):
        return len(content)
    if not isinstance(content, list):
        return 0
    texts = (part.get("text") for part in content if isinstance(part, dict))
    return sum(len(text) for text in texts if isinstance(text, str))


def _learn(guess: Guess, chars: int, known: int | None, tokens: int) -> None:
    if known is None and chars > 0 and tokens > 0:
        guess.learn(chars, tokens)
