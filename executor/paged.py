"""How transformers' continuous batching is driven by hand: with `executor.shared_prefill`
the only file that knows its insides.

Written against transformers 5.24; `tests/executor/test_paged.py` fails where they have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cache import group_layers_by_attn_type
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager
from transformers.generation.continuous_batching.requests import (
    FutureRequestState,
    RequestState,
    RequestStatus,
)
from transformers.generation.continuous_batching.utils import (
    find_head_dim,
    find_num_key_value_heads,
)

from executor import attention, shared_prefill

VERSION = "5.24"
# How transformers says that nobody can go on, and nobody can make room.
_NO_KV = "No requests can be scheduled"


class KvExhausted(RuntimeError):
    """The KV cache has no room for any sequence to go on."""


Choose = Callable[[torch.Tensor, Sequence[str]], torch.Tensor]
"""Next tokens [n] from float32 logits [n, vocabulary] of the sequences with these names."""

Read = Callable[[str, int, torch.Tensor], None]
"""Takes the logits [n, vocabulary] of n tokens of a prompt: the name of its sequence, and how many
tokens come before them."""

# What the logits of prompts that are read may take in one step, were they float32.
_READ_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class Advance:
    """What one sequence did in a step: `queries` tokens computed after `past` in KV memory.
    `token` is None where a part of the prompt is still to come."""

    name: str
    queries: int
    past: int
    is_decode: bool
    token: int | None
    is_finished: bool


def _read_nothing(name: str, past: int, logits: torch.Tensor) -> None:
    pass


class _NoRouter:
    """Takes the outputs that nobody reads: we look at the sequences themselves."""

    def deliver_batch(self, outputs: list[Any]) -> None:
        pass


class PagedBatch:
    """Sequences of one causal model over a paged KV cache, stepped by hand. One thread only.

    `num_blocks` None sizes the cache from the accelerator's free memory, of which it takes
    `memory_fraction` (None: transformers' choice). `cpu_offload` bytes of the machine's memory take
    the KV of sequences that have to make room. Raises ValueError where the model cannot be batched
    like this, or does not fit.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_seqs: int,
        max_step_tokens: int,
        block_size: int,
        num_blocks: int | None,
        prefix_sharing: bool,
        memory_fraction: float | None = None,
        cpu_offload: int = 0,
        is_stock: bool = False,
    ) -> None:
        """`is_stock` keeps the attention that the model was loaded with."""
        self._model = model
        self._is_ours = not is_stock and _can_attend_by_sequence(model.config)
        config = ContinuousBatchingConfig(
            page_size=block_size,
            num_blocks=num_blocks,
            max_memory_percent=memory_fraction,
            cpu_offload_space=cpu_offload / 2**30,
            # More than there is was refused before: nothing is cut back in silence.
            cpu_offload_space_safety_threshold=1.0,
            max_batch_tokens=max_step_tokens,
            max_requests_per_batch=max_seqs,
            max_blocks_per_request=0,
            scheduler_type=shared_prefill.NAME,
            allow_block_sharing=prefix_sharing,
            use_async_batching=False,
            use_cuda_graph=False,
            auto_switch_to_flash=False,
            # How full memory may get is decided where requests are admitted, not here.
            safety_margin=0.0,
        )
        greedy: Any = GenerationConfig  # its constructor is not typed
        manager = ContinuousBatchingManager(model, greedy(do_sample=False), config)
        shared_prefill.register()
        if self._is_ours:
            attention.register()
            model.set_attn_implementation(attention.NAME)
        self._processor: Any
        try:
            self._processor = manager._create_batch_processor()
        except MemoryError as error:
            raise ValueError(
                f"{num_blocks} KV blocks of {block_size} tokens with steps of {max_step_tokens}"
                f" tokens do not fit in memory ({error}); lower num_blocks, kv_memory or"
                " max_step_tokens"
            ) from error
        self._processor.output_router = _NoRouter()
        self._cache: Any = self._processor.cache
        self._inputs: Any = self._processor.inputs_and_outputs
        self._scheduler: Any = self._processor.scheduler
        self._keeps_logits = bool(model._supports_logits_to_keep())
        vocabulary = int(model.config.get_text_config().vocab_size)
        self._read_tokens = max(1, _READ_BYTES // (4 * vocabulary))
        self.max_step_tokens = int(self._cache.max_batch_tokens)
        self.kv_tokens = int(self._cache.num_blocks) * block_size
        self._block_size = block_size
        self._pool_bytes = int(self._cache.num_sectors * self._cache.bytes_per_sector)

    def add(
        self,
        name: str,
        tokens: list[int],
        *,
        max_new_tokens: int,
        stop_ids: Iterable[int],
        priority: int = 0,
        is_read: bool = False,
    ) -> None:
        """Queue a sequence; it begins at the next step that has room, higher priorities first.

        `is_read`: all logits of its prompt are wanted, so none of it is taken from another's.
        """
        state = RequestState(
            request_id=name,
            initial_tokens=tokens,
            max_new_tokens=max_new_tokens,
            eos_token_id=list(stop_ids),
        )
        self._scheduler.priorities[name] = priority
        if is_read:
            self._scheduler.unshared.add(name)
        self._scheduler.add_waiting_request(state)

    def drop(self, names: Iterable[str]) -> None:
        """Let sequences go at once, running or waiting; unknown names are ignored."""
        for name in names:
            self._scheduler.forget(name)
            self._scheduler.set_request_cancellation(name)
        for state in self._scheduler.clear_cancelled_requests():
            self._processor.offloading_manager.free_request_cpu_cache(state)
        # Only a sequence that finishes would lift this, and there may be none left.
        self._scheduler.block_new_requests = False

    def bounded(self, max_tokens: int) -> int:
        """How many of `max_tokens` tokens a step may have now: the logits of a prompt that is read
        have to fit beside each other."""
        if not self._scheduler.unshared:
            return max_tokens
        states = self._scheduler.active_requests.values()
        decodes = sum(1 for state in states if state.generated_tokens)
        return min(max_tokens, decodes + self._read_tokens)

    def step(self, max_tokens: int, choose: Choose, read: Read = _read_nothing) -> list[Advance]:
        """Compute up to `max_tokens` tokens; answers what moved (nothing, if nothing could).

        `read` gets the logits of the prompts that were added to be read, part by part. After an
        exception nothing in here can be trusted: `reset` and add everything again.
        """
        processor = self._processor
        processor.max_batch_tokens = max_tokens
        self._make_room()
        with torch.inference_mode():
            if not self._prepare():
                return []
            rows = [
                (future, future.state.position_offset - future.query_length, _decodes(future))
                for future in self._inputs.requests_in_batch
            ]
            self._forward(choose, read)
            processor.update_batch()
        moved = [
            Advance(
                name=future.state.request_id,
                queries=future.query_length,
                past=past,
                is_decode=is_decode,
                token=future.state.generated_tokens[-1] if future.has_new_token else None,
                is_finished=bool(future.state.status == RequestStatus.FINISHED),
            )
            for future, past, is_decode in rows
        ]
        for advance in moved:
            if advance.is_finished:
                self._scheduler.forget(advance.name)
            elif advance.token is not None:
                self._scheduler.unshared.discard(advance.name)
        return moved

    def _prepare(self) -> bool:
        """Plan the next step; False where there is nothing to compute. Raises KvExhausted."""
        try:
            return bool(self._processor.prepare_next_batch())
        except RuntimeError as error:
            if _NO_KV in str(error):
                raise KvExhausted(f"no sequence fits into {self.kv_tokens} tokens of KV") from error
            raise

    def _forward(self, choose: Choose, read: Read = _read_nothing) -> None:
        """The model, and the choice of tokens, for the batch that was prepared."""
        inputs = self._inputs
        batch: dict[str, Any] = inputs.get_model_kwargs()
        futures = inputs.requests_in_batch
        names = [future.state.request_id for future in futures if future.has_new_token]
        wanted = batch["logits_indices"][: len(names)]
        parts = self._parts(futures) if self._scheduler.unshared else []
        if parts:
            places = [torch.arange(part.start, part.stop) for _, _, part in parts]
            wanted = torch.cat([wanted, *(place.to(wanted) for place in places)])
        if self._keeps_logits:
            batch["logits_to_keep"] = wanted
        if self._is_ours:
            lengths = [(f.query_length, f.state.position_offset) for f in futures]
            layout = attention.lay_out(lengths, self._model.device, dtype=self._model.dtype)
            batch["layout"] = layout
            # Without anything to read from the cache, keys come as they are, in their order.
            cached = batch["read_index"][0]
            if cached.numel():
                batch["read_index"] = [cached[layout.order]]
        logits = self._model(**batch).logits[0]
        rows = logits if self._keeps_logits else logits[wanted]
        done = len(names)
        if names:
            inputs.output_ids[0, :done] = choose(rows[:done].float(), names)
        for name, past, part in parts:
            read(name, past, rows[done : done + len(part)])
            done += len(part)
        inputs.retrieve_device_outputs()

    def _parts(self, futures: Sequence[Any]) -> list[tuple[str, int, range]]:
        """Where in the step the tokens of prompts lie that are read: name of the sequence, how many
        tokens it has before them, and their places."""
        parts = []
        start = 0
        for future in futures:
            count, name = future.query_length, future.state.request_id
            if name in self._scheduler.unshared:
                past = future.state.position_offset - count
                parts.append((name, past, range(start, start + count)))
            start += count
        return parts

    def rounded(self, tokens: int) -> int:
        """The KV memory, in tokens, that a sequence of so many takes: whole blocks."""
        return -(-tokens // self._block_size) * self._block_size

    def held_tokens(self) -> int:
        """KV memory that sequences hold, in tokens; what is only kept for reuse is free."""
        held = self._pool_bytes - self._free_bytes() - self._kept_bytes()
        return held * self.kv_tokens // self._pool_bytes

    def _free_bytes(self) -> int:
        return int(self._cache.compute_free_capacity(relative=False))

    def _kept_bytes(self) -> int:
        """What is kept for reuse only. transformers counts it as taken."""
        allocators = self._cache.cache_allocators.values()
        return sum(int(a.bytes_per_block) * len(a.ledger.cached_blocks) for a in allocators)

    def _make_room(self) -> None:
        """Give up what is only kept for reuse as soon as sequences might need the memory.

        transformers does so one step late: after a sequence has stood still for want of it.
        """
        if not self._kept_bytes():
            return
        scheduler, size = self._scheduler, self._block_size
        states = chain(scheduler.waiting_requests.values(), scheduler.active_requests.values())
        blocks = sum(len(state.remaining_prefill_tokens) // size + 1 for state in states)
        if self._free_bytes() * self.kv_tokens < blocks * size * self._pool_bytes:
            self._cache.evict_cached_blocks()
            self._cache.pool.try_to_free_sectors()

    def reset(self) -> None:
        """Drop every sequence and all of the cache, whatever happened before."""
        self._processor.reset()
        self._scheduler.priorities.clear()
        self._scheduler.unshared.clear()
        # Contents of the cache are not trusted after an error: no prefix is reused either.
        self._cache.reset()

    def probe(self, sequences: int, *, context: int, queries: int) -> float:
        """Seconds of a step of `sequences`, each computing `queries` tokens after `context` ones.

        The contents are made up, only the work is real. Nothing else may be running.
        """
        futures = []
        for i in range(sequences):
            state = RequestState(f"probe {i}", [0] * (context + queries), max_new_tokens=1)
            state._status = RequestStatus.DECODING
            state.tokens_to_process = [0] * queries
            state.position_offset = context
            if not self._cache.can_store_request_tokens(state, queries):
                raise ValueError(f"{sequences} sequences of {context + queries} tokens do not fit")
            futures.append(FutureRequestState(state, True, {}, queries))
        start = perf_counter()
        with torch.inference_mode():
            self._inputs.prepare_batch_tensors(
                futures,
                self._processor.logit_processor,
                use_decode_fast_path=False,
                num_q_tokens=sequences * queries,
                max_kv_read=sequences * context,
                use_padding=False,
            )
            self._forward(lambda logits, names: logits.argmax(dim=-1))
            self._inputs.prepare_batch_update()
        duration = perf_counter() - start
        self._cache.reset()
        return duration


def token_bytes(model: Any) -> int:
    """KV memory of one token of one sequence."""
    config = model.config.get_text_config()
    width = find_num_key_value_heads(config) * find_head_dim(config)
    return int(2 * config.num_hidden_layers * width * model.dtype.itemsize)


def _decodes(future: Any) -> bool:
    return bool(future.state.generated_tokens)


def _can_attend_by_sequence(config: Any) -> bool:
    """Whether plain full attention is all that the model needs."""
    text = config.get_text_config()
    return (
        set(group_layers_by_attn_type(text)) == {"full_attention"}
        and getattr(text, "attn_logit_softcapping", None) is None
        and getattr(text, "model_type", "") != "gpt_oss"
    )
