"""What the events of a choice come to when they are put together."""

from __future__ import annotations

from typing import Any

from gateway.merging import whole_choice


def chat(*deltas: dict[str, Any], **last: Any) -> dict[str, Any]:
    events: list[dict[str, Any]] = [{"index": 0, "delta": delta} for delta in deltas]
    events[-1] |= last
    return whole_choice(events, chat=True)


def test_a_chat_is_a_message_with_all_of_its_text() -> None:
    assert chat(
        {"role": "assistant", "content": "Par"}, {"content": "is"}, {}, finish_reason="stop"
    ) == {
        "message": {"role": "assistant", "content": "Paris"},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_an_answer_that_is_empty_has_an_empty_text() -> None:
    assert chat({})["message"] == {"role": "assistant", "content": ""}
    assert whole_choice([], chat=True)["message"] == {"role": "assistant", "content": ""}
    assert whole_choice([], chat=False) == {"text": "", "logprobs": None, "finish_reason": None}


def test_a_call_of_a_tool_is_put_together_from_its_parts() -> None:
    def part(index: int, **fields: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": index, **fields}]}

    made = chat(
        part(0, id="c1", type="function", function={"name": "f", "arguments": ""}),
        part(0, function={"arguments": '{"a"'}),
        part(1, id="c2", type="function", function={"name": "g", "arguments": "{}"}),
        part(0, type="function", function={"name": None, "arguments": ":1}"}),
        finish_reason="tool_calls",
    )
    assert made["finish_reason"] == "tool_calls"
    assert made["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


def test_what_an_engine_adds_of_its_own_is_kept() -> None:
    made = chat(
        {"reasoning_content": "be"}, {"reasoning_content": "cause"}, stop_reason=7, matched="x"
    )
    assert made["message"]["reasoning_content"] == "because"
    assert (made["stop_reason"], made["matched"]) == (7, "x")


def test_log_probabilities_grow() -> None:
    made = whole_choice(
        [
            {"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-1.0]}},
            {"text": "b", "logprobs": {"tokens": ["b"], "token_logprobs": [-2.0]}},
            {"text": "", "logprobs": None, "finish_reason": "stop"},
        ],
        chat=False,
    )
    assert made == {
        "text": "ab",
        "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0]},
        "finish_reason": "stop",
    }
