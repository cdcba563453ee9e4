"""How durations and sizes are written in configuration: a number with its unit."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

SECONDS = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(ns|us|ms|s|m|h|d)")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) *(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)")
_DURATION_FORM = "a number with its unit (ns, us, ms, s, m, h, d), such as 50ms, 1.5s or 10m"
_SIZE_FORM = "a number with its unit (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB), such as 64KiB or 4GiB"


def parse_duration(text: str) -> float:
    """Seconds of a text such as `50ms`, `1.5s`, `10m`; `0` needs no unit. Raises ValueError."""
    if text.strip() == "0":
        return 0.0
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"should be {_DURATION_FORM}")
    return float(Decimal(found[1]) * SECONDS[found[2]])


def parse_size(text: str) -> int:
    """Bytes of a text such as `64KiB` or `1.5GB`; `0` needs no unit. Raises ValueError."""
    if text.strip() == "0":
        return 0
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"should be {_SIZE_FORM}")
    size = Decimal(found[1]) * BYTES[found[2]]
    if size != int(size):
        raise ValueError(f"should be a whole number of bytes, and {text} is {size:f}")
    return int(size)


def format_duration(seconds: float) -> str:
    """The shortest text, whole numbers first, that `parse_duration` reads back as this."""
    if seconds == 0:
        return "0"
    exact = Decimal(repr(seconds))
    texts = [f"{(exact / factor).normalize():f}{unit}" for unit, factor in SECONDS.items()]
    return min(texts, key=lambda text: ("." in text, len(text)))


def format_size(size: int) -> str:
    """The largest binary unit that expresses these bytes as a whole number."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return f"{size}B" if size else "0"


def _written(info: ValidationInfo) -> bool:
    """Whether the value comes from a file, a variable or a flag, where a unit is obligatory."""
    return bool(info.context and info.context.get("written"))


def _duration(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        return parse_duration(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"should be {_DURATION_FORM}")
    if value != 0 and _written(info):
        raise ValueError(
            f"needs its unit: write {format_duration(float(value))} for {value} seconds "
            f"or {value}ms for {value} milliseconds"
        )
    if not math.isfinite(value) or value < 0:
        raise ValueError("should be finite and not negative")
    return float(value)


def _size(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, str):
        return parse_size(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"should be {_SIZE_FORM}")
    if value != 0 and _written(info):
        raise ValueError(f"needs its unit: write {value}B for {value} bytes")
    if value < 0:
        raise ValueError("should not be negative")
    return value


def _written_form(pattern: re.Pattern[str], what: str) -> WithJsonSchema:
    return WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": f"^{pattern.pattern}$"}, {"const": 0}],
            "description": what,
        }
    )


Duration = Annotated[
    float,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, when_used="json"),
    _written_form(_DURATION, f"A duration: {_DURATION_FORM}. In code: seconds."),
]
Size = Annotated[
    int,
    BeforeValidator(_size),
    PlainSerializer(format_size, when_used="json"),
    _written_form(_SIZE, f"A size: {_SIZE_FORM}. In code: bytes."),
]
