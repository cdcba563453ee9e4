"""Sampling: the right distribution, by rules and seed alone, whoever else is in the step."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from executor.contract import Sampling
from executor.sampling import Row, choose, uniform

# Chi-square at 99.9 % for 7, 3 and 2 degrees of freedom.
LIMITS = {7: 24.32, 3: 16.27, 2: 13.82}
DRAWS = 4000


def row(position: int = 0, *, forbidden: tuple[int, ...] = (), **rules: Any) -> Row:
    return Row(Sampling(**rules), position, forbidden)


def logits_of(shares: Sequence[float], rows: int = 1) -> torch.Tensor:
    return torch.tensor([shares], dtype=torch.float32).log().repeat(rows, 1)


def chi_square(tokens: torch.Tensor, shares: Sequence[float]) -> float:
    counts, total = Counter(tokens.tolist()), len(tokens)
    assert set(counts) <= {token for token, share in enumerate(shares) if share > 0}
    pairs = ((counts[token], share * total) for token, share in enumerate(shares) if share > 0)
    return sum((seen - expected) ** 2 / expected for seen, expected in pairs)


EIGHT = (0.30, 0.05, 0.20, 0.02, 0.18, 0.10, 0.10, 0.05)


@pytest.mark.parametrize("keyed_by", ["position", "seed"])
def test_draws_follow_the_distribution_over_positions_and_over_seeds(keyed_by: str) -> None:
    if keyed_by == "position":
        rows = [row(i, temperature=1.0, seed=7) for i in range(DRAWS)]
    else:
        rows = [row(0, temperature=1.0, seed=i) for i in range(DRAWS)]
    tokens = choose(logits_of(EIGHT, DRAWS), rows)
    assert chi_square(tokens, EIGHT) < LIMITS[7]


def test_temperature_sharpens_the_distribution_as_a_power() -> None:
    powers = [share**2 for share in EIGHT]
    sharpened = [power / sum(powers) for power in powers]
    rows = [row(i, temperature=0.5, seed=1) for i in range(DRAWS)]
    assert chi_square(choose(logits_of(EIGHT, DRAWS), rows), sharpened) < LIMITS[7]


def test_top_k_draws_among_the_k_likeliest_in_proportion() -> None:
    kept = [0.30 / 0.68, 0, 0.20 / 0.68, 0, 0.18 / 0.68, 0, 0, 0]
    rows = [row(i, temperature=1.0, top_k=3, seed=2) for i in range(DRAWS)]
    assert chi_square(choose(logits_of(EIGHT, DRAWS), rows), kept) < LIMITS[2]


def test_top_p_draws_among_the_fewest_that_hold_p() -> None:
    # 0.30 + 0.20 = 0.50 is not yet 0.6, so that the third one is in.
    kept = [0.30 / 0.68, 0, 0.20 / 0.68, 0, 0.18 / 0.68, 0, 0, 0]
    rows = [row(i, temperature=1.0, top_p=0.6, seed=3) for i in range(DRAWS)]
    assert chi_square(choose(logits_of(EIGHT, DRAWS), rows), kept) < LIMITS[2]


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    # Of the three left, the first two hold 0.50 / 0.68 = 0.735.
    rows = [row(i, temperature=1.0, top_k=3, top_p=0.73, seed=4) for i in range(DRAWS)]
    kept = [0.6, 0, 0.4, 0, 0, 0, 0, 0]
    assert chi_square(choose(logits_of(EIGHT, DRAWS), rows), kept) < LIMITS[2]
    rows = [row(i, temperature=1.0, top_k=3, top_p=0.74, seed=4) for i in range(DRAWS)]
    assert set(choose(logits_of(EIGHT, DRAWS), rows).tolist()) == {0, 2, 4}


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 0.0, "seed": 5},
        {"temperature": 1e-300},
        {"temperature": 9.0, "top_k": 1},
        {"top_k": 40},
    ],
)
def test_without_temperature_or_with_top_k_of_1_the_likeliest_is_taken(
    rules: dict[str, Any],
) -> None:
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    tokens = choose(logits.clone(), [row(i, **rules) for i in range(64)])
    assert torch.equal(tokens, logits.argmax(dim=-1))


@pytest.mark.parametrize("top_p", [1e-6, 0.0])
def test_a_tiny_top_p_takes_the_likeliest(top_p: float) -> None:
    logits = torch.randn(64, 500, generator=torch.Generator().manual_seed(0))
    rows = [row(i, temperature=2.0, top_p=top_p, seed=i) for i in range(64)]
    assert torch.equal(choose(logits.clone(), rows), logits.argmax(dim=-1))


def mixed_rows() -> list[Row]:
    return [
        row(0, temperature=1.0, seed=1),
        row(3),
        row(5, temperature=0.7, top_p=0.9, seed=2),
        row(9, temperature=1.3, top_k=50, seed=3),
        row(2, temperature=1.0, seed=4, forbidden=(1, 2)),
        row(7, temperature=1.0, top_k=20, top_p=0.5, seed=5),
        row(1, forbidden=(4,)),
    ]


def test_a_row_does_not_depend_on_who_else_is_in_the_step() -> None:
    rows = mixed_rows()
    logits = torch.randn(len(rows), 5000, generator=torch.Generator().manual_seed(1)) * 3
    together = choose(logits.clone(), rows).tolist()
    alone = [choose(logits[i : i + 1].clone(), [r]).item() for i, r in enumerate(rows)]
    order = [4, 0, 6, 2, 5, 1, 3]
    shuffled = choose(logits[order].clone(), [rows[i] for i in order]).tolist()
    assert together == alone
    assert shuffled == [together[i] for i in order]


def test_the_same_seed_draws_the_same_tokens_and_another_seed_others() -> None:
    logits = logits_of(EIGHT, 40)

    def draw(seed: int, first: int = 0) -> list[int]:
        rows = [row(first + i, temperature=1.0, seed=seed) for i in range(40 - first)]
        return choose(logits[first:].clone(), rows).tolist()

    assert draw(11) == draw(11)
    assert draw(11) != draw(12)
    # A sequence that was given back at position 25 goes on as it would have.
    assert draw(11)[25:] == draw(11, first=25)


@pytest.mark.parametrize("rules", [{}, {"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.99}])
def test_forbidden_tokens_are_never_chosen(rules: dict[str, Any]) -> None:
    rows = [row(i, forbidden=(0, 2, 4), **rules) for i in range(300)]
    tokens = set(choose(logits_of(EIGHT, 300), rows).tolist())
    assert not tokens & {0, 2, 4}
    assert tokens


def test_top_p_chooses_among_1024_tokens_at_most() -> None:
    logits = (torch.arange(4096) * -1e-6).repeat(2000, 1)
    rows = [row(i, temperature=1.0, top_p=0.99, seed=1) for i in range(2000)]
    tokens = choose(logits, rows)
    assert tokens.max() < 1024
    assert tokens.max() > 1000


def test_noise_is_uniform_and_fixed_for_ever() -> None:
    positions = torch.arange(20_000)
    noise = uniform(torch.full_like(positions, 3), positions)
    counts = torch.histc(noise.float(), bins=4, min=0.0, max=1.0)
    assert ((counts - 5000) ** 2 / 5000).sum() < LIMITS[3]
    assert noise.min() > 0.0
    assert noise.max() < 1.0
    # Neighbours are not related: the serial correlation is within three standard errors.
    centred = noise - 0.5
    assert abs((centred[1:] * centred[:-1]).mean() * 12) < 3 / len(noise) ** 0.5
    seeds = torch.tensor([0, 1, -1, 2**40])
    assert uniform(seeds, torch.tensor([0, 1, 2, 3])).tolist() == [
        0.0034386146580800414,
        0.9442639366025105,
        0.14814658497925848,
        0.17435495264362544,
    ]


def test_a_top_k_that_is_not_positive_is_off() -> None:
    def draw(top_k: int) -> list[int]:
        rows = [row(i, temperature=1.0, top_p=0.9, top_k=top_k) for i in range(50)]
        return choose(logits_of(EIGHT, 50), rows).tolist()

    assert draw(-1) == draw(0)


def test_any_integer_is_a_seed() -> None:
    seeds = [0, -1, 2**63, 2**64 - 1, -(2**63), 10**30]
    rows = [row(0, temperature=1.0, seed=seed) for seed in seeds]
    tokens = choose(logits_of(EIGHT, len(seeds)), rows).tolist()
    # -1 and 2^64 - 1 are the same 64 bits.
    assert tokens[1] == tokens[3]
    assert all(0 <= token < 8 for token in tokens)
