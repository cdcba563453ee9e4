from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pytest

from policies import registry
from policies.contract import Limits, Proposal, Signals
from policies.registry import TYPES, PolicyError, build, load, problems, types
from tests.policies.signals import LIMITS, seen


class Mine:
    """A policy of a user."""

    @dataclass(frozen=True)
    class Parameters:
        size: int
        gain: float = 0.5

        def __post_init__(self) -> None:
            if self.size == 13:
                raise ValueError("13 brings bad luck")

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, f"as many as {self.parameters.size}")


MINE = f"{__name__}:Mine"


def test_a_class_of_the_users_own_is_built_from_module_and_class() -> None:
    assert build(MINE, {"size": 3}).decide(seen(), LIMITS).reason == "as many as 3"


def test_an_installed_package_adds_a_type_by_an_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint(name="mine", value=MINE, group="headway.policies")
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: [point] if group == point.group else []
    )
    assert list(types()) == ["mine", *TYPES]
    assert load("mine") is Mine


def test_an_entry_point_does_not_take_the_place_of_a_type_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    point = EntryPoint(name="static", value=MINE, group="headway.policies")
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [point])
    assert load("static").__name__ == "Static"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("treshold", "unknown policy 'treshold'; did you mean threshold? (your own: module:Class)"),
        (
            "magic",
            f"unknown policy 'magic'; there are {', '.join(TYPES)} (your own: module:Class)",
        ),
        (
            "no_such_module:X",
            "no_such_module of policy 'no_such_module:X' cannot be imported: "
            "No module named 'no_such_module'",
        ),
        ("math:Pi", "math of policy 'math:Pi' has no class 'Pi'"),
        ("fractions:Fraction", "Fraction has no method decide(signals, limits)"),
        (f"{__name__}:Bare", "Bare.Parameters should be a frozen dataclass"),
    ],
)
def test_what_is_no_policy_is_refused_with_the_reason(name: str, message: str) -> None:
    assert problems(name, {}) == [((), message)]
    with pytest.raises(PolicyError) as caught:
        load(name)
    assert str(caught.value) == message


class Bare:
    """It decides, and does not say what its parameters are."""

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, "bare")


def test_a_module_that_fails_while_it_is_imported_is_told_not_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("no licence")

    monkeypatch.setitem(sys.modules, "broken_policy", Broken("broken_policy"))
    monkeypatch.setattr(
        registry, "importlib", SimpleNamespace(import_module=_raise("no licence today"))
    )
    ((_, message),) = problems("broken_policy:X", {})
    assert message.endswith("cannot be imported: it raises RuntimeError: no licence today")


class Leaving:
    """A policy that ends whoever builds it."""

    @dataclass(frozen=True)
    class Parameters:
        how: str = "exit"

    def __init__(self, parameters: Parameters) -> None:
        raise ENDS[parameters.how]

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, "never")


class Own(BaseException):
    """Nobody's `except Exception` catches it."""


ENDS: dict[str, BaseException] = {
    "exit": SystemExit(4),
    "success": SystemExit(),
    "interrupt": KeyboardInterrupt(),
    "generator": GeneratorExit("g"),
    "own": Own("o"),
}
TOLD = {
    "exit": "SystemExit: 4",
    "success": "SystemExit",
    "interrupt": "KeyboardInterrupt",
    "generator": "GeneratorExit: g",
    "own": "Own: o",
}


@pytest.mark.parametrize("how", ENDS)
def test_a_module_that_ends_whoever_imports_it_is_told_not_obeyed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(name: str) -> ModuleType:
        raise ENDS[how]

    monkeypatch.setattr(registry, "importlib", SimpleNamespace(import_module=raising))
    with pytest.raises(PolicyError) as caught:
        load("leaves:X")
    assert str(caught.value) == (
        f"leaves of policy 'leaves:X' cannot be imported: it raises {TOLD[how]}"
    )


