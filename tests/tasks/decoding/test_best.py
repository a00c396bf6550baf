"""The best continuations of large vocabularies, against a stable sort of all."""

from __future__ import annotations

import math

import pytest
import torch

from intently.tasks.decoding.beams import BLOCK, best_continuations, largest

NOTHING = torch.zeros(1, 1)
"""Added to a row, it changes nothing."""

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
        values, index = best_continuations(scores.clone(), live, k)
        every = (scores + live[..., None]).flatten(1)
        ordered = every.sort(dim=-1, descending=True, stable=True)
        assert torch.equal(values, ordered.values[:, :k])
        assert torch.equal(index, ordered.indices[:, :k])


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_nan_is_found_wherever_it_stands(size: int, k: int) -> None:
    for place in (0, size // 2, size - 1):
        scores = torch.zeros(2, 1, size)
        scores[1, 0, place] = math.nan
        values, _ = best_continuations(scores, torch.zeros(2, 1), k)
        assert values.isnan().any(-1).tolist() == [False, True]


@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("size", [8 * BLOCK, 160 * BLOCK, 160 * BLOCK + 17])
def test_the_largest_of_long_rows_are_those_of_topk(size: int, k: int) -> None:
    scores = torch.randn(5, size, generator=torch.manual_seed(k))
    scores[1, -1] = 9.0  # behind the last whole block
    scores[2, :-3] = -math.inf
    values, index = largest(scores[:, None], NOTHING.expand(5, 1), k)
    assert torch.equal(values, scores.topk(k).values)
    assert torch.equal(scores.gather(1, index), values)
    assert all(len(set(row)) == k for row in index.tolist())


@pytest.mark.parametrize("size", [80 * BLOCK, 80 * BLOCK + 17, 21])
def test_what_a_row_brings_is_added_to_it(size: int) -> None:
    scores = torch.randn(4, 3, size, generator=torch.manual_seed(size))
    live = torch.tensor([[0.0, -1, -9], [-9, 0, -1], [0, -math.inf, -math.inf], [-9, -9, 0]])
    expected = (scores + live[..., None]).flatten(1).topk(4)
    values, index = best_continuations(scores, live, 4)
    assert torch.equal(values, expected.values)
    assert torch.equal(index, expected.indices)


def test_all_of_the_largest_may_stand_in_one_block() -> None:
    scores = torch.zeros(1, 600 * BLOCK)
    scores[0, 3 * BLOCK : 3 * BLOCK + 6] = torch.tensor([1.0, 6, 2, 5, 3, 4])
    _, index = largest(scores[None], NOTHING, 6)
    assert index.tolist() == [[3 * BLOCK + i for i in (1, 3, 5, 4, 2, 0)]]


def test_equal_ones_of_long_rows_are_taken_by_index() -> None:
    scores = torch.zeros(2, 300 * BLOCK)
    scores[0, [7, 2000, 130]] = 1.0
    values, index = best_continuations(scores[:, None], NOTHING.expand(2, 1), 5)
    assert index.tolist() == [[7, 130, 2000, 0, 1], [0, 1, 2, 3, 4]]
    assert values.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
