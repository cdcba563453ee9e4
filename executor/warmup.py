"""Which steps are tried before an executor is ready, so that no request pays for the first ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from executor.contract import Capacity, StepSample
from executor.engine import Progress

CONTEXTS = (64, 512)
PROMPTS = (64, 256)


class Probed(Protocol):
    """Sequences of one model, of which a step can be tried."""

    def probe(self, sequences: int, *, context: int, queries: int) -> float:
        """Seconds of a step of `sequences`, each computing `queries` tokens after `context`."""

    def rounded(self, tokens: int) -> int:
        """The KV memory, in tokens, that a sequence of so many takes."""


def warm_up(
    batch: Probed, capacity: Capacity, *, sizes: Sequence[int], progress: Progress
) -> list[StepSample]:
    """Decode steps of `sizes` at two contexts, and two prompts, as far as they fit: each once
    unmeasured, then once for the record. `sizes` empty: nothing is tried."""
    samples = []
    probes = list(_fitting(batch, capacity, sizes))
    for done, (sequences, context, queries) in enumerate(probes):
        progress("warming up", done / len(probes))
        batch.probe(sequences, context=context, queries=queries)
        duration = batch.probe(sequences, context=context, queries=queries)
        prompt = queries if queries > 1 else 0
        samples.append(
            StepSample(
                duration_s=duration,
                sequences=sequences,
                decodes=0 if prompt else sequences,
                context_tokens=sequences * context,
                prefill_tokens=sequences * prompt,
                prefill_squares=sequences * prompt**2,
            )
        )
    return samples


def _fitting(
    batch: Probed, capacity: Capacity, sizes: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Steps of (sequences, context, queries each)."""
    decodes = [(n, context, 1) for n in sizes for context in CONTEXTS]
    prompts = [(1, 0, queries) for queries in PROMPTS if sizes]
    for sequences, context, queries in decodes + prompts:
        if (
            sequences <= capacity.max_seqs
            and sequences * queries <= capacity.max_step_tokens
            and context + queries <= capacity.max_context_tokens
            and sequences * batch.rounded(context + queries) <= capacity.kv_tokens
        ):
            yield sequences, context, queries
