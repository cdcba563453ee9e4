"""What a prompt is made of: messages, texts or token ids, and how it fits the window of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from controller.errors import ContextLengthExceeded, InvalidRequest
from gateway.bodies import Body, ChatBody, CompletionBody
from gateway.parameters import wanted_tokens

# Tuples: a client's value need not be hashable.
_PLAIN_ROLES = ("system", "user", "assistant")
_ROLES = (*_PLAIN_ROLES, "developer", "tool", "function")


def fitted(prompt: list[int], body: Body, window: int) -> tuple[list[int], int]:
    """The prompt and the number of new tokens, as they fit the `window` of tokens together.

    Of new tokens there is always one: where none is wanted, it is what the prompt comes back with.
    `truncate_prompt_tokens` keeps the last so many tokens of a prompt, -1 as many as fit. Raises
    ContextLengthExceeded and InvalidRequest.
    """
    keep, wanted = body.truncate_prompt_tokens, wanted_tokens(body)
    if wanted == 0:
        wanted = 1
    if keep == 0:
        raise InvalidRequest(
            "truncate_prompt_tokens: keep at least 1 token, or -1 for as many as fit",
            param="truncate_prompt_tokens",
        )
    if keep is not None:
        keep = keep if keep > 0 else max(1, window - (wanted or 1))
        prompt = prompt[-keep:]
    if not prompt:
        raise InvalidRequest("the prompt is empty: give at least one token", param=_source(body))
    length = len(prompt)
    room = window - length
    if room < 1 or (wanted is not None and wanted > room):
        asked = f"{length} in the prompt" + ("" if wanted is None else f", {wanted} to come")
        raise ContextLengthExceeded(
            f"prompt and completion have {window} tokens together, "
            f"this request has {length + (wanted or 1)} ({asked}); shorten the prompt, lower "
            "max_tokens, or set truncate_prompt_tokens to keep only the end of the prompt",
            param=_source(body),
        )
    return prompt, room if wanted is None else wanted


def chat_messages(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates read them: content is one string, nothing is null.

    Text parts are joined by line breaks, as vLLM and llama.cpp do. `developer`, OpenAI's newer name
    for `system`, is unknown to templates and becomes that. Raises InvalidRequest.
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def prompts_of(body: CompletionBody, vocabulary: int) -> list[str | list[int]]:
    """One entry for each prompt, as text or as token ids below `vocabulary`."""
    if isinstance(body.prompt, str):
        return [body.prompt]
    kinds = {type(one) for one in body.prompt}
    if not kinds:
        raise InvalidRequest("prompt: the list is empty", param="prompt")
    prompts: list[str | list[int]] = []
    if kinds == {int}:
        prompts.append([one for one in body.prompt if isinstance(one, int)])
    elif int in kinds:
        raise InvalidRequest(
            "prompt: give one text, one list of token ids, or a list of those", param="prompt"
        )
    else:
        prompts.extend(one for one in body.prompt if not isinstance(one, int))
    for index, prompt in enumerate(prompts):
        if isinstance(prompt, list) and prompt and max(prompt) >= vocabulary:
            raise InvalidRequest(
                f"prompt: token id {max(prompt)} is not in the vocabulary, ids go up to "
                f"{vocabulary - 1}",
                param="prompt" if len(prompts) == 1 else f"prompt[{index}]",
            )
    return prompts


def prompt_count(body: Body) -> int:
    """How many prompts a body has, before any of them is looked at."""
    if not isinstance(body, CompletionBody) or isinstance(body.prompt, str):
        return 1
    return 1 if not body.prompt or isinstance(body.prompt[0], int) else len(body.prompt)


def _message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role, content = message.get("role"), message.get("content")
    if role in _PLAIN_ROLES and type(content) is str and len(message) == 2:
        return message
    if role not in _ROLES:
        raise InvalidRequest(
            f"{where}.role: {role!r} is no role, use one of {', '.join(_ROLES)}",
            param=f"{where}.role",
        )
    if isinstance(content, list):
        content = "\n".join(
            _part(part, f"{where}.content[{index}]") for index, part in enumerate(content)
        )
    elif content is None and role == "assistant":
        content = ""
    elif not isinstance(content, str):
        raise InvalidRequest(
            f"{where}.content: should be a string or a list of text parts", param=f"{where}.content"
        )
    kept = {name: value for name, value in message.items() if value is not None}
    kept["role"] = "system" if role == "developer" else role
    kept["content"] = content
    return kept


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind != "text" or not isinstance(text, str):
        raise InvalidRequest(
            f'{where}: only text parts are served, {{"type": "text", "text": "..."}}', param=where
        )
    return text


def _source(body: Body) -> str:
    return "messages" if isinstance(body, ChatBody) else "prompt"
