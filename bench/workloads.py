"""The workloads that policies are judged on, by name, made from a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

from bench.arrivals import Arrival, Clients, FaultAt, Workload
from bench.capacity import fluid_rate
from bench.day import DAY
from bench.lengths import CHAT, CODE, JOBS, Lengths
from executor.contract import SimulatedSettings

MINUTE = 60.0
TIERS: Mapping[str, float] = MappingProxyType({"paid": 0.3, "free": 0.5, "offline": 0.2})
# Keys of the free tier where it has several.
FREE_KEYS = 8
ONLINE: Mapping[str, float] = MappingProxyType({"paid": 0.375, "free": 0.625})


@dataclass(frozen=True, slots=True)
class Scene:
    """What a workload is made for: an executor (and those `beside` it), a load and a seed.

    `load` is relative to what `bench.capacity` reckons that the executors can serve of these
    lengths. `stretch` multiplies the duration, at the same rates. `tiers` is who sends which
    fraction, where the workload does not say so itself.
    """

    settings: SimulatedSettings
    load: float
    seed: int
    beside: tuple[SimulatedSettings, ...] = ()
    stretch: float = 1.0
    tiers: Mapping[str, float] = field(default_factory=lambda: TIERS)

    def rate(self, lengths: Lengths) -> float:
        """Requests per second at this load."""
        return self.load * self.most_per_s(self.fit(lengths).sample())

    @property
    def replicas(self) -> int:
        """How many executors there are."""
        return 1 + len(self.beside)

    def most_per_s(self, lengths: Sequence[tuple[int, int]]) -> float:
        """What all together could serve of these lengths, in requests per second."""
        return sum(fluid_rate(each, lengths) for each in (self.settings, *self.beside))

    def fit(self, lengths: Lengths) -> Lengths:
        """The lengths within the executor's context and memory."""
        whole = self.settings.runs_to_completion or not self.settings.splits_prefill
        context = min(self.settings.max_context_tokens, self.settings.kv_tokens)
        fitted = lengths.within(context)
        if not whole or fitted.max_prompt <= self.settings.max_step_tokens:
            return fitted
        return fitted.within(self.settings.max_step_tokens + fitted.max_output)


@dataclass(frozen=True, slots=True)
class Phase:
    """A while of equal traffic: `rate` requests per second, gaps with variation `cv`.

    `keys` says of a tier how much each of its keys sends, relative to the others; a tier that is
    not in it has one key.
    """

    duration_s: float
    rate: float
    lengths: Lengths
    cv: float = 1.0
    tiers: Mapping[str, float] = field(default_factory=lambda: TIERS)
    keys: Mapping[str, Sequence[float]] = field(default_factory=lambda: MappingProxyType({}))


def arrivals(phases: Iterable[Phase], seed: int, *, start_s: float = 0.0) -> list[Arrival]:
    """Arrivals phase after phase: gamma gaps (`cv` 1: Poisson), lengths, tiers and keys drawn
    apart, so that another rate leaves the lengths as they were."""
    parts = ("gaps", "lengths", "tiers", "keys")
    gaps, sizes, who, whose = (random.Random(f"{seed}/{part}") for part in parts)
    made: list[Arrival] = []
    begin = start_s
    for phase in phases:
        names, weights = list(phase.tiers), list(phase.tiers.values())
        shape = 1 / phase.cv**2
        # Begun long before: a process that starts with an arrival starts within a burst.
        now = begin - 4 * phase.cv**2 / phase.rate if phase.rate > 0 else math.inf
        while True:
            now += gaps.gammavariate(shape, 1 / (shape * phase.rate)) if now < math.inf else 0.0
            if now >= begin + phase.duration_s:
                break
            if now < begin:
                continue
            prompt, output = phase.lengths.draw(sizes)
            tier = who.choices(names, weights)[0]
            keys = phase.keys.get(tier)
            key = whose.choices(range(len(keys)), keys)[0] if keys else 0
            made.append(Arrival(now, tier, prompt, output, key=key))
        begin += phase.duration_s
    return made


def _phased(name: str, scene: Scene, phases: Sequence[Phase]) -> Workload:
    *changes, duration_s = accumulate(phase.duration_s for phase in phases)
    made = tuple(arrivals(phases, scene.seed))
    return Workload(name, duration_s, made, changes=tuple(changes))


def _levels(
    scene: Scene, parts: Iterable[tuple[float, float, Lengths]], *, cv: float = 1.0
) -> list[Phase]:
    """Phases from (minutes, factor of the load, lengths)."""
    parts = list(parts)
    # Once for each: a day has 48 phases of the same lengths, and the sample behind a rate is large.
    rates = {lengths: scene.rate(lengths) for lengths in {part[2] for part in parts}}
    return [
        Phase(
            minutes * MINUTE * scene.stretch,
            factor * rates[lengths],
            scene.fit(lengths),
            cv,
            scene.tiers,
        )
        for minutes, factor, lengths in parts
    ]


def _steady(scene: Scene) -> Workload:
    """Poisson chat."""
    return _phased("steady", scene, _levels(scene, [(10, 1.0, CHAT)]))


def _step(scene: Scene) -> Workload:
    """A third at 0.4 of the load, a third at 1.2, a third at 0.4."""
    parts = [(5, 0.4, CHAT), (5, 1.2, CHAT), (5, 0.4, CHAT)]
    return _phased("step", scene, _levels(scene, parts))


def _bursts(cv: float) -> Callable[[Scene], Workload]:
    def make(scene: Scene) -> Workload:
        return _phased(f"bursts-{cv:g}", scene, _levels(scene, [(20, 1.0, CHAT)], cv=cv))

    make.__doc__ = f"Chat with gamma gaps whose coefficient of variation is {cv:g}."
    return make


