"""What the events of one choice come to when they are put together: a whole choice."""

from __future__ import annotations

from typing import Any

# Said once or again and again, and always the same.
_CONSTANT = ("role", "type", "id", "index")


def whole_choice(deltas: list[dict[str, Any]], *, chat: bool) -> dict[str, Any]:
    """The choice that these are the events of, but for its index; a chat's has a `message`."""
    merged: dict[str, Any] = {}
    for delta in deltas:
        merged = _merged(merged, {k: v for k, v in delta.items() if k != "index"})
    if not chat:
        return {"text": "", "logprobs": None, "finish_reason": None} | merged
    said = merged.pop("delta", None) or {}
    message = {"role": "assistant", "content": None} | said
    if message["content"] is None and "tool_calls" not in message:
        message["content"] = ""
    for call in message.get("tool_calls") or ():
        # Which of several it continues is of no interest once it is whole.
        if isinstance(call, dict):
            call.pop("index", None)
    return {"message": message, "logprobs": None, "finish_reason": None} | merged


def _merged(before: Any, after: Any, name: str = "") -> Any:
    """Texts go on, lists grow, records are merged; of the rest the last that is not null counts."""
    if after is None:
        return before
    if before is None or name in _CONSTANT:
        return after
    if isinstance(before, str) and isinstance(after, str):
        # Engines that say why it ends do so once.
        return after if name.endswith("_reason") else before + after
    if isinstance(before, dict) and isinstance(after, dict):
        both = dict(before)
        for key, value in after.items():
            both[key] = _merged(before.get(key), value, key)
        return both
    if isinstance(before, list) and isinstance(after, list):
        return _merged_lists(before, after)
    return after


def _merged_lists(before: list[Any], after: list[Any]) -> list[Any]:
    """Entries with an `index` go on where that index was; others are new."""
    both = list(before)
    for entry in after:
        index = entry.get("index") if isinstance(entry, dict) else None
        places = [
            place
            for place, there in enumerate(both)
            if isinstance(there, dict) and there.get("index") == index
        ]
        if index is None or not places:
            both.append(entry)
        else:
            both[places[0]] = _merged(both[places[0]], entry)
    return both
