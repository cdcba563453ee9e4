"""Which steps of an executor are measured to learn what a step costs, and how they come about.

A probe begins equal prompts at once, lets them decode, and sends some of them away again and again:
one prefill shows every size at that context.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from bench.one_worker import OneWorker, WorkerFailed
from executor.contract import Capacity, Key, Report, Sampling, StepSample, Submit, Work

CONTEXTS = (64, 512, 2048, 8192)
PROMPTS = (16, 64, 256, 1024, 4096)
# How many decode steps are wanted of each size, and how many more may pass until it is told to go
# on with fewer: it does not wait for an answer.
DECODES = 8
SLACK = 8
# Executors keep KV in blocks, the last one of a sequence in part empty.
BLOCK = 32
_SAMPLING = Sampling(ignore_eos=True)


@dataclass(frozen=True, slots=True)
class Probe:
    """`sizes[0]` prompts of `prompt` tokens at once; then steps at each of the sizes, descending.

    `new_tokens` of each at most: 1 ends with the prefill.
    """

    prompt: int
    sizes: tuple[int, ...]
    new_tokens: int

    @property
    def tokens(self) -> int:
        """What it computes, roughly: what its time is guessed from."""
        return self.prompt * self.sizes[0] + sum(self.sizes) * min(self.new_tokens, DECODES)

    def smaller(self) -> Probe | None:
        """The same without its largest size; None where that is the only one."""
        return replace(self, sizes=self.sizes[1:]) if len(self.sizes) > 1 else None


def probes_of(capacity: Capacity) -> list[Probe]:
    """What is worth measuring within this capacity, cheap ones first."""
    made = [*_prefills(capacity), *_descents(capacity)]
    return sorted(made, key=lambda probe: probe.tokens)


def _longest(capacity: Capacity, new_tokens: int) -> int:
    """The longest prompt that can be probed with so many tokens after it."""
    room = min(capacity.max_context_tokens, capacity.kv_tokens - BLOCK) - new_tokens
    return room if capacity.splits_prefill else min(room, capacity.max_step_tokens)


def _prefills(capacity: Capacity) -> Iterator[Probe]:
    most = min(_longest(capacity, 1), capacity.max_step_tokens)
    for prompt in _up_to(PROMPTS, most):
        # The same tokens as one prompt and as several tell their squares apart.
        together = min(4, most // prompt, capacity.max_seqs)
        for count in {1, max(1, together)}:
            yield Probe(prompt, (count,), 1)


def _descents(capacity: Capacity) -> Iterator[Probe]:
    at_once = DECODES + SLACK
    # A batch that runs to completion costs to its end what it cost at its beginning.
    levels = 1 if capacity.runs_to_completion else len(sizes_up_to(capacity.max_seqs))
    room = min(capacity.max_context_tokens // 2, capacity.kv_tokens // 4)
    new_tokens = max(2, min(levels * at_once, room))
    for prompt in _up_to(CONTEXTS, _longest(capacity, new_tokens)):
        sizes = sizes_up_to(_most(capacity, prompt + min(at_once, new_tokens) + BLOCK))
        if capacity.runs_to_completion:
            yield from (Probe(prompt, (size,), new_tokens) for size in sizes)
        else:
            yield Probe(prompt, sizes, new_tokens)


def _most(capacity: Capacity, held: int) -> int:
    """How many sequences memory has room for, each of which holds so many tokens.

    The first ones of many decode while the last ones prefill.
    """
    most = min(capacity.max_seqs, capacity.kv_tokens // held)
    return max(1, min(most, capacity.kv_tokens // (held + most * held // capacity.max_step_tokens)))


def _up_to(sizes: Sequence[int], most: int) -> list[int]:
    """Those that fit, and `most` itself where it is well beyond the last of them."""
    fitting = [size for size in sizes if size <= most]
    if most >= 1 and (not fitting or sizes[-1] > most >= fitting[-1] * 1.5):
        fitting.append(most)
    return fitting


def sizes_up_to(top: int) -> tuple[int, ...]:
    """From `top` down to 1, by a quarter or a third at a time: 16, 12, 8, 6, 4, 3, 2, 1."""
    powers = [2**power for power in range(top.bit_length())]
    between = [3 * power // 2 for power in powers[1:]]
    return tuple(sorted({top, *(size for size in powers + between if size < top)}, reverse=True))


@dataclass(slots=True, eq=False)
class Prober:
    """Lets a worker go through probes. `clock` is monotonic; nothing is begun after `until_s`.

    `impossible` are probes for which its memory did not suffice, though it says so.
    """

    worker: OneWorker
    clock: Callable[[], float]
    until_s: float
    impossible: set[Probe] = field(default_factory=set)
    _random: random.Random = field(default_factory=lambda: random.Random(0))
    _count: int = 0

    @property
    def is_late(self) -> bool:
        """Whether the time for measuring is over."""
        return self.clock() >= self.until_s

    async def measure(self, probe: Probe) -> list[StepSample]:
        """The steps of a probe, as the worker saw them; cut short when the time is over.

        Raises WorkerFailed.
        """
        submits = [self._submit(probe) for _ in range(probe.sizes[0])]
        self._send(submits, [])
        running = [Key(submit.request_id, submit.attempt) for submit in submits]
        leaving: set[Key] = set()
        samples: list[StepSample] = []
        sizes, seen = list(probe.sizes), 0
        while running or leaving:
            report = await self.worker.report()
            over = self._over(probe, report)
            running = [key for key in running if key not in over]
            leaving -= set(report.released)
            sample = report.sample
            if sample is None:
                continue
            samples.append(sample)
            if not sizes:
                continue
            seen += sample.decodes == sizes[0] and sample.prefill_tokens == 0
            if seen >= DECODES or self.is_late:
                sizes, seen = [] if self.is_late else sizes[1:], 0
                stay = sizes[0] if sizes else 0
                running, gone = running[:stay], running[stay:]
                leaving |= set(gone)
                self._send([], gone)
        return samples

    def _submit(self, probe: Probe) -> Submit:
        self._count += 1
        # Prompts that begin alike would share their KV. Every vocabulary has so many tokens.
        tokens = list(self._random.randbytes(probe.prompt))
        return Submit(f"p{self._count}", 1, tokens, probe.prompt, probe.new_tokens, _SAMPLING)

    def _send(self, submits: list[Submit], releases: list[Key]) -> None:
        budget = self.worker.ready.capacity.max_step_tokens
        self.worker.send(Work(1, budget, submits, releases))

    def _over(self, probe: Probe, report: Report) -> set[Key]:
        """Who is done, or was given back."""
        for one in report.returned:
            if one.reason != "out_of_memory":
                raise WorkerFailed(f"a step failed: {one.detail}")
            self.impossible.add(probe)
        finished = {Key(one.request_id, one.attempt) for one in report.finished}
        return finished | {Key(one.request_id, one.attempt) for one in report.returned}
