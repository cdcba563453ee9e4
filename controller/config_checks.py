"""Which values of a configuration contradict each other, though each is right by itself."""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable, Iterator
from itertools import pairwise

from controller import config_groups
from controller.asking import one_line
from controller.config import Config
from controller.config_control import OwnPolicyConfig, PolicyConfig
from controller.config_executors import ContinuousExecutor, ModelExecutor
from controller.config_replicas import each_of
from controller.config_tree import Path, Problem, dotted
from controller.units import format_duration, format_size
from policies.registry import PolicyError, load
from policies.registry import problems as policy_problems


def cross_check(config: Config) -> list[Problem]:
    """Every contradiction, with the numbers of both sides; none is an empty list."""
    checks = (_presence, config_groups.limits, _executors, config_groups.unknown, _tiers, _queues)
    return [problem for check in (*checks, _auth, _control, _policies) for problem in check(config)]


def _presence(config: Config) -> Iterator[Problem]:
    for name in ("tiers", "executors"):
        if not getattr(config, name):
            yield Problem((name,), "is empty: name at least one, or leave it out for the default")


def _executors(config: Config) -> Iterator[Problem]:
    for index, executor in enumerate(config.executors):
        path: Path = ("executors", index)
        envelope, around = (
            config.envelope_of(executor.group),
            config_groups.around(config, executor.group),
        )
        size, tokens = envelope.max_batch_size[1], envelope.max_batch_tokens[1]
        if size > executor.max_seqs:
            yield Problem(
                (*around, "max_batch_size"),
                f"high {size} is more than max_seqs {executor.max_seqs} "
                f"of executor {executor.name!r}",
                ((*path, "max_seqs"),),
            )
        if tokens > executor.max_step_tokens:
            yield Problem(
                (*around, "max_batch_tokens"),
                f"high {tokens} is more than max_step_tokens {executor.max_step_tokens} "
                f"of executor {executor.name!r}",
                ((*path, "max_step_tokens"),),
            )
        if isinstance(executor, ContinuousExecutor):
            yield from _kv_sizes(executor, path)
            if 0 < executor.num_blocks < size:
                yield Problem(
                    (*path, "num_blocks"),
                    f"{executor.num_blocks} blocks of KV hold fewer sequences than the high of "
                    f"max_batch_size, {size}: each needs at least one",
                    ((*around, "max_batch_size"),),
                )
        elif 0 < executor.kv_tokens < size:
            yield Problem(
                (*path, "kv_tokens"),
                f"{executor.kv_tokens} tokens of KV hold fewer sequences than the high of "
                f"max_batch_size, {size}: each needs at least one",
                ((*around, "max_batch_size"),),
            )
        if isinstance(executor, ModelExecutor) and executor.devices and executor.count > 1:
            yield Problem(
                (*path, "count"),
                f"{executor.count} is given beside devices, which name {len(executor.devices)} "
                "executors: one of them is enough",
                ((*path, "devices"),),
            )
    yield from _repeated(
        "name",
        (
            (("executors", i, "name"), one.name)
            for i, written in enumerate(config.executors)
            for one in each_of(written)
        ),
    )
    upstream = [executor.kind == "upstream" for executor in config.executors]
    if any(upstream) and not all(upstream):
        index = upstream.index(not upstream[0])
        yield Problem(
            ("executors", index, "kind"),
            f"{config.executors[index].kind} cannot share queues with {config.executors[0].kind}: "
            "an upstream takes text and all others take tokens; run two daemons",
            (("executors", 0, "kind"),),
        )
    kinds = {executor.group: executor.kind for executor in reversed(config.executors)}
    for index, executor in enumerate(config.executors):
        if executor.kind != kinds[executor.group]:
            yield Problem(
                ("executors", index, "group"),
                f"{executor.kind} cannot share the limits of group {executor.group!r}, "
                f"which is {kinds[executor.group]}: give it a group of its own",
                (("executors", index, "kind"),),
            )


