"""How evenly those who ask were served: Jain's index, and what would have been a fair part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def jain(values: Sequence[float]) -> float | None:
    """Jain's fairness index: 1 is equal, 1/n is all to one (Jain, Chiu, Hawe 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def among_keys(served: Mapping[int, float], wanted: Mapping[int, float]) -> float | None:
    """Jain's index over keys of what each was served relative to its fair part.

    The fair part is max-min: of all that was served nobody gets more than they want, and who wants
    more than others can have gets no more than those. Served relative to wanted would call it fair
    that all wait alike behind the one who sends most. None where nothing was served.
    """
    fair = fair_parts(sum(served.values()), wanted)
    return jain([served.get(key, 0.0) / part for key, part in fair.items() if part > 0])


def fair_parts(total: float, wanted: Mapping[int, float]) -> dict[int, float]:
    """`total` shared out max-min fairly: in equal parts, as far as each is wanted."""
    parts: dict[int, float] = {}
    left = total
    for index, key in enumerate(sorted(wanted, key=lambda key: (wanted[key], key))):
        parts[key] = min(wanted[key], left / (len(wanted) - index))
        left -= parts[key]
    return parts
