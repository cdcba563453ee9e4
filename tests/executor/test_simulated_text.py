from __future__ import annotations

from executor.simulated_text import PHRASE_BYTES, phrase_at


def test_every_phrase_is_whole_text_of_exactly_eight_bytes() -> None:
    phrases = {phrase_at(1, 2, number * PHRASE_BYTES) for number in range(500)}
    assert len(phrases) == 16
    assert {len(phrase) for phrase in phrases} == {PHRASE_BYTES}
    assert all(phrase.decode().isprintable() for phrase in phrases)
