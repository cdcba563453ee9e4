"""Pieces of text: they add up to the whole, with no broken character and no stop string."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.contract import TextModel
from gateway.detokenise import Pieces, StoppingText
from gateway.text import ByteLanguage, Language, TokenLanguage
from tests.gateway.tiny_text import SPECIAL, text_model


@cache
def _language() -> TokenLanguage:
    return TokenLanguage(text_model())


BYTES = ByteLanguage(TextModel(kind="bytes"))


def _all(pieces: Pieces, ids: list[int]) -> list[str]:
    return [*(pieces.push([token]) for token in ids), pieces.finish()]


@given(st.text())
def test_any_text_comes_back_without_a_replacement_character_in_between(text: str) -> None:
    text = text.replace("\ufffd", "?")
    for language in (_language(), BYTES):
        ids = language.encode(text, special=False)
        pieces = _all(language.detokeniser(), ids)
        assert "".join(pieces) == language.decode(ids)
        assert "\ufffd" not in "".join(pieces)


@given(st.lists(st.integers(0, 339), max_size=60))
def test_any_tokens_add_up_to_what_they_are_as_a_whole(ids: list[int]) -> None:
    pieces = _all(_language().detokeniser(), ids)
    assert "".join(pieces) == _language().decode(ids)


@given(st.lists(st.integers(0, 256), max_size=60))
def test_any_bytes_add_up_to_what_they_are_as_a_whole(ids: list[int]) -> None:
    assert "".join(_all(BYTES.detokeniser(), ids)) == BYTES.decode(ids)


@given(st.text(max_size=30), st.integers(1, 5))
def test_tokens_that_come_in_handfuls_make_the_same_text(text: str, size: int) -> None:
    ids = _language().encode(text, special=False)
    pieces = _language().detokeniser()
    parts = [pieces.push(ids[at : at + size]) for at in range(0, len(ids), size)]
    assert "".join(parts) + pieces.finish() == _language().decode(ids)


def test_special_tokens_have_no_text() -> None:
    end = SPECIAL.index("<|im_end|>")
    ids = [*_language().encode("so", special=False), end, end]
    assert "".join(_all(_language().detokeniser(), ids)) == "so"


def test_bytes_that_never_become_text_are_let_go_after_a_while() -> None:
    [token] = _language().encode("é", special=False)[:1]
    pieces = _language().detokeniser()
    said = [pieces.push([token]) for _ in range(70)]
    assert said[:64] == [""] * 64
    assert said[64] == "\ufffd" * 65
    good = "".join(pieces.push([one]) for one in _language().encode("fine", special=False))
    assert (good + pieces.finish()).endswith("fine")


def _stopping(stops: tuple[str, ...], *, min_tokens: int = 0) -> StoppingText:
    return StoppingText(BYTES.detokeniser(), stops, min_tokens=min_tokens)


@settings(max_examples=300)
@given(
    st.text(alphabet="ab", max_size=40),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_the_text_ends_before_the_stop_string_that_is_complete_first(
    text: str, stops: list[str]
) -> None:
    pieces = _stopping(tuple(stops))
    got = ""
    for token in text.encode():
        got += pieces.push([token])
        if pieces.stopped:
            break
    got += pieces.finish()
    complete = [at for at in range(len(text) + 1) if text[:at].endswith(tuple(stops))]
    if complete:
        found = max((stop for stop in stops if text[: complete[0]].endswith(stop)), key=len)
        assert got == text[: complete[0] - len(found)]
        assert pieces.stopped
    else:
        assert got == text
        assert not pieces.stopped


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    pieces = _stopping(("STOP", "\n\nQ"))
    pushed = [
        pieces.push(list(text.encode())) for text in ("a S", "TO", "x", "\n", "\n", "b", "ST")
    ]
    assert pushed == ["a ", "", "STOx", "", "", "\n\nb", ""]
    assert pieces.finish() == "ST"


def test_nothing_comes_after_a_stop_string() -> None:
    pieces = _stopping(("!",))
    assert pieces.push(list(b"no!way")) == "no"
    assert pieces.stopped
    assert pieces.push(list(b"more")) == ""
    assert pieces.finish() == ""


def test_a_stop_string_within_the_minimum_is_text() -> None:
    pieces = _stopping(("a",), min_tokens=2)
    assert [pieces.push([token]) for token in b"aaba"] == ["a", "a", "b", ""]
    assert pieces.stopped


@pytest.mark.parametrize("language", [_language(), BYTES])
def test_a_stop_string_is_found_in_what_the_end_sets_free(language: Language) -> None:
    half = language.encode("é", special=False)[:1]
    pieces = StoppingText(language.detokeniser(), ("\ufffd",), min_tokens=0)
    assert pieces.push(half) == ""
    assert pieces.finish() == ""
    assert pieces.stopped
