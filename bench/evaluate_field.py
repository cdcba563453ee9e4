"""Who competes in the evaluation of the policies, and on which seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.baseline_pang import SEARCH
from bench.case import Contender
from bench.evaluate_cells import Cell, is_of_the_ten
from bench.evaluation import REPORTED, Side
from policies.registry import TYPES, problems

# The policy that the product ships with; until it is there, the one that was so before.
DEFAULT = "slo" if "slo" in TYPES else "aimd"
STATIC, FIFO, ORACLE = "best static", "best static, FIFO", "oracle"
CLIPPER, BENTOML, PANG = "Clipper", "BentoML", "sla_search, best of 4"
VLLM = "vLLM 256, 2048"
VLLM_FIFO = "vLLM 256, 2048, FIFO"
# Parts of the tightest inter-token target that Pang's search aims at.
AIMS = (0.7, 0.8, 0.9, 1.0)
# What holds limits, and what needs to be told when to hold which.
_NO_RULES = ("static", "schedule")
_PANG = "bench.baseline_pang:Pang"
# Each of the four on so many of the reported seeds; the best of them on all.
_AIMS_SEEDS = REPORTED[:2]


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender under one kind of queue, on some of the reported seeds (the first ones)."""

    contender: Contender
    side: Side
    seeds: Sequence[int]

    @property
    def name(self) -> str:
        """As tables show it."""
        return self.contender.label


def named(name: str, text: str) -> Contender:
    """A contender as `Contender.parse` reads it, under another name."""
    parsed = Contender.parse(text)
    return Contender(
        name,
        parsed.type,
        parsed.parameters,
        parsed.size,
        parsed.tokens,
        parsed.wait_s,
        parsed.fifo,
        parsed.hold,
    )


def default_entry(cell: Cell, queues: Side) -> Entry:
    """The policy that is judged."""
    return Entry(named(DEFAULT, DEFAULT), queues, cell.contested())


def rules(cell: Cell, queues: Side) -> list[Entry]:
    """The rules of others, on all seeds where they are held against the default policy."""
    seeds = cell.contested() if is_of_the_ten(cell) else cell.few()
    return [
        Entry(named(CLIPPER, "bench.baseline_clipper:Clipper"), queues, seeds),
        Entry(named(BENTOML, "bench.baseline_bentoml:BentoMl:hold=fixed"), queues, seeds),
    ]


def aims(queues: Side) -> list[Entry]:
    """Pang's search at four targets; none while there is no such policy."""
    if problems(_PANG, {}):
        return []
    return [Entry(named(f"aim={aim}", f"{_PANG}:aim={aim}"), queues, _AIMS_SEEDS) for aim in AIMS]


def others(cell: Cell, queues: Side) -> list[Entry]:
    """Every other rule of the product, on a few seeds."""
    left = [name for name in TYPES if name not in (DEFAULT, SEARCH, *_NO_RULES)]
    return [Entry(named(name, name), queues, cell.few()) for name in left if not problems(name, {})]


def vendors(cell: Cell, queues: Side, fifo: Side) -> list[Entry]:
    """What engines and servers come with, first in first out as they have it; vLLM's limits also
    with our queues.

    vLLM: max_num_seqs 256, max_num_batched_tokens 2048. TGI: max_concurrent_requests 128,
    max_batch_prefill_tokens 4096. TensorFlow Serving: max_batch_size 1000 (here as many as there
    are seats), batch_timeout_micros 0. Triton: default-max-batch-size 4, no queue delay.
    """
    seeds = cell.seeds() if cell.workload == "alternating" else cell.few()
    texts = [(VLLM, "static:B=256,T=2048,W=0", queues)]
    texts.append((VLLM_FIFO, "static:B=256,T=2048,W=0,queue=fifo", fifo))
    if cell.executor == "E1":
        texts.append(("TF Serving 1000", "static:B=256,T=8192,W=0,queue=fifo", fifo))
        texts.append(("Triton 4", "static:B=4,T=8192,W=0,queue=fifo", fifo))
    if cell.executor == "E2":
        texts.append(("TGI 128, 4096", "static:B=128,T=4096,W=0,queue=fifo", fifo))
    return [Entry(named(name, text), side, seeds) for name, text, side in texts]
