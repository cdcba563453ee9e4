from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("593ns", 5.93e-07),
        ("60.7us", 6.07e-05),
        ("50ms", 0.05),
        ("23.475ms", 0.023475),
        ("1.5s", 1.5),
        ("10m", 600.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        (" 5 ms ", 0.005),
        ("0", 0.0),
    ],
)
def test_a_duration_is_read_to_the_nearest_float(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["50", "ms", "-1s", "1 minute", "1e3s", "1.s", "5MS", "", "nan"])
def test_what_is_no_duration_is_refused_with_the_form_it_should_have(text: str) -> None:
    with pytest.raises(ValueError, match=r"should be a number with its unit .* such as 50ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("4GiB", 2**32), ("64KiB", 65536), ("1.5kB", 1500), ("7B", 7), ("0", 0)]
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_size_that_is_no_whole_number_of_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"whole number of bytes, and 0\.3B is 0\.3"):
        parse_size("0.3B")


def test_a_size_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="such as 64KiB or 4GiB"):
        parse_size("64")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.05, "50ms"), (60, "1m"), (90, "90s"), (1.5, "1500ms"), (0, "0")]
)
def test_a_duration_is_written_in_the_unit_that_makes_it_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=1e7, allow_subnormal=False))
def test_a_duration_written_and_read_is_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@given(st.integers(min_value=0, max_value=2**50))
def test_a_size_written_and_read_is_the_same(size: int) -> None:
    assert parse_size(format_size(size)) == size
