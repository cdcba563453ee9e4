"""Packed linear layers: the same numbers, in an order that is read faster."""

import pytest
import torch
from torch import nn

from executor.packing import PackedLinear, can_pack, pack


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 96), nn.Sequential(nn.Linear(96, 32, bias=False)))
    return layers.to(torch.bfloat16).requires_grad_(False)


needs_bfloat16 = pytest.mark.skipif(
    not can_pack(network()), reason="oneDNN has no bfloat16 on this machine"
)


@needs_bfloat16
@pytest.mark.parametrize("rows", [1, 3, 16, 100])
def test_a_packed_network_computes_the_same(rows: int) -> None:
    states = torch.randn(1, rows, 64, dtype=torch.bfloat16)
    plain, packed = network(), network()
    pack(packed)
    assert [type(m) for m in packed.modules() if isinstance(m, nn.Linear)] == []
    assert sum(isinstance(m, PackedLinear) for m in packed.modules()) == 2
    torch.testing.assert_close(packed(states), plain(states), atol=2e-2, rtol=2e-2)


@needs_bfloat16
def test_who_multiplies_by_the_weight_itself_finds_it_as_it_was() -> None:
    plain, packed = network(), network()
    pack(packed)
    assert torch.equal(packed[0].weight, plain[0].weight)  # type: ignore[arg-type]  # any module


def test_float32_is_left_alone() -> None:
    assert not can_pack(network().float())
