"""The paged batch: what it needs of transformers is there, and its memory adds up."""

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.generation.continuous_batching import cache as cache_module
from transformers.generation.continuous_batching.continuous_api import (
    ContinuousBatchingManager,
    ContinuousBatchProcessor,
)
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingIOs
from transformers.generation.continuous_batching.requests import FutureRequestState, RequestState
from transformers.generation.continuous_batching.scheduler import FIFOScheduler

from executor.contract import ContinuousSettings
from executor.model import load
from executor.paged import VERSION, Advance, PagedBatch
from tests.executor.engine_driver import prompt


def tiny_model(folder: Path) -> Any:
    torch.set_num_threads(1)
    return load(ContinuousSettings(model=str(folder), served_name="tiny", device="cpu")).model


@pytest.fixture
def model(tiny_folder: Path) -> Any:
    return tiny_model(tiny_folder)


def paged(model: Any, **settings: Any) -> PagedBatch:
    chosen: dict[str, Any] = {
        "max_seqs": 8,
        "max_step_tokens": 256,
        "block_size": 8,
        "num_blocks": 64,
        "prefix_sharing": True,
    }
    chosen.update(settings)
    return PagedBatch(model, **chosen)


def likeliest(logits: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
    return logits.argmax(dim=-1)


def add(batch: PagedBatch, name: str, tokens: list[int], new: int = 4) -> None:
    batch.add(name, tokens, max_new_tokens=new, stop_ids=())


def steps(batch: PagedBatch, max_tokens: int = 256) -> Iterator[list[Advance]]:
    while moved := batch.step(max_tokens, likeliest):
        yield moved


def test_transformers_is_the_version_that_this_was_written_against() -> None:
    assert transformers.__version__.rsplit(".", 1)[0] == VERSION


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (ContinuousBatchingManager, ["_create_batch_processor"]),
        (ContinuousBatchProcessor, ["prepare_next_batch", "update_batch", "reset"]),
        (
            ContinuousBatchingIOs,
            [
                "get_model_kwargs",
                "prepare_batch_tensors",
                "prepare_batch_update",
                "retrieve_device_outputs",
            ],
        ),
        (
            FIFOScheduler,
            [
                "add_waiting_request",
                "set_request_cancellation",
                "clear_cancelled_requests",
                "_process_candidates",
            ],
        ),
        (
            cache_module.PagedAttentionCache,
            ["can_store_request_tokens", "compute_free_capacity", "evict_cached_blocks", "reset"],
        ),
    ],
)
def test_the_methods_that_are_called_are_still_there(owner: type, names: list[str]) -> None:
    assert [name for name in names if not callable(getattr(owner, name, None))] == []


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (
            ContinuousBatchingIOs.prepare_batch_tensors,
            "requests_in_batch logits_processors use_decode_fast_path num_q_tokens max_kv_read"
            " use_padding",
        ),
        (RequestState.__init__, "request_id initial_tokens max_new_tokens eos_token_id"),
        (
            FIFOScheduler._process_candidates,
            "candidates token_budget cache_budget request_ids_to_remove_from_waiting",
        ),
        (FutureRequestState.__init__, "state has_new_token complete_blocks query_length"),
        (cache_module.PagedAttentionCache.compute_free_capacity, "relative"),
    ],
)
def test_they_still_take_what_they_are_given(method: Any, parameters: str) -> None:
    known = inspect.signature(method).parameters
    assert [name for name in parameters.split() if name not in known] == []


def test_the_attributes_that_are_read_are_still_there(model: Any) -> None:
    batch = paged(model)
    wanted = [
        (
            batch._processor,
            "cache inputs_and_outputs scheduler output_router logit_processor max_batch_tokens",
        ),
        (
            batch._cache,
            "max_batch_tokens num_blocks num_sectors bytes_per_sector cache_allocators pool",
        ),
        (batch._inputs, "requests_in_batch output_ids"),
        (
            batch._scheduler,
            "waiting_requests active_requests block_new_requests starved_requests",
        ),
        (RequestState("a", [1]), "status created_time remaining_prefill_tokens"),
    ]
    missing = [
        f"{type(owner).__name__}.{name}"
        for owner, names in wanted
        for name in names.split()
        if not hasattr(owner, name)
    ]
    assert missing == []
    allocator = batch._cache.cache_allocators["full_attention"]
    assert allocator.ledger.cached_blocks == {}
    assert allocator.bytes_per_block == batch._pool_bytes // 64


def logits_of_steps(model: Any, is_stock: bool) -> list[torch.Tensor]:
    """Every row of logits over steps with whole prompts, parts of prompts and decodes mixed."""
    batch = paged(model, is_stock=is_stock)
    seen: list[torch.Tensor] = []

    def keep(logits: torch.Tensor, names: Sequence[str]) -> torch.Tensor:
        seen.append(logits.clone())
        return logits.argmax(dim=-1)

    add(batch, "a", prompt(1, 20), new=12)
    batch.step(64, keep)
    add(batch, "b", prompt(2, 90), new=6)
    add(batch, "c", prompt(3, 5), new=9)
    while batch.step(40, keep):
        pass
    return seen


