"""How much less, or more, than the step model allows: what counted misses say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policies.contract import Cause, TierSignals

# T may be trimmed upwards so far, for the sake of requests that begin late.
_MOST_PROMPTS = 2.0


@dataclass(slots=True)
class Trims:
    """Factors on B (`rows`) and on the prompts in a step (`prompts`).

    A proven breach of inter-token latency multiplies the one that its cause names by `backoff`, but
    not below `least`; while all who are there have room, `back_per_s` comes back a second. A breach
    of the time to first token whose time went into prefills moves `prompts` up, as long as
    inter-token latency has room: additive increase, multiplicative decrease (Chiu and Jain 1989).
    """

    backoff: float
    back_per_s: float
    least: float
    rows: float = 1.0
    prompts: float = 1.0

    def see(
        self, tiers: Sequence[TierSignals], passed_s: float, *, full: bool
    ) -> tuple[bool, bool]:
        """Take in the verdicts of a tick; answers whether `rows` and `prompts` were cut. `full`:
        batches are as large as they may be, so that fewer rows would bring fewer prompts.
        """
        verdicts = [verdict for tier in tiers for verdict in tier.verdicts]
        itl = [verdict for verdict in verdicts if verdict.metric == "itl"]
        causes = {verdict.cause for verdict in itl if verdict.state == "breach"}
        room, back = all(one.state == "room" for one in itl), self.back_per_s * passed_s
        cut_prompts = Cause.PREFILL in causes
        # What has no memory stands still, and so does whoever joins it.
        cut_rows = bool(causes & {Cause.DECODE, Cause.MEMORY}) or (cut_prompts and full)
        if cut_rows:
            self.rows = max(self.least, self.rows * self.backoff)
        elif room:
            self.rows = min(1.0, self.rows + back)
        late = any(
            one.metric == "ttft" and one.state == "breach" and one.cause is Cause.PREFILL
            for one in verdicts
        )
        if cut_prompts:
            self.prompts = max(self.least, self.prompts * self.backoff)
        elif room and (late or self.prompts < 1.0):
            self.prompts = min(_MOST_PROMPTS if late else 1.0, self.prompts + back)
        elif self.prompts > 1.0:
            self.prompts = max(1.0, self.prompts - back)
        return cut_rows, cut_prompts

    def words(self) -> str:
        """What is trimmed, for a reason; empty where nothing is."""
        told = [
            f"{name} x {factor:.2f} by counted misses"
            for name, factor in (("B", self.rows), ("T", self.prompts))
            if factor != 1.0
        ]
        return f" ({', '.join(told)})" if told else ""
