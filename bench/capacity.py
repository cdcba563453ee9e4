"""How much an executor can serve, reckoned from its step model: the rate that load 1 stands for."""

from __future__ import annotations

from collections.abc import Sequence

from executor.contract import SimulatedSettings

# Memory is never full to the last token, since lengths are not known beforehand.
KV_USED = 0.9


def fluid_rate(
    settings: SimulatedSettings, lengths: Sequence[tuple[int, int]], *, itl_s: float = 0.1
) -> float:
    """Requests per second at which the executor would be busy all the time.

    `lengths` are samples of (prompt, completion) in tokens. Batches are as large as seats, memory
    and `itl_s` (seconds a decode step may take) allow; run to completion, as large as pays. It is
    an upper bound: where requests queue, targets are missed earlier, at about 0.8 to 0.9 of it.
    """
    count = len(lengths)
    prompt = sum(p for p, _ in lengths) / count
    squares = sum(p * p for p, _ in lengths) / count
    output = sum(o for _, o in lengths) / count
    held = prompt + output / 2
    prefill_s = settings.d_s * prompt + settings.e_s * squares
    most = max(1, min(settings.max_seqs, int(KV_USED * settings.kv_tokens / (prompt + output))))
    if settings.runs_to_completion:
        longest = sorted(o for _, o in lengths)
        return max(
            size / (size * prefill_s + _of(longest, size) * _step_s(settings, size, held))
            for size in _sizes(most)
        )
    fitting = [size for size in _sizes(most) if _step_s(settings, size, held) <= itl_s] or [1]
    size = fitting[-1]
    # Prefills share their steps' fixed time with decodes where prompts are split, and with each
    # other where they are not: counted with the decodes here.
    return 1.0 / (prefill_s + output * _step_s(settings, size, held) / size)


def _step_s(settings: SimulatedSettings, size: int, held: float) -> float:
    above = max(0, size - settings.knee)
    rows = settings.c_s * (size - above) + settings.c_above_s * above
    return settings.a_s + rows + settings.b_s * size * held


def _sizes(most: int) -> list[int]:
    return sorted({*range(1, min(most, 16) + 1), *range(16, most, 4), most})


def _of(ascending: Sequence[int], size: int) -> float:
    """The expected longest of `size` draws from these lengths."""
    n, expected, below = len(ascending), 0.0, 0.0
    for rank, value in enumerate(ascending, 1):
        upto = (rank / n) ** size
        expected += value * (upto - below)
        below = upto
    return expected