def test_attention_by_sequence_computes_what_the_dense_mask_does(tiny_folder: Path) -> None:
    stock = logits_of_steps(tiny_model(tiny_folder), is_stock=True)
    ours = logits_of_steps(tiny_model(tiny_folder), is_stock=False)
    assert [len(rows) for rows in ours] == [len(rows) for rows in stock]
    for theirs, mine in zip(stock, ours, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)


def test_a_prompt_is_split_where_the_step_is_full_and_decodes_go_first(model: Any) -> None:
    batch = paged(model)
    add(batch, "a", prompt(1, 10))
    batch.step(16, likeliest)
    add(batch, "b", prompt(2, 40), new=1)
    seen = [
        [(m.name, m.queries, m.past, m.is_decode, m.token is None) for m in moved]
        for moved in steps(batch, 16)
    ]
    assert seen == [
        [("a", 1, 10, True, False), ("b", 15, 0, False, True)],
        [("a", 1, 11, True, False), ("b", 15, 15, False, True)],
        [("a", 1, 12, True, False), ("b", 10, 30, False, False)],
    ]


def test_memory_is_held_in_blocks_and_given_back(model: Any) -> None:
    batch = paged(model)
    assert batch.kv_tokens == 64 * 8
    add(batch, "a", prompt(1, 20), new=8)
    batch.step(256, likeliest)
    assert batch.held_tokens() == 24
    for _ in steps(batch):
        pass
    assert batch.held_tokens() == 0


def test_a_prefix_that_is_only_kept_for_reuse_is_free_and_is_reused(model: Any) -> None:
    batch = paged(model)
    shared = prompt(1, 32)
    add(batch, "a", shared, new=2)
    assert sum(len(moved) for moved in steps(batch)) == 2
    assert batch.held_tokens() == 0
    add(batch, "b", [*shared, 5], new=1)
    (moved,) = batch.step(256, likeliest)
    assert (moved.past, moved.queries) == (32, 1)


def test_without_prefix_sharing_nothing_is_reused(model: Any) -> None:
    batch = paged(model, prefix_sharing=False)
    for name in "ab":
        add(batch, name, prompt(1, 33), new=2)
        first, _ = [moved for (moved,) in steps(batch)]
        assert (first.past, first.queries) == (0, 33)


def test_what_is_kept_for_reuse_makes_room_before_anybody_stands_still(model: Any) -> None:
    batch = paged(model)
    for i in range(4):
        add(batch, f"old {i}", prompt(i, 120), new=2)
        assert sum(len(moved) for moved in steps(batch)) == 2
    assert batch._free_bytes() < batch._pool_bytes // 8
    add(batch, "new", prompt(9, 200), new=1)
    (moved,) = batch.step(256, likeliest)
    assert (moved.name, moved.queries, moved.token is None) == ("new", 200, False)


def test_dropped_sequences_free_their_memory_at_once_waiting_or_running(model: Any) -> None:
    batch = paged(model)
    add(batch, "a", prompt(1, 20))
    batch.step(256, likeliest)
    add(batch, "b", prompt(2, 20))
    batch.drop(["a", "b", "nobody"])
    assert batch.held_tokens() == 0
    assert batch.step(256, likeliest) == []


def test_sequences_that_were_pushed_out_go_on_when_the_others_are_dropped(model: Any) -> None:
    batch = paged(model, num_blocks=8)
    add(batch, "a", prompt(1, 30), new=30)
    add(batch, "b", prompt(2, 30), new=30)
    pushed = False
    while not pushed:
        pushed = len(batch.step(256, likeliest)) < 2
    batch.drop(["a"])
    assert [moved.name for moved in batch.step(256, likeliest)] == ["b"]


def test_reset_forgets_sequences_and_prefixes(model: Any) -> None:
    batch = paged(model)
    add(batch, "a", prompt(1, 33))
    batch.step(256, likeliest)
    batch.reset()
    assert batch.held_tokens() == 0
    assert batch.step(256, likeliest) == []
    add(batch, "b", prompt(1, 33))
    assert batch.step(256, likeliest)[0].past == 0


def test_a_probe_leaves_nothing_behind(model: Any, tiny_folder: Path) -> None:
    batch = paged(model)
    assert batch.probe(4, context=60, queries=1) > 0
    assert batch.probe(1, context=0, queries=100) > 0
    assert batch._free_bytes() == batch._pool_bytes
    add(batch, "a", prompt(1, 10), new=1)
    alone = paged(tiny_model(tiny_folder))
    add(alone, "a", prompt(1, 10), new=1)
    assert batch.step(256, likeliest) == alone.step(256, likeliest)


def test_memory_that_is_not_there_is_refused_with_the_numbers(model: Any) -> None:
    with pytest.raises(ValueError, match=r"^1000000000 KV blocks of 8 tokens .* do not fit"):
        paged(model, num_blocks=10**9)