def _kv_sizes(executor: ContinuousExecutor, path: Path) -> Iterator[Problem]:
    """The KV cache has one size, however it is told."""
    given = {
        "num_blocks": executor.num_blocks or None,
        "kv_memory": executor.kv_memory,
        "kv_fraction": executor.kv_fraction,
    }
    first, *others = [name for name, value in given.items() if value is not None] or [""]
    for other in others:
        yield Problem(
            (*path, other),
            f"is given beside {first}: one of them says how large KV is",
            ((*path, first),),
        )


def _tiers(config: Config) -> Iterator[Problem]:
    tiers = config.tiers
    envelope, around = config_groups.widest(config)
    size, wait = envelope.max_batch_size[1], envelope.wait_timeout
    for name, tier in tiers.items():
        path: Path = ("tiers", name)
        targets = tier.targets
        if targets is not None and (targets.ttft, targets.itl, targets.e2e) == (None, None, None):
            yield Problem(
                (*path, "targets"), "names no metric: give ttft, itl or e2e, or leave targets out"
            )
        if tier.max_seats is not None and tier.max_seats > size:
            yield Problem(
                (*path, "max_seats"),
                f"{tier.max_seats} is more than the high of max_batch_size, {size}",
                ((*around, "max_batch_size"),),
            )
        if tier.wait_timeout is not None and not wait[0] <= tier.wait_timeout <= wait[1]:
            low, high = format_duration(wait[0]), format_duration(wait[1])
            yield Problem(
                (*path, "wait_timeout"),
                f"{format_duration(tier.wait_timeout)} is outside the envelope [{low}, {high}]",
                ((*around, "wait_timeout"),),
            )
        start, finish = tier.start_within, tier.finish_within
        if start is not None and finish is not None and finish < start:
            yield Problem(
                (*path, "finish_within"),
                f"{format_duration(finish)} is shorter than start_within, {format_duration(start)}",
                ((*path, "start_within"),),
            )
    caps = {name: tier.max_seats for name, tier in tiers.items() if tier.max_seats is not None}
    if len(caps) == len(tiers) > 0 and sum(caps.values()) < size:
        parts = " + ".join(f"{name} {seats}" for name, seats in caps.items())
        yield Problem(
            (*around, "max_batch_size"),
            f"high {size} can never be reached: max_seats sum to {sum(caps.values())} ({parts})",
            tuple(("tiers", name, "max_seats") for name in caps),
        )
    shares = {name: tier.min_share for name, tier in tiers.items()}
    if sum(shares.values()) > 1 + 1e-9:
        parts = " + ".join(f"{name} {share:g}" for name, share in shares.items() if share)
        yield Problem(
            ("tiers",),
            f"min_share sums to {sum(shares.values()):g} ({parts}), at most 1 can be given",
            tuple(("tiers", name, "min_share") for name in shares),
        )
    yield from _repeated(
        "priority", ((("tiers", n, "priority"), t.priority) for n, t in tiers.items())
    )
    yield from _repeated(
        "service_tier",
        (
            (("tiers", n, "service_tier"), t.service_tier)
            for n, t in tiers.items()
            if t.service_tier
        ),
    )


def _queues(config: Config) -> Iterator[Problem]:
    envelope, around = config_groups.widest(config)
    size, tokens = envelope.max_batch_size[1], envelope.max_batch_tokens[1]
    body = config.server.max_body
    for name, tier in config.tiers.items():
        if tier.max_queue_requests < size:
            yield Problem(
                ("tiers", name, "max_queue_requests"),
                f"{tier.max_queue_requests} waiting requests can never fill a batch of "
                f"{size}, the high of max_batch_size",
                ((*around, "max_batch_size"),),
            )
        if tier.max_queue_tokens < tokens:
            yield Problem(
                ("tiers", name, "max_queue_tokens"),
                f"{tier.max_queue_tokens} waiting tokens can never fill a step of "
                f"{tokens}, the high of max_batch_tokens",
                ((*around, "max_batch_tokens"),),
            )
        if tier.max_queue_size < body:
            yield Problem(
                ("tiers", name, "max_queue_size"),
                f"{format_size(tier.max_queue_size)} is less than server.max_body, "
                f"{format_size(body)}: the longest body could never wait",
                (("server", "max_body"),),
            )


