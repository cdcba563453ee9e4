"""Single tokens: put together, their bytes are the text, however the vocabulary writes them."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from executor.contract import TextModel
from gateway.text import ByteLanguage, TokenLanguage
from gateway.token_texts import TokenTexts, VocabularySpelling
from tests.gateway.tiny_text import SPECIAL, text_model


@cache
def _language() -> TokenLanguage:
    return TokenLanguage(text_model())


def bytes_of(texts: TokenTexts, ids: list[int]) -> bytes:
    return b"".join(bytes(texts.told(token)[1] or []) for token in ids)


@given(st.text())
def test_the_bytes_of_byte_level_tokens_are_those_of_the_text(text: str) -> None:
    ids = _language().encode(text, special=False)
    special = [token for token in ids if token < len(SPECIAL)]
    if not special:
        assert bytes_of(_language().token_texts(), ids).decode() == text


def test_a_special_token_has_a_name_and_no_bytes() -> None:
    texts = _language().token_texts()
    assert texts.told(SPECIAL.index("<|im_end|>")) == ("<|im_end|>", None)
    assert texts.named(SPECIAL.index("<s>")) == "<s>"


def test_tokens_that_are_no_whole_characters_are_told_apart() -> None:
    texts = _language().token_texts()
    first, second = _language().encode("é", special=False)
    assert texts.told(first) == ("\\xc3", [0xC3])
    assert (texts.named(first), texts.named(second)) == ("bytes:\\xc3", "bytes:\\xa9")


def test_an_id_that_no_token_has_still_has_a_name() -> None:
    # Models are padded: they may have logits for more ids than the tokenizer knows.
    assert _language().token_texts().told(5000) == ("<5000>", None)


def sentence_pieces() -> Tokenizer:
    """Written as SentencePiece does: a space is U+2581, and a byte is a token of its own name."""
    words = ["<unk>", "</s>", "\u2581the", "\u2581", "fox", "<0xC3>", "<0xA9>", "<tool>"]
    vocabulary = {word: place for place, word in enumerate(words)}
    made = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Prepend("\u2581")
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([AddedToken("</s>", special=True)])
    made.add_tokens(["<tool>"])
    return made


def test_sentence_pieces_keep_their_space_and_bytes_are_bytes() -> None:
    made = sentence_pieces()
    texts = TokenTexts(VocabularySpelling(made, made.to_str()))
    ids = [2, 2, 3, 4, 5, 6, 7, 1]
    assert [texts.told(token)[0] for token in ids] == [
        " the",
        " the",
        " ",
        "fox",
        "\\xc3",
        "\\xa9",
        "<tool>",
        "</s>",
    ]
    # Alone, `decode` would lose the space in front of every token.
    assert bytes_of(texts, ids[:6]).decode() == " " + made.decode(ids[:6])


def test_a_metaspace_is_a_space() -> None:
    made = Tokenizer(models.WordLevel({"\u2581the": 0}, unk_token="?"))
    made.decoder = decoders.Metaspace()
    assert TokenTexts(VocabularySpelling(made, made.to_str())).told(0) == (" the", list(b" the"))


def test_without_a_decoder_tokens_are_what_they_are_written_as() -> None:
    made = Tokenizer(models.WordLevel({"the": 0}, unk_token="?"))
    assert TokenTexts(VocabularySpelling(made, made.to_str())).told(0) == ("the", list(b"the"))


def test_a_byte_is_itself() -> None:
    texts = ByteLanguage(TextModel(kind="bytes")).token_texts()
    assert [texts.told(65), texts.told(0xC3), texts.told(256)] == [
        ("A", [65]),
        ("\\xc3", [0xC3]),
        ("<256>", None),
    ]
