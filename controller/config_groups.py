"""Whether limits and envelopes agree, those of all and those that groups have of their own."""

from __future__ import annotations

from collections.abc import Iterator

from controller.config import Config
from controller.config_control import EnvelopeConfig, LimitsConfig
from controller.config_tree import Path, Problem, shortened
from controller.units import format_duration


def limits(config: Config) -> Iterator[Problem]:
    """Limits outside their envelope, and such as contradict each other; of all and of groups."""
    yield from _within(config.limits, config.envelope, (), ())
    for group, own in config.groups.items():
        if own.limits is not None or own.envelope is not None:
            path: Path = ("groups", group)
            yield from _within(
                config.limits_of(group),
                config.envelope_of(group),
                () if own.limits is None else path,
                () if own.envelope is None else path,
            )


def unknown(config: Config) -> Iterator[Problem]:
    """Groups in which no executor is."""
    known = dict.fromkeys(executor.group for executor in config.executors)
    for group in config.groups:
        if group not in known:
            yield Problem(
                ("groups", group),
                f"no executor is in a group {group!r}; there are {', '.join(known)}",
                tuple(("executors", i, "group") for i in range(len(config.executors))),
            )


def around(config: Config, group: str) -> Path:
    """Where the envelope of a group is written."""
    own = config.groups.get(group)
    return ("envelope",) if own is None or own.envelope is None else ("groups", group, "envelope")


def widest(config: Config) -> tuple[EnvelopeConfig, Path]:
    """The envelope with the highest batch size, of those that executors have, and its path."""
    groups = dict.fromkeys(executor.group for executor in config.executors)
    # Without executors there is no group either, and that is another problem.
    best = max(
        groups, key=lambda group: config.envelope_of(group).max_batch_size[1], default="default"
    )
    return config.envelope_of(best), around(config, best)


def _within(
    limits: LimitsConfig, envelope: EnvelopeConfig, at: Path, around: Path
) -> Iterator[Problem]:
    """Limits that are written below the path `at`, in an envelope below `around`."""
    for name in ("max_batch_size", "max_batch_tokens", "wait_timeout"):
        value, (low, high) = getattr(limits, name), getattr(envelope, name)
        if not low <= value <= high:
            shown = [_shown(name, number) for number in (value, low, high)]
            yield Problem(
                (*at, "limits", name),
                f"{shown[0]} is outside the envelope [{shown[1]}, {shown[2]}]",
                ((*around, "envelope", name),),
            )
    if limits.max_batch_tokens < limits.max_batch_size:
        yield Problem(
            (*at, "limits", "max_batch_tokens"),
            f"{limits.max_batch_tokens} tokens in a step are fewer than max_batch_size "
            f"{limits.max_batch_size}: each running sequence needs one",
            ((*at, "limits", "max_batch_size"),),
        )
    if envelope.max_batch_tokens[1] < envelope.max_batch_size[1]:
        yield Problem(
            (*around, "envelope", "max_batch_tokens"),
            f"high {envelope.max_batch_tokens[1]} is below the high of max_batch_size, "
            f"{envelope.max_batch_size[1]}, which could never be reached",
            ((*around, "envelope", "max_batch_size"),),
        )


def _shown(name: str, value: float) -> str:
    return format_duration(value) if name == "wait_timeout" else shortened(str(value))
