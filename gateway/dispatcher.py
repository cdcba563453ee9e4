"""The single writer: everything that happens to a request or an executor goes through here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import structlog

from controller.batcher import Batcher
from controller.errors import NotReady
from controller.observer import Observer
from controller.places import Permit
from controller.request import Ended, Outcome, Request
from executor.contract import Capacity, Loading, Ready, Report, TextModel, Work
from gateway.contract import Sink
from gateway.views import Remembered

# How many ended requests are remembered for whoever asks where their time went.
REMEMBERED = 1000
# Until an executor has loaded once, this is how long its restart is thought to take.
FIRST_LOAD_S = 10.0
SINK_FAILED = "something went wrong here; see the server's log"


class Sender(Protocol):
    """An executor as the dispatcher needs it."""

    def send(self, work: Work) -> None:
        """Write a message; dropped when nobody is there."""


class Dispatcher:
    """Drives the batcher in real time: calls it, carries its plans out, wakes when it asks.

    `learn` is told what is served before anybody is: reading a tokenizer takes a while. `recall` is
    told which executor is ready before anything is learnt of it.
    All methods run on the event loop. Tokens go straight from a report to their sinks: no queue,
    no task. The methods `on_*` are the executors' events.
    """

    def __init__(
        self,
        batcher: Batcher,
        observer: Observer,
        *,
        clock: Callable[[], float],
        learn: Callable[[TextModel], object] = lambda text: None,
        recall: Callable[[str, Capacity], None] = lambda executor, capacity: None,
    ) -> None:
        self.batcher = batcher
        self.executors: dict[str, Sender] = {}
        self.clock = clock
        self.remembered: OrderedDict[str, Remembered] = OrderedDict()
        # Set while no request waits or runs, and none is on its way into a queue.
        self.empty = asyncio.Event()
        self.empty.set()
        # Set when every executor has ended for good, so that nothing can ever be served.
        self.given_up = asyncio.Event()
        self._observer = observer
        self._learn = learn
        self._recall = recall
        self._sinks: dict[str, Sink] = {}
        self._text: TextModel | None = None
        self._capacity: Capacity | None = None
        self._soon = False
        self._wake: asyncio.TimerHandle | None = None
        self._wake_instant: float | None = None
        self._started = clock()
        self._down_since: dict[str, float] = {}
        self._load_s: dict[str, float] = {}
        self._log = structlog.get_logger("headway.dispatcher")

    # --- requests ---------------------------------------------------------------------------

    def model(self) -> tuple[TextModel, Capacity]:
        """What is served. Raises NotReady before the first executor was ready."""
        if self._text is None or self._capacity is None:
            raise NotReady("the model is still loading", retry_after_s=1.0)
        return self._text, self._capacity

    def reserve(
        self,
        tier: str,
        *,
        requests: int,
        tokens: int,
        size: int,
        start_by: float | None = None,
        client: str = "",
    ) -> Permit:
        """See `Desk.reserve`."""
        permit = self.batcher.reserve(
            tier,
            requests=requests,
            tokens=tokens,
            size=size,
            now=self.clock(),
            start_by=start_by,
            client=client,
        )
        self.empty.clear()
        return permit

    def give_back(self, permit: Permit) -> None:
        """See `Desk.give_back`."""
        self.batcher.give_back(permit)
        self._note_empty()

    def offer(self, request: Request, permit: Permit, sink: Sink) -> None:
        """See `Desk.offer`."""
        self.batcher.offer(request, permit, self.clock())
        self._sinks[request.id] = sink
        self._pump_soon()

    def cancel(self, request_id: str, outcome: Outcome, reason: str) -> bool:
        """See `Desk.cancel`."""
        known = self.batcher.cancel(request_id, self.clock(), outcome, reason)
        if known:
            self._pump_soon()
        return known

    def _pump_soon(self) -> None:
        """Pump once this turn of the loop is over: what came in it goes together."""
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        """Poll the batcher and carry its plan out. What sinks ask for meanwhile comes next turn."""
        self._soon = False
        plan = self.batcher.poll(self.clock())
        for name, work in plan.work.items():
            self.executors[name].send(work)
        for ended in plan.ended:
            self._tell_end(ended)
        self._note_empty()
        self._wake_at(plan.wake_at)

    # --- executors --------------------------------------------------------------------------

    def on_loading(self, name: str, loading: Loading) -> None:
        """An executor says how far it is."""
        self._log.info("loading", executor=name, stage=loading.stage, fraction=loading.fraction)

    def on_ready(self, name: str, incarnation: int, ready: Ready) -> None:
        """An executor takes work from now on."""
        now = self.clock()
        self._text, self._capacity = ready.text, ready.capacity
        self._learn(ready.text)
        self._load_s[name] = now - self._down_since.get(name, self._started)
        self._recall(name, ready.capacity)
        self._observer.warmed_up(name, ready.warmup)
        self.batcher.on_ready(name, incarnation, ready.capacity, now)
        self._log.info(
            "executor ready",
            executor=name,
            model=ready.capacity.model,
            device=ready.capacity.device,
            seats=ready.capacity.max_seqs,
            kv_tokens=ready.capacity.kv_tokens,
        )
        self.pump()

    def on_report(self, name: str, incarnation: int, report: Report) -> None:
        """A step: its tokens go out, then what they set free is used."""
        now = self.clock()
        if report.warning:
            self._log.warning("executor warns", executor=name, warning=report.warning)
        sinks = self._sinks
        # Ends are told by the next pump: one that finished here has all of its text by then.
        for request, ids, logprobs in self.batcher.on_report(name, incarnation, report, now):
            if (sink := sinks.get(request.id)) is not None:
                try:
                    if logprobs is None:
                        sink.on_tokens(ids, now)
                    else:
                        sink.on_tokens(ids, now, logprobs)
                except Exception:
                    self._give_up_sink(request, sink)
        if self.batcher.has_news():
            self._pump_soon()

    def on_lost(self, name: str, incarnation: int, reason: str, restart_in_s: float | None) -> None:
        """An executor is gone; what it held waits again."""
        now = self.clock()
        back_at = None
        if restart_in_s is not None:
            self._down_since[name] = now + restart_in_s
            back_at = now + restart_in_s + self._load_s.get(name, FIRST_LOAD_S)
        self._log.error("executor lost", executor=name, reason=reason, restart_in_s=restart_in_s)
        self.batcher.on_lost(name, incarnation, now, back_at=back_at)
        self.pump()
        seats = self.batcher.executors.values()
        if all(other.back_at is None and not other.ready for other in seats):
            self.given_up.set()

    # --- inside -----------------------------------------------------------------------------

    def _give_up_sink(self, request: Request, sink: Sink) -> None:
        """It lost text, so it must not end well; those beside it have lost nothing."""
        self._log.exception("a sink failed", request=request.id)
        del self._sinks[request.id]
        self.cancel(request.id, Outcome.FAILED, "sink_failed")
        self._end(sink, Ended(request, Outcome.FAILED, "sink_failed", SINK_FAILED))

    def _tell_end(self, ended: Ended) -> None:
        request = ended.request
        if (sink := self._sinks.pop(request.id, None)) is not None:
            self._end(sink, ended)
        self.remembered[request.id] = Remembered.of(request)
        if len(self.remembered) > REMEMBERED:
            self.remembered.popitem(last=False)

    def _end(self, sink: Sink, ended: Ended) -> None:
        try:
            sink.on_end(ended)
        except Exception:
            self._log.exception("a sink failed at its end", request=ended.request.id)

    def _note_empty(self) -> None:
        if self.batcher.book.requests:
            self.empty.clear()
            return
        for queue in self.batcher.queues.values():
            if queue.reserved.requests:
                self.empty.clear()
                return
        self.empty.set()

    def _wake_at(self, instant: float | None) -> None:
        if instant == self._wake_instant:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake, self._wake_instant = None, instant
        if instant is not None:
            delay_s = max(0.0, instant - self.clock())
            self._wake = asyncio.get_running_loop().call_later(delay_s, self._wake_up)

    def _wake_up(self) -> None:
        self._wake_at(None)
        self.pump()
