"""Chats and texts become the very ids that transformers makes of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from controller.errors import InvalidRequest
from executor.contract import TextModel
from gateway.text import ByteLanguage, Languages, TokenLanguage
from tests.gateway.tiny_text import CHATML, WITH_BOS, WITH_EXTENSIONS, text_model, tokenizer

TEXTS = (
    "What is the capital of France?",
    "Größe, naïve façade: Übermut tut selten gut.",
    "Привет, мир! Как дела?",
    "你好\uff0c世界。今天天气怎么样\uff1f",
    "こんにちは世界、ひらがなとカタカナ。",
    "안녕하세요 세계",
    "مرحبا بالعالم، كيف حالك؟",
    "שלום עולם",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "🙂🚌👩‍👩‍👧‍👦 e\u0301 \u200d\ufeff",
    "  leading, trailing and\n\n\tother   white space \r\n",
    "a user who writes <|im_end|> and <|im_start|>system",
    "<s>",
    "{{ messages }} {% raw %} &amp; <b> \\n",
    "",
)


def _chats() -> list[list[dict[str, Any]]]:
    chats = []
    for index, text in enumerate(TEXTS):
        other = TEXTS[(index + 3) % len(TEXTS)]
        chats.append([{"role": "user", "content": text}])
        chats.append([{"role": "system", "content": other}, {"role": "user", "content": text}])
        chats.append(
            [
                {"role": "user", "content": text},
                {"role": "assistant", "content": other},
                {"role": "user", "content": text + other},
            ]
        )
    return chats


def _theirs(template: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    made: Any = PreTrainedTokenizerFast
    return made(
        tokenizer_object=tokenizer(),
        bos_token="<s>",
        eos_token="<|im_end|>",
        chat_template=template,
    )


@pytest.mark.parametrize("template", [CHATML, WITH_BOS, WITH_EXTENSIONS])
def test_the_ids_of_a_chat_are_those_of_transformers(template: str) -> None:
    theirs, ours = _theirs(template), TokenLanguage(text_model(template))
    compared = 0
    for chat in _chats():
        if template == WITH_BOS and chat[0]["role"] == "system":
            continue
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ours.encode(ours.render(chat), special=False) == expected
        compared += 1
    assert compared >= 2 * len(TEXTS)


def test_the_ids_of_a_text_are_those_of_transformers() -> None:
    theirs, ours = _theirs(CHATML), TokenLanguage(text_model())
    for text in TEXTS:
        ids = ours.encode(text, special=True)
        assert ids == theirs(text).input_ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_chat_does_not_begin_twice() -> None:
    ours = TokenLanguage(text_model(WITH_BOS))
    ids = ours.encode(ours.render([{"role": "user", "content": "hi"}]), special=False)
    begin = ours.encode("", special=True)
    assert len(begin) == 1
    assert [ids.count(begin[0]), ids[0]] == [1, begin[0]]


def test_the_words_of_a_template_that_refuses_a_chat_are_passed_on() -> None:
    ours = TokenLanguage(text_model(WITH_BOS))
    with pytest.raises(InvalidRequest, match="roles must alternate user/assistant") as refused:
        ours.render([{"role": "assistant", "content": "hi"}])
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages[9].content }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(__init__=1) }}",
        "{{ 1 / 0 }}",
        "{{ undefined_function() }}",
    ],
)
def test_whatever_a_template_trips_over_is_a_bad_request(template: str) -> None:
    ours = TokenLanguage(text_model(template))
    with pytest.raises(InvalidRequest, match="chat template"):
        ours.render([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages | unknown_filter }}"])
def test_a_broken_template_is_told_at_the_first_chat(template: str) -> None:
    ours = TokenLanguage(text_model(template))
    assert ours.encode("plain texts still work", special=False)
    with pytest.raises(InvalidRequest, match="the model's chat template is broken"):
        ours.render([{"role": "user", "content": "hi"}])


def test_a_base_model_has_no_chats() -> None:
    ours = TokenLanguage(text_model(None))
    with pytest.raises(InvalidRequest, match="use /v1/completions"):
        ours.render([{"role": "user", "content": "hi"}])


def test_bytes_are_tokens_and_the_one_above_is_silent() -> None:
    ours = ByteLanguage(TextModel(kind="bytes"))
    prompt = ours.render([{"role": "system", "content": "be"}, {"role": "user", "content": "ü"}])
    assert prompt == "system: be\nuser: ü\nassistant: "
    assert ours.encode("ü!", special=True) == [0xC3, 0xBC, 0x21]
    assert ours.decode([0xC3, 0xBC, 256, 0x21, 0xC3]) == "ü!\ufffd"


def test_the_language_of_a_worker_that_came_back_is_not_read_again() -> None:
    languages = Languages()
    first = languages.of(text_model())
    assert languages.of(text_model()) is first
    assert languages.of(text_model(None)) is not first


def test_the_gateway_imports_no_torch_and_no_transformers() -> None:
    code = (
        "import sys, gateway.app, gateway.text, gateway.preparing\n"
        "print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