@pytest.mark.parametrize("how", ENDS)
def test_a_class_that_ends_whoever_builds_it_is_told_not_obeyed(how: str) -> None:
    leaving = f"{__name__}:Leaving"
    told = f"Leaving(Leaving.Parameters(...)) raises {TOLD[how]}"
    assert problems(leaving, {"how": how}) == [((), told)]
    with pytest.raises(PolicyError) as caught:
        build(leaving, {"how": how})
    assert str(caught.value) == f"policy '{leaving}': {told}"


class SecondTime:
    """A policy that can be built once."""

    built = 0

    @dataclass(frozen=True)
    class Parameters:
        pass

    def __init__(self, parameters: Parameters) -> None:
        SecondTime.built += 1
        if SecondTime.built > 1:
            raise SystemExit(0)

    def decide(self, signals: Signals, limits: Limits) -> Proposal:
        return Proposal(limits, "once")


def test_one_that_leaves_only_when_it_is_built_again_is_told_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SecondTime, "built", 0)
    with pytest.raises(PolicyError, match=r"raises SystemExit: 0$"):
        build(f"{__name__}:SecondTime", {})


def test_parameters_that_end_whoever_checks_them_are_told_not_obeyed() -> None:
    class Parameters:
        def __post_init__(self) -> None:
            raise SystemExit(5)

    made = dataclass(frozen=True)(Parameters)
    monkey = type("Strict", (), {"Parameters": made, "decide": Bare.decide})
    assert _problems_of(monkey) == [((), "Strict.Parameters raises SystemExit: 5")]


def _problems_of(policy: type[object]) -> object:
    module = ModuleType("strict_policy")
    setattr(module, policy.__name__, policy)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, module.__name__, module)
        return problems(f"{module.__name__}:{policy.__name__}", {})


def _raise(message: str) -> object:
    def raising(name: str) -> ModuleType:
        raise RuntimeError(message)

    return raising


def test_parameters_are_checked_all_at_once_with_the_nearest_name() -> None:
    assert problems("aimd", {"backof": 0.9, "severe": 0.5, "growth": "much", "binding": True}) == [
        (("backof",), "unknown parameter; did you mean backoff?"),
        (("severe",), "should be at least 1; given 0.5"),
        (("growth",), "should be a number; given 'much'"),
        (("binding",), "should be a number; given True"),
    ]


def test_a_whole_number_is_a_number_and_a_number_is_not_a_whole_one() -> None:
    assert problems("aimd", {"severe": 2}) == []
    assert problems("threshold", {"up_ticks": 2.5}) == [
        (("up_ticks",), "should be a whole number; given 2.5")
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_no_parameter(value: float) -> None:
    ((key, message),) = problems("aimd", {"severe": value})
    assert key == ("severe",)
    assert message.startswith("should be at least 1; given")


@pytest.mark.parametrize("name", ["queue_high", "up_ticks"])
@pytest.mark.parametrize(
    ("value", "shown"),
    [(10**400, "1" + "0" * 56), (-(10**400), "-1" + "0" * 55), (16**5000, "0x1" + "0" * 54)],
    ids=["401-digits", "negative", "6021-digits"],
)
def test_a_number_of_endless_digits_is_no_parameter(name: str, value: int, shown: str) -> None:
    assert problems("threshold", {name: value}) == [
        ((name,), f"should be a number of 308 digits at most; given {shown}...")
    ]


def test_of_thousands_of_unknown_parameters_the_first_are_told_and_the_rest_counted() -> None:
    told = problems("aimd", {f"backoff{n}": 1 for n in range(20_000)})
    assert told[19] == (("backoff19",), "unknown parameter; did you mean backoff?")
    assert told[20:] == [((), "and 19980 more")]


def test_a_parameter_without_default_is_required() -> None:
    assert problems(MINE, {}) == [(("size",), "is required")]


def test_what_the_parameters_refuse_together_is_told() -> None:
    assert problems(MINE, {"size": 13}) == [((), "13 brings bad luck")]


def test_building_with_wrong_parameters_raises_with_all_of_them() -> None:
    with pytest.raises(PolicyError) as caught:
        build(MINE, {"sise": 1, "gain": "x"})
    assert str(caught.value) == (
        f"policy '{MINE}': sise: unknown parameter; did you mean size?; "
        "gain: should be a number; given 'x'; size: is required"
    )
