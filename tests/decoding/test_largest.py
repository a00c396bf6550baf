from __future__ import annotations

import math

import pytest
import torch

from intently.decoding.beams import BLOCK, _best, _largest

NOTHING = torch.zeros(1, 1)
"""What is added to no row."""


@pytest.mark.parametrize("k", [1, 2, 6])
@pytest.mark.parametrize("size", [8 * BLOCK, 40 * BLOCK, 40 * BLOCK + 17])
def test_the_largest_of_long_rows_are_those_of_topk(size: int, k: int) -> None:
    scores = torch.randn(5, size, generator=torch.manual_seed(k))
    scores[1, -1] = 9.0  # behind the last whole block
    scores[2, :-3] = -math.inf
    values, index = _largest(scores[:, None], NOTHING.expand(5, 1), k)
    assert torch.equal(values, scores.topk(k).values)
    assert torch.equal(scores.gather(1, index), values)
    assert all(len(set(row)) == k for row in index.tolist())


@pytest.mark.parametrize("size", [8 * BLOCK, 8 * BLOCK + 17, 21])
def test_what_a_row_brings_is_added_to_it(size: int) -> None:
    scores = torch.randn(4, 3, size, generator=torch.manual_seed(size))
    live = torch.tensor([[0.0, -1, -9], [-9, 0, -1], [0, -math.inf, -math.inf], [-9, -9, 0]])
    expected = (scores + live[..., None]).flatten(1).topk(4)
    values, index = _best(scores, live, 4)
    assert torch.equal(values, expected.values)
    assert torch.equal(index, expected.indices)


def test_all_of_the_largest_may_stand_in_one_block() -> None:
    scores = torch.zeros(1, 40 * BLOCK)
    scores[0, 3 * BLOCK : 3 * BLOCK + 6] = torch.tensor([1.0, 6, 2, 5, 3, 4])
    _, index = _largest(scores[None], NOTHING, 6)
    assert index.tolist() == [[3 * BLOCK + i for i in (1, 3, 5, 4, 2, 0)]]


def test_equal_ones_of_long_rows_are_taken_by_index() -> None:
    scores = torch.zeros(2, 40 * BLOCK)
    scores[0, [7, 2000, 130]] = 1.0
    values, index = _best(scores[:, None], NOTHING.expand(2, 1), 5)
    assert index.tolist() == [[7, 130, 2000, 0, 1], [0, 1, 2, 3, 4]]
    assert values.tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]]


def test_a_long_row_with_nan_shows_it() -> None:
    scores = torch.zeros(1, 40 * BLOCK)
    scores[0, 999] = math.nan
    assert _largest(scores[None], NOTHING, 2)[0].isnan().any()