def _auth(config: Config) -> Iterator[Problem]:
    auth, known = config.auth, ", ".join(config.tiers)
    if auth.default_tier not in config.tiers:
        yield Problem(
            ("auth", "default_tier"),
            f"there is no tier {auth.default_tier!r}; there are {known}",
            (("tiers", auth.default_tier),),
        )
    for index, key in enumerate(auth.keys):
        path: Path = ("auth", "keys", index)
        if key.tier not in config.tiers:
            yield Problem(
                (*path, "tier"),
                f"there is no tier {key.tier!r}; there are {known}",
                (("tiers", key.tier),),
            )
        if (key.sha256 is None) == (key.env is None):
            given = "neither" if key.env is None else "both"
            yield Problem(
                path,
                f"key {key.name!r} needs one of sha256 and env, {given} is given",
                ((*path, "sha256"), (*path, "env")),
            )
    indexed = list(enumerate(auth.keys))
    yield from _repeated("name", ((("auth", "keys", i, "name"), k.name) for i, k in indexed))
    yield from _repeated(
        "sha256", ((("auth", "keys", i, "sha256"), k.sha256) for i, k in indexed if k.sha256)
    )
    if auth.admin_token_env is not None and auth.admin_token_sha256 is not None:
        yield Problem(
            ("auth", "admin_token_sha256"),
            "is given beside admin_token_env: one of them is enough",
            (("auth", "admin_token_env"),),
        )
    if not auth.keys and not is_loopback(config.server.host):
        yield Problem(
            ("server", "host"),
            f"{config.server.host} is reachable from outside and auth.keys is empty: "
            "bind 127.0.0.1, or name keys",
            (("auth", "keys"),),
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that binds `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _control(config: Config) -> Iterator[Problem]:
    control = config.control
    spans = ("interval", "fast_window", "slow_window", "max_window")
    for shorter, longer in pairwise(spans):
        low, high = getattr(control, shorter), getattr(control, longer)
        if high < low:
            yield Problem(
                ("control", longer),
                f"{format_duration(high)} is shorter than {shorter}, {format_duration(low)}",
                (("control", shorter),),
            )
    if control.interval == 0:
        yield Problem(("control", "interval"), "0 would tick without end: write 250ms, for one")
    if config.control.guard.reversals > config.control.guard.reversal_moves - 1:
        yield Problem(
            ("control", "guard", "reversals"),
            f"{control.guard.reversals} changes of direction cannot be exceeded in "
            f"{control.guard.reversal_moves} moves",
            (("control", "guard", "reversal_moves"),),
        )


def _policies(config: Config) -> Iterator[Problem]:
    control = config.control
    named: list[tuple[Path, PolicyConfig | OwnPolicyConfig]] = [
        (("control", "policy"), control.policy),
        *((("control", "shadows", i), shadow) for i, shadow in enumerate(control.shadows)),
        *((("tiers", name, "policy"), own) for name, own in config.tier_policies().items()),
        *((("groups", n, "policy"), g.policy) for n, g in config.groups.items() if g.policy),
    ]
    for path, policy in named:
        wrong = policy_problems(policy.type, policy.parameters)
        # As a whole, what was given is wrong; where nothing was, or nobody takes it, the type is.
        given = wrong and policy.parameters and _is_known(policy.type)
        whole = ("parameters",) if given else ("type",)
        for within, message in wrong:
            yield Problem(
                (*path, "parameters", *within) if within else (*path, *whole), one_line(message)
            )
    for _, message in policy_problems(control.fallback, {}):
        yield Problem(("control", "fallback"), message)


def _is_known(policy_type: str) -> bool:
    try:
        load(policy_type)
    except PolicyError:
        return False
    return True


def _repeated(what: str, values: Iterable[tuple[Path, Hashable]]) -> Iterator[Problem]:
    first: dict[Hashable, Path] = {}
    for path, value in values:
        if value in first:
            other = first[value]
            yield Problem(path, f"{what} {value} is taken by {dotted(other[:-1])}", (other,))
        else:
            first[value] = path
