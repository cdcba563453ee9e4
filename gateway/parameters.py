"""What the parameters of a body ask for, once their values are checked against what can be done."""

from __future__ import annotations

import random
import re
from operator import attrgetter
from typing import Any

from controller.errors import InvalidRequest, UnsupportedParameter
from executor.contract import Feature, Sampling
from gateway.bodies import Body, ChatBody, CompletionBody

_MAX_STOPS = 4
# Every new piece of text is compared with the beginnings of every stop string.
_MAX_STOP_CHARS = 1024
_COMPLETION_TOKENS = 16  # OpenAI's default for text completions
_SEED_BITS = 63
_MAX_BIASES = 300
_TOKEN_ID = re.compile(r"[0-9]{1,9}")

# What needs a feature, and the values beside null that ask for nothing: those are fine anywhere.
_NEEDS: tuple[tuple[str, Feature, tuple[Any, ...]], ...] = (
    ("temperature", Feature.TEMPERATURE, (0, 1)),
    ("top_p", Feature.TOP_P, (1,)),
    ("top_k", Feature.TOP_K, (0, -1)),
    ("min_p", Feature.MIN_P, (0,)),
    ("seed", Feature.SEED, ()),
    ("min_tokens", Feature.MIN_TOKENS, (0,)),
    ("ignore_eos", Feature.IGNORE_EOS, (False,)),
    ("stop_token_ids", Feature.STOP_TOKEN_IDS, ([],)),
    ("presence_penalty", Feature.PENALTIES, (0,)),
    ("frequency_penalty", Feature.PENALTIES, (0,)),
    ("repetition_penalty", Feature.PENALTIES, (1,)),
    ("logit_bias", Feature.LOGIT_BIAS, ({},)),
)
_CHAT_NEEDS = (
    *_NEEDS,
    ("logprobs", Feature.LOGPROBS, (False,)),
    ("top_logprobs", Feature.LOGPROBS, (0,)),
)
_CHAT_VALUES = attrgetter(*(name for name, _, _ in _CHAT_NEEDS))
_COMPLETION_VALUES = attrgetter(*(name for name, _, _ in _NEEDS))


def check_supported(body: Body, features: frozenset[Feature]) -> None:
    """Raise UnsupportedParameter for what this executor, or this server, cannot honour."""
    if isinstance(body, ChatBody):
        needs, values = _CHAT_NEEDS, _CHAT_VALUES(body)
    else:
        needs, values = _NEEDS, _COMPLETION_VALUES(body)
    for value, (name, feature, neutral) in zip(values, needs, strict=True):
        if value is not None and value not in neutral and feature not in features:
            hint = ", ".join(map(repr, neutral))
            _refuse(name, value, f"leave it out{f' or set it to {hint}' if hint else ''}")
    if isinstance(body, ChatBody):
        _check_chat(body)
    elif isinstance(body, CompletionBody):
        _check_completion(body, features)


def sampling_of(
    body: Body, features: frozenset[Feature], *, max_new_tokens: int, vocabulary: int
) -> Sampling:
    """How tokens are chosen. Without a seed one is drawn, so that a resume continues the same.

    Raises InvalidRequest.
    """
    min_tokens = body.min_tokens or 0
    if min_tokens > max_new_tokens:
        raise InvalidRequest(
            f"min_tokens: {min_tokens} is more than the {max_new_tokens} tokens that may come",
            param="min_tokens",
        )
    # An executor that can only take the likeliest token does that for the default of 1, too.
    temperature = 1.0 if body.temperature is None else body.temperature
    seed = random.getrandbits(_SEED_BITS) if body.seed is None else body.seed
    logprobs = logprobs_of(body)
    return Sampling(
        temperature=temperature if Feature.TEMPERATURE in features else 0.0,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        seed=clip_seed(seed),
        min_tokens=min_tokens,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty or 1.0,
        min_p=body.min_p or 0.0,
        logit_bias=_biases(body.logit_bias or {}, vocabulary),
        logprobs=logprobs,
        prompt_logprobs=logprobs is not None
        and isinstance(body, CompletionBody)
        and bool(body.echo),
    )


def logprobs_of(body: Body) -> int | None:
    """How many of the likeliest tokens are to be told beside each; None where none are, nor its own
    log-probability."""
    if isinstance(body, ChatBody):
        return (body.top_logprobs or 0) if body.logprobs else None
    assert isinstance(body, CompletionBody)
    # Here 0 asks for the log-probabilities of the chosen tokens; only false and null do not.
    return None if body.logprobs is None or body.logprobs is False else int(body.logprobs)


def clip_seed(seed: int) -> int:
    """A seed as executors take them: 0 up to 2**63 - 1."""
    return seed & ((1 << _SEED_BITS) - 1)


def stops_of(body: Body) -> tuple[str, ...]:
    """The stop strings. Raises InvalidRequest."""
    if body.stop is None:
        return ()
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if len(stops) > _MAX_STOPS:
        raise InvalidRequest(
            f"stop: {len(stops)} stop strings, use up to {_MAX_STOPS}", param="stop"
        )
    for stop in stops:
        if not 1 <= len(stop) <= _MAX_STOP_CHARS:
            raise InvalidRequest(
                f"stop: a stop string of {len(stop)} characters, use 1 to {_MAX_STOP_CHARS}",
                param="stop",
            )
    return stops


def wanted_tokens(body: Body) -> int | None:
    """How many tokens the client lets come at most; None where it does not say."""
    if isinstance(body, CompletionBody):
        return _COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        return body.max_completion_tokens
    return body.max_tokens


def _check_chat(body: ChatBody) -> None:
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs, set that to true", param="top_logprobs")
    if body.tools and body.tool_choice != "none":
        _refuse("tools", "...", 'leave it out or set tool_choice to "none"')
    if body.functions and body.function_call != "none":
        _refuse("functions", "...", 'leave it out or set function_call to "none"')
    kind = (body.response_format or {}).get("type", "text")
    if kind != "text":
        _refuse("response_format", kind, 'leave it out or ask for {"type": "text"}')


def _check_completion(body: CompletionBody, features: frozenset[Feature]) -> None:
    if logprobs_of(body) is not None:
        if Feature.LOGPROBS not in features:
            _refuse("logprobs", body.logprobs, "leave it out")
        if body.echo and Feature.ECHO not in features:
            _refuse("echo", "log-probabilities of a prompt", "leave out echo or logprobs")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidRequest(
            "max_tokens: 0 lets no token come, which makes sense with echo only; use at least 1",
            param="max_tokens",
        )
    if body.suffix:
        _refuse("suffix", body.suffix, "leave it out")
    if body.best_of not in (None, 1, body.n or 1):
        _refuse("best_of", body.best_of, "leave it out or set it to n")


def _biases(given: dict[str, float], vocabulary: int) -> tuple[tuple[int, float], ...]:
    if len(given) > _MAX_BIASES:
        raise InvalidRequest(
            f"logit_bias: {len(given)} tokens, use up to {_MAX_BIASES}", param="logit_bias"
        )
    for key in given:
        if not (_TOKEN_ID.fullmatch(key) and int(key) < vocabulary):
            raise InvalidRequest(
                f"logit_bias: {key[:64]!r} is no token id, they go from 0 up to {vocabulary - 1}",
                param="logit_bias",
            )
    return tuple((int(key), value) for key, value in given.items())


def _refuse(name: str, value: Any, remedy: str) -> None:
    raise UnsupportedParameter(
        f"{name}: {str(value)[:64]} is not supported here; {remedy}", param=name
    )
