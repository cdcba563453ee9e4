"""Attention by sequence: equal to attending one sequence after the other."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from executor.attention import attend, lay_out

HEADS, KV_HEADS, WIDTH = 6, 2, 8
CPU = torch.device("cpu")

STEPS = {
    "one that decodes": [(1, 9)],
    "decodes of one length": [(1, 40), (1, 40), (1, 40)],
    "decodes of about one length": [(1, 300), (1, 290), (1, 310), (1, 305)],
    "decodes of very different lengths": [(1, 700), (1, 3), (1, 650), (1, 9), (1, 200)],
    "many keys": [(1, 500), (1, 480), (1, 510), (1, 490)],
    "whole prompts": [(7, 7), (12, 12)],
    "a whole prompt of one token": [(7, 7), (1, 1), (12, 12), (1, 1)],
    "a part of a prompt": [(5, 30)],
    "everything": [(1, 50), (1, 900), (1, 40), (30, 30), (1, 7), (16, 48), (1, 880)],
}


def one_by_one(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[tuple[int, int]]
) -> torch.Tensor:
    """[1, all queries, heads, width], by the plainest way there is."""
    out, first_query, first_key = [], 0, 0
    for queries, keys in lengths:
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        part = scaled_dot_product_attention(
            query[:, :, first_query : first_query + queries],
            key[:, :, first_key : first_key + keys].repeat_interleave(HEADS // KV_HEADS, dim=1),
            value[:, :, first_key : first_key + keys].repeat_interleave(HEADS // KV_HEADS, dim=1),
            attn_mask=mask,
        )
        out.append(part.transpose(1, 2))
        first_query, first_key = first_query + queries, first_key + keys
    return torch.cat(out, dim=1)


@pytest.mark.parametrize("lengths", STEPS.values(), ids=STEPS.keys())
def test_a_step_attends_as_its_sequences_would_alone(lengths: list[tuple[int, int]]) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (sum(column) for column in zip(*lengths, strict=True))
    query = torch.randn(1, HEADS, queries, WIDTH, generator=generator)
    # Keys and values come from the cache, which keeps the heads of a token together.
    key = torch.randn(1, keys, KV_HEADS, WIDTH, generator=generator).transpose(1, 2)
    value = torch.randn(1, keys, KV_HEADS, WIDTH, generator=generator).transpose(1, 2)
    layout = lay_out(lengths, CPU, dtype=torch.float32)
    read = [
        states[0].transpose(0, 1)[layout.order].transpose(0, 1).unsqueeze(0)
        for states in (key, value)
    ]
    out, _ = attend(torch.nn.Module(), query, read[0], read[1], None, layout=layout)
    torch.testing.assert_close(out, one_by_one(query, key, value, lengths), atol=2e-6, rtol=1e-5)


def test_sequences_of_about_one_length_are_one_group() -> None:
    layout = lay_out([(1, 100), (1, 160), (1, 97)], CPU, dtype=torch.float32)
    assert [(group.count, group.length) for group in layout.groups] == [(3, 160)]
    assert len(layout.order) == 3 * 160


def test_a_long_sequence_does_not_pad_the_short_ones() -> None:
    layout = lay_out([(1, 100), (1, 4000), (1, 90)], CPU, dtype=torch.float32)
    assert [(group.count, group.length) for group in layout.groups] == [(1, 4000), (2, 100)]


def test_keys_that_are_not_read_from_the_cache_stay_in_their_order() -> None:
    """Where nothing is read the keys come as they are, also for a prompt of one token."""
    layout = lay_out([(3, 3), (1, 1), (2, 2)], CPU, dtype=torch.float32)
    assert layout.order.tolist() == [0, 1, 2, 3, 4, 5]
    assert not layout.groups
