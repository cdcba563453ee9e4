"""What a real model does with the work it is given: one paged batch, one report a step."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import msgspec
import torch
import transformers

from executor import demo_model, logprobs, paged, provision
from executor import model as models
from executor.contract import (
    DEMO_MODEL,
    Capacity,
    ContinuousSettings,
    Fault,
    Feature,
    Key,
    Ready,
    Report,
    Returned,
    Work,
)
from executor.engine import Progress
from executor.running import Running, sample
from executor.sampling import choose
from executor.warmup import warm_up

FEATURES = frozenset(
    {
        Feature.TEMPERATURE,
        Feature.TOP_P,
        Feature.TOP_K,
        Feature.SEED,
        Feature.MIN_TOKENS,
        Feature.IGNORE_EOS,
        Feature.STOP_TOKEN_IDS,
        Feature.MIN_P,
        Feature.PENALTIES,
        Feature.LOGIT_BIAS,
    }
)
"""What whoever chooses by `Running.rows` can do."""


class ContinuousEngine:
    """A causal language model run by continuous batching; see `executor.engine.Engine`.

    It begins everything that it is given: how many sequences run at once is the daemon's to say.
    """

    def __init__(self, settings: ContinuousSettings) -> None:
        self._settings = settings
        self._batch: paged.PagedBatch
        self._running: Running
        self._capacity: Capacity
        self._epoch = 0
        self._max_tokens = 0
        self._has_new_epoch = False
        self._released: list[Key] = []
        self._returned: list[Returned] = []

    def load(self, progress: Progress) -> Ready:
        """Load the weights and warm up. Raises ValueError where the settings can never work."""
        settings = self._settings
        _check_transformers(transformers.__version__)
        provision.check_attention(settings)
        # The daemon needs a core of its own: with torch on all there are, steps crawl.
        torch.set_num_threads(settings.threads or max(1, torch.get_num_threads() - 1))
        if settings.model == DEMO_MODEL:
            settings = msgspec.structs.replace(settings, model=str(_demo(progress)))
        progress("loading weights", None)
        is_stock = settings.attention != "auto"
        loaded = models.load(settings, attention=settings.attention if is_stock else None)
        provision.check_offload(settings, loaded.device)
        self._batch = paged.PagedBatch(
            loaded.model,
            max_seqs=settings.max_seqs,
            max_step_tokens=settings.max_step_tokens,
            block_size=settings.block_size,
            num_blocks=settings.num_blocks or provision.num_blocks(loaded, settings),
            prefix_sharing=settings.prefix_sharing,
            memory_fraction=provision.memory_fraction(settings, loaded.device),
            cpu_offload=settings.cpu_offload,
            is_stock=is_stock,
        )
        self._capacity = Capacity(
            model=settings.served_name,
            device=str(loaded.device),
            max_seqs=min(settings.max_seqs, self._batch.max_step_tokens),
            max_step_tokens=self._batch.max_step_tokens,
            kv_tokens=self._batch.kv_tokens,
            max_context_tokens=min(loaded.max_context_tokens, self._batch.kv_tokens),
            features=FEATURES | {Feature.LOGPROBS, Feature.ECHO},
            eos_token_ids=loaded.eos_token_ids,
        )
        _try_out(self._batch, loaded)
        self._running = Running(self._capacity, loaded.vocabulary)
        self._max_tokens = self._capacity.max_step_tokens
        samples = warm_up(
            self._batch, self._capacity, sizes=settings.warmup_sizes, progress=progress
        )
        return Ready(capacity=self._capacity, text=loaded.text, warmup=samples)

    def apply(self, work: Work) -> None:
        """Take submits, then releases, and the limits; an impossible submit is given back."""
        self._has_new_epoch |= work.epoch != self._epoch
        self._epoch = work.epoch
        self._max_tokens = max(1, min(work.max_batch_tokens, self._capacity.max_step_tokens))
        for submit in work.submit:
            problem = self._running.problem(submit)
            if problem is not None:
                self._returned.append(problem)
                continue
            name, stop_ids = self._running.begin(submit)
            self._batch.add(
                name,
                submit.tokens,
                max_new_tokens=submit.max_new_tokens,
                stop_ids=stop_ids,
                priority=submit.priority,
                is_read=self._running.reads_prompt(name),
            )
        if work.release:
            self._batch.drop(self._running.release(work.release))
            self._released.extend(work.release)

    def has_work(self) -> bool:
        """Whether a sequence runs, or a release, a refusal or new limits are to be acknowledged."""
        return bool(len(self._running) or self._released or self._returned or self._has_new_epoch)

    def step(self) -> Report:
        """One iteration of the model; see `executor.engine.Engine`."""
        released, returned = self._released, self._returned
        self._released, self._returned, self._has_new_epoch = [], [], False
        if not len(self._running):
            return Report(
                epoch=self._epoch,
                steps=0,
                kv_tokens=self._batch.held_tokens(),
                released=released,
                returned=returned,
            )
        start = perf_counter()
        try:
            max_tokens = self._batch.bounded(self._max_tokens)
            moved = self._batch.step(max_tokens, self._choose, self._running.read_prompt)
            if not moved:
                raise RuntimeError(f"none of {len(self._running)} sequences could move")
        except Exception as error:
            return self._recover(error, released, returned)
        duration_s = perf_counter() - start
        stalled = self._running.stalled(moved, max_tokens)
        tokens, finished = self._running.record(moved)
        return Report(
            epoch=self._epoch,
            sample=sample(moved, duration_s),
            kv_tokens=self._batch.held_tokens(),
            tokens=tokens,
            finished=finished,
            released=released,
            returned=returned,
            stalled=stalled,
        )

    def _choose(self, logits: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
        rows = self._running.rows(names)
        asked = logprobs.Asked(logits, rows)
        tokens = choose(logits, rows)
        self._running.note(names, asked.of(tokens))
        return tokens

    def _recover(self, error: Exception, released: list[Key], returned: list[Returned]) -> Report:
        """Give everything back and start afresh. Raises where even that fails."""
        is_memory = _is_out_of_memory(error)
        detail = f"{type(error).__name__}: {error}"
        given_back = self._running.give_back("out_of_memory" if is_memory else "error", detail)
        self._batch.reset()
        if is_memory and torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()
        return Report(
            epoch=self._epoch,
            steps=0,
            kv_tokens=self._batch.held_tokens(),
            released=released,
            returned=returned + given_back,
            warning=f"a step failed, {len(given_back)} requests are given back: {detail}",
        )

    def inject(self, fault: Fault) -> None:
        """Raises ValueError: a real model cannot be told to misbehave."""
        raise ValueError(f"only a simulated executor can be told to {fault.kind}")

    def close(self) -> None:
        """Let go of the model and its memory."""
        del self._running, self._batch


def _demo(progress: Progress) -> Path:
    """The demo's model. Raises ValueError where it cannot be had: a restart would not help."""
    try:
        return demo_model.ensure(progress)
    except demo_model.DemoModelError as error:
        raise ValueError(str(error)) from error


def _check_transformers(version: str) -> None:
    if not version.startswith(f"{paged.VERSION}."):
        raise ValueError(
            f"transformers {version} is installed, but this executor drives the insides of"
            f" {paged.VERSION}; install transformers~={paged.VERSION}.0"
        )


def _try_out(batch: paged.PagedBatch, loaded: models.Loaded) -> None:
    """One token after another. Raises ValueError where the model's code is not made for this."""
    try:
        batch.probe(1, context=1, queries=1)
    except (TypeError, AttributeError, NotImplementedError) as error:
        kind = loaded.model.config.model_type
        raise ValueError(f"{kind} models cannot be batched continuously: {error}") from error


def _is_out_of_memory(error: Exception) -> bool:
    is_known = isinstance(error, torch.OutOfMemoryError | MemoryError | paged.KvExhausted)
    return is_known or "can't allocate memory" in str(error)
