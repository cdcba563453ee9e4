"""What is reported of an engine behind HTTP, and when: all that came in one turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from executor.contract import (
    Capacity,
    Finished,
    FinishReason,
    Key,
    PromptLength,
    Report,
    Returned,
    Said,
    Tokens,
)
from executor.process import Events
from executor.upstream_bursts import Arrival, Bursts, Step
from executor.upstream_scrape import Scraper
from executor.upstream_talk import Talk


class Telling:
    """The reports of one incarnation. Tokens are told with the end of the turn in which they came,
    and a step when it is known to be over: nobody's token waits for that.

    `moved_at` is when the last token came, `epoch` the limits in force. `talks` are those that go
    on, and lose those that are finished. `on_error` is told when whoever hears a report raised.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        events: Events,
        *,
        scraper: Scraper,
        capacity: Capacity,
        clock: Callable[[], float],
        on_error: Callable[[Exception], None],
        talks: dict[Key, Talk],
    ) -> None:
        self.epoch = 0
        self.moved_at = clock()
        self._name = name
        self._incarnation = incarnation
        self._events = events
        self._scraper = scraper
        self._capacity = capacity
        self._clock = clock
        self._on_error = on_error
        self._talks = talks
        self._loop = asyncio.get_running_loop()
        self._bursts = Bursts()
        self._heard: dict[Talk, tuple[int, list[Said]]] = {}
        self._prompts: list[PromptLength] = []
        self._finished: list[Finished] = []
        self._returned: list[Returned] = []
        self._released: list[Key] = []
        self._warning = ""
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # --- what happens -----------------------------------------------------------------------

    def begin(self) -> None:
        """The engine was given a request."""
        now = self._clock()
        if len(self._talks) == 1:
            self.moved_at = now
        self._bursts.begin(now)

    def on_said(self, talk: Talk, said: Said, tokens: int) -> None:
        """See Hearer."""
        before, everything = self._heard.get(talk, (0, []))
        everything.append(said)
        self._heard[talk] = (before + tokens, everything)
        self._tell_soon()

    def on_finished(self, talk: Talk, reason: FinishReason) -> None:
        """See Hearer."""
        key = talk.key
        self._finished.append(Finished(key.request_id, key.attempt, reason))
        del self._talks[key]
        self._tell_soon()

    def returned(self, returned: Returned) -> None:
        """The engine gave a request back, or failed with it."""
        self._returned.append(returned)
        self._tell_soon()

    def released(self, key: Key) -> None:
        """The engine has let go of a request."""
        self._released.append(key)
        self._tell_soon()

    def forget(self, talk: Talk) -> None:
        """What came of it and was not told yet is of no use to anybody."""
        self._heard.pop(talk, None)

    def warn(self, words: str) -> None:
        """Tell something that somebody should look at."""
        self._warning = words
        self._tell_soon()

    def close(self) -> None:
        """Tell nothing any more."""
        self._closed = True
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()

    # --- what is told -----------------------------------------------------------------------

    def _tell_soon(self) -> None:
        if self._soon is None and not self._closed:
            self._soon = self._loop.call_soon(self._tell)

    def _tell(self) -> None:
        self._soon = None
        now = self._clock()
        heard, self._heard = self._heard, {}
        tokens, arrivals = [], []
        for talk, (count, said) in heard.items():
            key = talk.key
            if talk.knows_prompt and not talk.told_prompt:
                talk.told_prompt = True
                self._prompts.append(PromptLength(key.request_id, key.attempt, talk.prompt))
            tokens.append(Tokens(key.request_id, key.attempt, talk.told, [0] * count, said))
            if count:
                prompt = 0 if talk.told else talk.prompt
                arrivals.append(Arrival(key, count, talk.prompt + talk.told, prompt))
                talk.told += count
        step = None
        if arrivals:
            self.moved_at = now
            step = self._bursts.come(arrivals, now, epoch=self.epoch)
        self._report(step, tokens)
        if not self._talks:
            # Nobody else will come with this one.
            self._step_is_over()
            self._bursts.rest()
        self._watch()

    def _report(self, step: Step | None, tokens: list[Tokens]) -> None:
        ends = (self._finished, self._returned, self._released)
        if not (step or tokens or self._warning or any(ends)):
            return
        report = msgspec.structs.replace(
            self._of_step(step),
            tokens=tokens,
            finished=self._finished,
            released=self._released,
            returned=self._returned,
            prompts=self._prompts,
            warning=self._warning,
        )
        self._finished, self._returned, self._released = [], [], []
        self._prompts, self._warning = [], ""
        self._send(report)

    def _of_step(self, step: Step | None) -> Report:
        """What there is to say when a step is over, or none."""
        scrape = self._scraper.fresh(self._clock())
        kv = None if scrape is None else scrape.kv
        kv_tokens = None if kv is None else round(kv * self._capacity.kv_tokens)
        if step is None:
            return Report(epoch=self.epoch, steps=0, kv_tokens=kv_tokens)
        return Report(
            epoch=step.epoch,
            steps=step.steps,
            sample=step.sample,
            kv_tokens=kv_tokens,
            paused=self._scraper.take_paused(),
        )

    def _send(self, report: Report) -> None:
        if self._closed:
            return
        try:
            self._events.on_report(self._name, self._incarnation, report)
        except Exception as error:
            self._on_error(error)

    def _step_is_over(self) -> None:
        # Nothing else with it: an end must not be told before the tokens that came before it.
        if (step := self._bursts.close()) is not None:
            self._send(self._of_step(step))

    def _watch(self) -> None:
        """Look again when the step under way is over."""
        over_at = self._bursts.over_at
        if self._timer is None and over_at is not None and not self._closed:
            self._timer = self._loop.call_later(max(0.0, over_at - self._clock()), self._look)

    def _look(self) -> None:
        self._timer = None
        over_at = self._bursts.over_at
        # A timer may be early by its resolution; and another step may have begun meanwhile.
        if over_at is not None and over_at <= self._clock() + 0.0005:
            self._step_is_over()
        self._watch()
