"""How the sequences of a step attend: each to its own keys; time grows with what is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "headway_by_sequence"

# Padding that is cheaper than one more group, measured on a CPU.
_GROUP_RATIO = 1.5
_GROUP_SLACK = 64
# Keys of a group beyond which two products beat the fused kernel, which has less overhead.
_FUSED_KEYS = 1024


@dataclass(frozen=True, slots=True)
class Group:
    """Sequences with one query each, `count` of them computed as one: `queries` are their places
    in the step, their keys lie from `start` on, `length` for each. `bias` [count, 1, 1, length]
    hides the padding."""

    queries: torch.Tensor | slice
    count: int
    start: int
    length: int
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence with several queries: where these lie in the step, and where its keys do."""

    queries: slice
    keys: slice


@dataclass(frozen=True, slots=True)
class Layout:
    """Which queries of a step see which keys. `order` says in which order the keys are to be
    read, as places in the order of the sequences (some twice, as padding)."""

    groups: tuple[Group, ...]
    prompts: tuple[Prompt, ...]
    order: torch.Tensor


def lay_out(
    lengths: Sequence[tuple[int, int]], device: torch.device, *, dtype: torch.dtype
) -> Layout:
    """Plan the attention of sequences with (queries, keys) each; the queries are the last keys.

    Sequences that decode are padded to a common length where they are about as long: one matrix
    product each on a CPU costs more than the padding.
    """
    query_ends = list(accumulate((queries for queries, _ in lengths), initial=0))
    key_ends = list(accumulate((keys for _, keys in lengths), initial=0))
    order: list[torch.Tensor] = []
    groups: list[Group] = []
    prompts: list[Prompt] = []
    start = 0
    # Where nothing is read from the cache, keys come in the order of the sequences and stay in it.
    is_fresh = all(queries == keys for queries, keys in lengths)
    single = [] if is_fresh else [i for i, (queries, _) in enumerate(lengths) if queries == 1]
    for members in _alike(sorted(single, key=lambda i: -lengths[i][1]), lengths):
        held = torch.tensor([[lengths[i][1]] for i in members])
        longest = max(lengths[i][1] for i in members)
        columns = torch.arange(longest)
        # Padding repeats the last key: any valid place would do, since it is hidden.
        own = torch.minimum(columns, held - 1) + torch.tensor([[key_ends[i]] for i in members])
        order.append(own.flatten())
        places = _places([query_ends[i] for i in members], device)
        bias = _bias(columns >= held, dtype).to(device)
        groups.append(Group(places, len(members), start, longest, bias))
        start += own.numel()
    for i, (queries, keys) in enumerate(lengths):
        if queries > 1 or is_fresh:
            order.append(torch.arange(key_ends[i], key_ends[i + 1]))
            mine = slice(query_ends[i], query_ends[i + 1])
            prompts.append(Prompt(mine, slice(start, start + keys)))
            start += keys
    return Layout(tuple(groups), tuple(prompts), torch.cat(order).to(device))


def _bias(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is added to the scores [n, 1, 1, keys] so that the hidden keys get no share."""
    bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    return bias.view(len(hidden), 1, 1, -1)


def _alike(ordered: list[int], lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Cut sequences, longest first, into runs of which the padding costs little; each run comes in
    the order of the step."""
    runs: list[list[int]] = []
    for i in ordered:
        longest = lengths[runs[-1][0]][1] if runs else 0
        if runs and longest <= max(lengths[i][1] * _GROUP_RATIO, lengths[i][1] + _GROUP_SLACK):
            runs[-1].append(i)
        else:
            runs.append([i])
    return [sorted(run) for run in runs]


def _places(indices: list[int], device: torch.device) -> torch.Tensor | slice:
    """A slice where one will do: it copies nothing."""
    if indices[-1] - indices[0] == len(indices) - 1:
        return slice(indices[0], indices[-1] + 1)
    return torch.tensor(indices, device=device)


def register() -> None:
    """Make the attention known to transformers under `NAME`; doing so twice is harmless."""
    AttentionInterface.register(NAME, attend)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    layout: Layout,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention of a packed step as `layout` plans it.

    `query` [1, heads, all queries, width]; `key` and `value` [1, kv heads, all keys, width], read
    in the layout's order. Answers [1, all queries, heads, width]. The dense mask that this
    replaces costs queries times the keys of *all* sequences.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    heads, width = query.shape[1], value.shape[-1]
    out = query.new_empty((query.shape[2], heads, width))
    for group in layout.groups:
        out[group.queries] = _attend_group(group, query[0], key[0], value[0], scale=scale)
    for prompt in layout.prompts:
        out[prompt.queries] = _attend_prompt(
            query[:, :, prompt.queries],
            key[:, :, prompt.keys],
            value[:, :, prompt.keys],
            scale=scale,
        )
    return out.unsqueeze(0), None


def _attend_group(
    group: Group, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """[count, heads, width]. The heads that share keys are the queries of one head."""
    kv_heads, _, width = value.shape
    rows = query[:, group.queries].transpose(0, 1)
    rows = rows.reshape(group.count, kv_heads, -1, query.shape[-1])

    def own(states: torch.Tensor) -> torch.Tensor:
        part = states[:, group.start : group.start + group.count * group.length]
        return part.view(kv_heads, group.count, group.length, -1).transpose(0, 1)

    if group.count * group.length <= _FUSED_KEYS:
        out = scaled_dot_product_attention(
            rows, own(key), own(value), attn_mask=group.bias, scale=scale
        )
        return out.reshape(group.count, -1, width)
    # Products of strided matrices are several times as slow as the copies made here.
    scores = torch.matmul(rows * scale, own(key).contiguous().transpose(-1, -2)) + group.bias
    shares = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(shares, own(value).contiguous()).view(group.count, -1, width)


def _attend_prompt(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """[queries, heads, width] of one sequence."""
    rows, columns = query.shape[2], key.shape[2]
    mask = None
    if rows < columns:
        whole = torch.ones((rows, columns), dtype=torch.bool, device=query.device)
        mask = whole.tril(columns - rows)
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)