def _diurnal(scene: Scene) -> Workload:
    """A day in 48 minutes, as one was measured (`bench.day`); the load is that of the peak."""
    return _phased("diurnal", scene, _levels(scene, [(1.0, part, CHAT) for part in DAY]))


def _chat(scene: Scene) -> Workload:
    """Twenty minutes of Poisson chat."""
    return _phased("chat", scene, _levels(scene, [(20, 1.0, CHAT)]))


def _code(scene: Scene) -> Workload:
    """Code completion: long prompts, short answers, bursts (variation 9)."""
    return _phased("code", scene, _levels(scene, [(20, 1.0, CODE)], cv=9.0))


def _alternating(scene: Scene) -> Workload:
    """Chat and code, ten minutes each, twice; each at the load for its own lengths."""
    return _phased("alternating", scene, _levels(scene, [(10, 1.0, CHAT), (10, 1.0, CODE)] * 2))


def _backlog(scene: Scene) -> Workload:
    """A day of paid and free chat (the load is the peak's) over an endless offline backlog."""
    online = replace(scene, tiers=ONLINE)
    day = _diurnal(online)
    # More than any batch holds: there is always somebody offline who waits.
    jobs = Clients(
        "offline", 2 * scene.replicas * min(64, scene.settings.max_seqs), 0.0, scene.fit(JOBS)
    )
    return Workload("backlog", day.duration_s, day.arrivals, (jobs,))


def _flood(scene: Scene) -> Workload:
    """Chat, and in the fifth of ten minutes ten times as much free traffic."""
    free = scene.tiers.get("free", 0.5) * scene.rate(CHAT)
    minute = Phase(MINUTE * scene.stretch, 9 * free, scene.fit(CHAT), 1.0, {"free": 1.0})
    return _beside("flood", _steady(scene), minute, scene, begin=4 * MINUTE * scene.stretch)


def _greedy_key(scene: Scene) -> Workload:
    """Chat, the free tier's of eight keys alike, and for six of ten minutes a ninth free key that
    sends as much as the executors can do, in long jobs."""
    calm = replace(_levels(scene, [(10, 1.0, CHAT)])[0], keys={"free": (1.0,) * FREE_KEYS})
    # The rate at load 1, whatever the load of the others.
    rate = scene.rate(JOBS) / scene.load
    greedy = Phase(
        6 * MINUTE * scene.stretch,
        rate,
        scene.fit(JOBS),
        tiers={"free": 1.0},
        keys={"free": (0.0,) * FREE_KEYS + (1.0,)},
    )
    begin = 2 * MINUTE * scene.stretch
    return _beside("greedy-key", _phased("calm", scene, [calm]), greedy, scene, begin=begin)


def _beside(name: str, calm: Workload, phase: Phase, scene: Scene, *, begin: float) -> Workload:
    """A workload into which a phase comes, whose arrivals leave the others what they are."""
    added = arrivals([phase], scene.seed + 1_000_003, start_s=begin)
    merged = sorted((*calm.arrivals, *added), key=lambda arrival: arrival.time_s)
    changes = (begin, begin + phase.duration_s)
    return Workload(name, calm.duration_s, tuple(merged), changes=changes)


def _long_prompts(scene: Scene) -> Workload:
    """Chat whose prompts are four times as long from the middle on, at the same rate."""
    first = _levels(scene, [(10, 1.0, CHAT)])[0]
    longer = Phase(first.duration_s, first.rate, scene.fit(CHAT.times(4)), first.cv, first.tiers)
    return _phased("long-prompts", scene, [first, longer])


def _faults(scene: Scene) -> Workload:
    """Chat; no measurements for 30 s, a stall of 5 s, and a worker that is gone for 10 s."""
    calm = _steady(scene)
    at = calm.duration_s / 10
    faults = (
        FaultAt(2 * at, "blind", 30.0),
        FaultAt(5 * at, "stall", 5.0),
        FaultAt(8 * at, "exit", 10.0),
    )
    return Workload("faults", calm.duration_s, calm.arrivals, (), faults)


def _closed(scene: Scene) -> Workload:
    """Clients who wait for their answers and think for a second; the load is theirs per seat."""
    lengths = scene.fit(CHAT)
    seats = 64 * scene.replicas
    groups = tuple(
        Clients(tier, max(1, round(scene.load * seats * part)), 1.0, lengths)
        for tier, part in scene.tiers.items()
    )
    return Workload("closed", 10 * MINUTE * scene.stretch, (), groups)


@dataclass(frozen=True, slots=True)
class Named:
    """How a workload is made, and its load where nobody says otherwise."""

    make: Callable[[Scene], Workload]
    load: float


WORKLOADS: Mapping[str, Named] = MappingProxyType(
    {
        "steady": Named(_steady, 0.7),
        "step": Named(_step, 0.8),
        "bursts-2": Named(_bursts(2.0), 0.7),
        "bursts-9": Named(_bursts(9.0), 0.7),
        "diurnal": Named(_diurnal, 1.0),
        "chat": Named(_chat, 0.7),
        "code": Named(_code, 0.7),
        "alternating": Named(_alternating, 0.9),
        "backlog": Named(_backlog, 0.7),
        "flood": Named(_flood, 0.6),
        "greedy-key": Named(_greedy_key, 0.5),
        "long-prompts": Named(_long_prompts, 0.6),
        "faults": Named(_faults, 0.6),
        "closed": Named(_closed, 1.0),
    }
)
