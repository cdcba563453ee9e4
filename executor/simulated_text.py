"""What a simulated executor says: text that depends on two seeds and the position, nothing else."""

from __future__ import annotations

END_OF_TEXT = 256  # the first id that is not a byte

# Eight bytes each, so that a position names its byte without what came before it; characters of
# two, three and four bytes, so that a token is not always a character.
_PHRASES = (
    "the bus ",
    "is late ",
    "a tram, ",
    "two min ",
    "rainfall",
    "umbrella",
    "coffee; ",
    "leaves. ",
    "headway ",
    "café le",
    "Straße ",
    "naïvely",
    "🚌 bus",
    "時刻, ",
    "чай. ",
    "→ via ",
)
PHRASE_BYTES = 8
_TABLE = tuple(phrase.encode() for phrase in _PHRASES)
_MASK = 2**64 - 1


def phrase_at(seed: int, request_seed: int, position: int) -> bytes:
    """The phrase that `position` of a completion lies in, counted from 0.

    Drawn by a hash of the seeds and the phrase's number (the finaliser of SplitMix64, Steele, Lea
    and Flood, 2014). The byte is the phrase's at `position % PHRASE_BYTES`.
    """
    number = position // PHRASE_BYTES
    bits = (seed * 0x9E3779B97F4A7C15 + request_seed * 0xD1B54A32D192ED03 + number + 1) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return _TABLE[(bits ^ (bits >> 31)) % len(_TABLE)]


def byte_at(seed: int, request_seed: int, position: int) -> int:
    """The byte of a completion at `position`, counted from 0."""
    return phrase_at(seed, request_seed, position)[position % PHRASE_BYTES]
