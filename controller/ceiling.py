"""How much may be held and computed at once after memory ran out, and when more is tried again.

What failed is tried again in halves; what is known to be too much is remembered and stayed below,
and after a while approached by small steps. Two quantities may be to blame: the tokens that all
sequences hold, and those that one step computes, which need memory for as long as it lasts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from controller.config_control import GuardConfig

# After `oom_probe_after` a ceiling rises by one step so often.
PROBE_EVERY_S = 60.0
# By then it has risen beyond any memory, and no float overflows.
_MOST_STEPS = 500


@dataclass(slots=True)
class Bound:
    """`kept` tokens are allowed until the instant `until`, and from then on a little more every
    minute, since `failed` ran out of memory; infinite: nothing did."""

    failed: float = math.inf
    kept: float = math.inf
    until: float = -math.inf

    def at(self, now: float, step: float) -> float:
        """Tokens that are allowed now."""
        if now < self.until or self.kept == math.inf:
            return self.kept
        steps = 1 + min((now - self.until) // PROBE_EVERY_S, _MOST_STEPS)
        return float(self.kept * (1 + step) ** steps)


class Ceiling:
    """What the executors of a group may hold, and compute in one step, by what ran out of memory.

    `GuardConfig` says which part of what failed is kept (`oom_keep`), for how long
    (`oom_probe_after`), and by what fraction a minute it rises afterwards (`oom_probe_step`).
    """

    def __init__(self, config: GuardConfig) -> None:
        self.config = config
        self._held = Bound()
        self._step = Bound()
        self._never = Bound()

    def tokens(self, now: float) -> float:
        """Tokens that may be held; infinite where nothing is known."""
        return self._held.at(now, self.config.oom_probe_step)

    def step_tokens(self, now: float) -> float:
        """Tokens that a step may compute; infinite where nothing is known."""
        return self._step.at(now, self.config.oom_probe_step)

    def is_probed(self, now: float) -> bool:
        """Whether what failed is long enough ago for more to be tried."""
        return now >= self._held.until

    def known(self, now: float) -> tuple[float, float] | None:
        """Tokens that may be held, and for how many seconds that is not tried out; None: nothing
        ran out of memory lately."""
        tokens = self.tokens(now)
        return None if tokens == math.inf else (tokens, max(0.0, self._held.until - now))

    def recall(self, tokens: float, left_s: float, now: float) -> None:
        """Stay below what was known before the start."""
        keep = self.config.oom_keep
        self._held = Bound(tokens / keep if keep else tokens, tokens, now + left_s)

    def ran_out(
        self, held: float | None, step: float | None, now: float, *, least: float = 0.0
    ) -> None:
        """Memory ran out with so many tokens held, or computed in one step; None: that many were
        known to fit, and it was the other that was too much. `least` may still be held."""
        if held is not None:
            self._held = self._lowered(self._held, held, now, least=least)
        if step is not None:
            self._step = self._lowered(self._step, step, now)

    def fitted(self, held: float, step: float) -> None:
        """A step held and computed so many tokens: what failed with fewer failed for something
        that has passed."""
        if held >= self._held.failed:
            self._held = Bound()
        if step >= self._step.failed:
            self._step = Bound()

    def never(self, tokens: int, now: float) -> None:
        """A request with so many tokens can never be held, not even alone."""
        self._never = self._lowered(self._never, tokens, now)

    def refusal(self, prompt_tokens: int, now: float) -> int | None:
        """The tokens that ran out of memory even for one request alone, if this prompt has as many;
        nobody is refused for what happened longer ago than `oom_probe_after`."""
        is_known = now < self._never.until and prompt_tokens >= self._never.failed
        return int(self._never.failed) if is_known else None

    def forget(self) -> None:
        """The ceiling on what is held has risen beyond all the memory that there is."""
        self._held = Bound()

    def _lowered(self, bound: Bound, failed: float, now: float, *, least: float = 0.0) -> Bound:
        """What failed above a bound that is known already says nothing new but when."""
        kept = max(least, self.config.oom_keep * failed)
        kept = min(kept, bound.at(now, self.config.oom_probe_step))
        return Bound(min(failed, bound.failed), kept, now + self.config.oom_probe_after)


@dataclass(slots=True)
class Retry:
    """What one executor may take at first after it ran out of memory: half of what failed, then
    twice of what has fitted since. Infinite: it has not, or it is over.

    `held` and `step` bound the tokens of all sequences and of one step; `held_fitted` and
    `step_fitted` are the most that steps had since the last failure, after which `suspect` tokens
    or a smaller step were to blame; 0: it is known which.
    """

    held: float = math.inf
    step: float = math.inf
    held_fitted: int = 0
    step_fitted: int = 0
    suspect: int = 0

    def ran_out(self, held: int, step: int, *, least_step: int) -> tuple[int | None, int | None]:
        """A step failed that would have held and computed so many tokens. Answers those of the two
        that may be to blame: not what has fitted before, unless both have; and not a step than
        which none can be smaller."""
        fits_held, fits_step = held <= self.held_fitted, step <= self.step_fitted
        can_shrink = step > least_step
        blames_held = not can_shrink or not fits_held or fits_step
        blames_step = can_shrink and (not fits_step or fits_held)
        if blames_held:
            self.held = min(self.held, max(1, held // 2))
        if blames_step:
            self.step = min(self.step, max(1, step // 2))
        self.suspect = held if blames_held and blames_step else 0
        self.held_fitted = self.step_fitted = 0
        return held if blames_held else None, step if blames_step else None

    def fitted(self, held: int, step: int) -> None:
        """A step held and computed so many tokens."""
        if held > self.held_fitted:
            self.held_fitted = held
            if self.held != math.inf:
                self.held = max(self.held, 2 * held)
            if held >= self.suspect:
                self.suspect = 0
        self.step_fitted = max(self.step_fitted, step)
        # One at a time: else nobody could tell which of the two fails again.
        if self.step != math.inf and not self.suspect:
            self.step = max(self.step, 2 * step)


@dataclass(slots=True)
class Memory:
    """What is known of one executor's memory. `ceiling` is its group's, `retry` its own.

    `held` tokens may be held, and `step` computed in one step, by both, as they were at the last
    look. `whole` says that what gave something back last gave back everything, and `alone` that
    this was a single request, which no smaller step could have helped.
    """

    ceiling: Ceiling = field(default_factory=lambda: Ceiling(GuardConfig()))
    retry: Retry = field(default_factory=Retry)
    held: float = math.inf
    step: float = math.inf
    whole: bool = False
    alone: bool = False

    def ran_out(self, held: int, step: int, now: float, *, rows: int, least_step: int) -> None:
        """A step of `rows` sequences would have held and computed so many tokens, and everything
        was given back. No step can be smaller than `least_step`."""
        # What has fitted before is not given up by more than half at once: it may have been a
        # moment, and with few sequences the ceiling of that moment would be next to nothing.
        least = self.retry.held_fitted / 2
        blamed = self.retry.ran_out(held, step, least_step=least_step)
        self.ceiling.ran_out(*blamed, now, least=least)
        self.alone = rows == 1 and blamed[1] is None

    def fitted(self, held: int, step: int) -> None:
        """A step held and computed so many tokens."""
        self.retry.fitted(held, step)
        self.ceiling.fitted(held, step)

    def look(self, kv_tokens: int, step_tokens: int, now: float) -> bool:
        """Reckon `held` and `step` anew, for an executor that has so much; answers whether one is
        another than before."""
        ceiling, retry = self.ceiling, self.retry
        held = ceiling.tokens(now)
        if held != math.inf and held >= kv_tokens:
            ceiling.forget()
            held = math.inf
        if retry.held >= kv_tokens:
            retry.held = math.inf
        if held == math.inf or ceiling.is_probed(now):
            retry.suspect = 0
        if retry.step >= step_tokens:
            retry.step = math.inf
        step = min(retry.step, ceiling.step_tokens(now))
        is_new = (held, step) != (self.held, self.step)
        self.held, self.step = held, step
        return is_new

    def begin_again(self) -> None:
        """The executor is another process: nothing has been tried there yet."""
        self.retry, self.whole, self.alone = Retry(), False, False
