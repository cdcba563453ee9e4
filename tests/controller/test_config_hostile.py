"""Files that would cost memory, time or a traceback: each is refused in a few clear words."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.config_load import check, load
from controller.config_tree import MOST_TOLD, MOST_VALUES, read_yaml
from controller.errors import ConfigError

MANY_DIGITS = "9" * 5000


def refusal(text: str) -> list[str]:
    """The lines of the error that reading this text raises."""
    with pytest.raises(ConfigError) as caught:
        read_yaml(text, name="mine.yaml")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(("given", "code"), [("\0", "0000"), ("\x1b", "001B"), ("\x7f", "007F")])
def test_a_control_character_is_refused_with_line_and_column(given: str, code: str) -> None:
    assert refusal(f"server:\n  host: a{given}b\n") == [
        f"mine.yaml:2:10: not valid YAML: the character U+{code} is not allowed"
    ]


def test_a_control_character_in_a_variable_is_refused_with_its_name() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, env={"HEADWAY__SERVER__HOST": "a\x1b"})
    assert str(caught.value) == (
        "environment HEADWAY__SERVER__HOST: server.host:1:2: not valid YAML: "
        "the character U+001B is not allowed"
    )


@pytest.mark.parametrize("digits", [MANY_DIGITS, "9" * 401, f"0x{MANY_DIGITS}"])
def test_a_number_of_endless_digits_is_refused_with_its_line_and_shown_in_part(digits: str) -> None:
    assert refusal(f"limits:\n  max_batch_size: {digits}\n") == [
        "mine.yaml:2: limits.max_batch_size: a number has 308 digits at most; "
        f"given {digits[:57]}..."
    ]


def test_a_number_of_endless_digits_in_a_variable_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, env={"HEADWAY__LIMITS__MAX_BATCH_SIZE": MANY_DIGITS})
    assert str(caught.value) == (
        "environment HEADWAY__LIMITS__MAX_BATCH_SIZE: limits.max_batch_size:1: "
        f"a number has 308 digits at most; given {MANY_DIGITS[:57]}..."
    )


def test_a_date_that_there_is_not_is_refused_with_its_line() -> None:
    assert refusal("server:\n  host: 2024-13-45\n") == [
        "mine.yaml:2: server.host: month must be in 1..12; given 2024-13-45"
    ]


LAUGHS = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
MERGES = "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10))


@pytest.mark.parametrize("text", [f"a0: &a0 [x]\n{LAUGHS}", f"a0: &a0 {{x: 1}}\n{MERGES}"])
def test_aliases_of_aliases_are_refused_before_they_are_written_out(text: str) -> None:
    (told,) = refusal(text)
    assert told.endswith(f": holds more than {MOST_VALUES} values, aliases written out")


@pytest.mark.parametrize("depth", [101, 3000])
def test_depth_is_called_depth(depth: int) -> None:
    (told,) = refusal(f"a: {'[' * depth}{']' * depth}\n")
    assert told.startswith("mine.yaml")
    assert told.endswith(": mappings and lists are nested more than 100 deep")


def test_what_is_nested_less_deep_is_read() -> None:
    tree = read_yaml(f"a: {'[' * 99}{']' * 99}\n", name="mine.yaml")
    assert tree.root["a"][0][0] != []


def test_of_thousands_of_problems_the_first_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("server:\n" + "".join(f"  prot{n}: 1\n" for n in range(20_000)))
    with pytest.raises(ConfigError) as caught:
        load(path, env={})
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}:2: server.prot0: unknown key; did you mean port?"
    assert lines[MOST_TOLD - 1] == f"{path}:21: server.prot19: unknown key; did you mean port?"
    assert lines[MOST_TOLD:] == ["and 19980 more"]


def test_of_thousands_of_problems_only_those_that_are_told_get_a_hint() -> None:
    text = "server:\n" + "".join(f"  prot{n}: 1\n" for n in range(100))
    _, problems = check(read_yaml(text, name="m"))
    assert sum("did you mean" in problem.message for problem in problems) == MOST_TOLD


def test_of_thousands_of_keys_that_stand_twice_the_first_are_told() -> None:
    lines = refusal("".join(f"a{n}: 1\na{n}: 2\n" for n in range(1000)))
    assert (len(lines), lines[-1]) == (MOST_TOLD + 1, f"and {1000 - MOST_TOLD} more")
