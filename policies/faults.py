"""What is told of an exception that somebody else's code has raised."""

from __future__ import annotations


def in_words(error: BaseException) -> str:
    """Its type and what it says, as `ValueError: too many`; the type alone where it says nothing
    or cannot say it."""
    name = type(error).__name__
    try:
        said = str(error)
    # Somebody else's class puts it into words, or does not.
    except BaseException:
        return name
    return f"{name}: {said}" if said else name
