"""The best continuations of large vocabularies, against a stable sort of all."""

from __future__ import annotations

import math

import pytest
import torch

from intently.decoding.beams import BLOCK, _best

SIZES = [5, BLOCK * BLOCK - 1, BLOCK * BLOCK, BLOCK * BLOCK + 1, 80 * BLOCK + 37]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("m", "k"), [(1, 1), (1, 4), (4, 4)])
def test_the_best_are_those_of_a_stable_sort(size: int, m: int, k: int) -> None:
    """Scores are few whole numbers, so that most are equal to others: the first ones stand."""
    random = torch.Generator().manual_seed(size)
    for top in (3, 10**6):
        scores = torch.randint(-top, 0, (7, m, size), generator=random).float()
        scores[0, 0, -1] = 1.0  # the very last, in what no block holds
        scores[1, 0, : size // 2] = -math.inf
        live = torch.randint(-5, 0, (7, m), generator=random).float()
        values, index = _best(scores.clone(), live, k)
        every = (scores + live[..., None]).flatten(1)
        ordered = every.sort(dim=-1, descending=True, stable=True)
        assert torch.equal(values, ordered.values[:, :k])
        assert torch.equal(index, ordered.indices[:, :k])


@pytest.mark.parametrize("size", SIZES)
def test_nan_is_found_wherever_it_stands(size: int) -> None:
    for place in (0, size // 2, size - 1):
        scores = torch.zeros(2, 1, size)
        scores[1, 0, place] = math.nan
        values, _ = _best(scores, torch.zeros(2, 1), 1)
        assert values.isnan().tolist() == [[False], [True]]
