"""An example to follow with a pencil: three queries, three keys, whole numbers.

Scores are q·k, scale 1, and the logarithms are chosen so that exp gives whole numbers:

    q·k      ln 1  ln 2  ln 5      exp   1 2 5     weights   1/8  2/8  5/8
             ln 3  ln 3  ln 3            3 3 3               1/3  1/3  1/3
             ln 1  ln 1  ln 2            1 1 2               1/4  1/4  2/4
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently import reference

EXP = torch.tensor([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0], [1.0, 1.0, 2.0]], dtype=torch.float64)
Q, K = EXP.log(), torch.eye(3, dtype=torch.float64)
V = torch.tensor([[8.0, 12.0, 0.0], [0.0, 12.0, 4.0], [16.0, 0.0, 8.0]], dtype=torch.float64)
A = it.attend(Q, K, scale=1)


def same(found: Tensor, expected: list | float) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), atol=1e-12, rtol=0)


def test_weights() -> None:
    same(A.dense(), [[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3], [1 / 4, 1 / 4, 2 / 4]])


def test_product_by_every_kernel() -> None:
    """Query 0: (8 + 0·2 + 16·5)/8 = 11, (12 + 12·2)/8 = 4.5, (4·2 + 8·5)/8 = 6."""
    for kernel in it.kernels.available():
        with it.kernels.use(kernel):
            same(A @ V, [[11, 4.5, 6], [8, 8, 4], [10, 6, 5]])


def test_causal() -> None:
    """Query 0 sees key 0 only, query 1 two equal keys."""
    masked = it.attend(Q, K, scale=1, mask=it.causal())
    same(masked.dense(), [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 4, 1 / 4, 2 / 4]])


def test_statistics() -> None:
    same(A.received(), [1 / 8 + 1 / 3 + 1 / 4, 2 / 8 + 1 / 3 + 1 / 4, 5 / 8 + 1 / 3 + 2 / 4])
    halves = 1.5 * math.log(2)  # two quarters and a half: ¼ ln 4 + ¼ ln 4 + ½ ln 2
    eighths = (3 * 1 + 2 * 2) / 8 * math.log(2) + 5 / 8 * math.log(8 / 5)
    same(A.entropy(), [eighths, math.log(3), halves])
    same(A.lse, [math.log(8), math.log(9), math.log(4)])
    assert A.argmax()[0] == 2
    weights, keys = A.top(2)
    assert keys[0].tolist() == [2, 1] and keys[2, 0] == 2
    same(weights[0], [5 / 8, 2 / 8])
    same(A.mass([0, 2]), [6 / 8, 2 / 3, 3 / 4])
    same(A.distance(), [(2 + 2 * 5) / 8, 2 / 3, (2 + 1) / 4])
    same(A.pool(1, 1), [[1 / 3]])
    same(A.pool(1, 3, "sum"), [A.received().tolist()])


def test_sink_takes_its_share() -> None:
    """A sink of ln 8 doubles the sum of query 0: every weight is halved."""
    with_sink = it.attend(Q, K, scale=1, sinks=torch.tensor(math.log(8), dtype=torch.float64))
    same(with_sink[0], [1 / 16, 2 / 16, 5 / 16])
    same(with_sink.lse[0], math.log(16))


def test_bias_multiplies_the_exponentials() -> None:
    """A bias of ln 3 on key 0 counts it three times: 3, 2, 5."""
    bias = torch.tensor([math.log(3), 0, 0], dtype=torch.float64)
    same(it.attend(Q, K, scale=1, bias=bias)[0], [3 / 10, 2 / 10, 5 / 10])


def test_scale_is_an_exponent() -> None:
    """Twice the scale squares the exponentials: 1, 4, 25."""
    same(it.attend(Q, K, scale=2)[0], [1 / 30, 4 / 30, 25 / 30])


def test_the_reference_agrees_and_takes_bare_integers() -> None:
    np.testing.assert_allclose(reference.weights(Q, K, scale=1), A.dense(), atol=1e-15)
    np.testing.assert_allclose(reference.attention(Q, K, V, scale=1), A @ V, atol=1e-14)
    pixels = [[255, 0, 0, 1], [0, 255, 0, 1], [0, 0, 255, 2]]
    found = reference.attention(pixels, pixels, pixels, scale=0)
    np.testing.assert_allclose(found, np.tile([85, 85, 85, 4 / 3], (3, 1)))


def test_the_reference_gives_zero_for_a_row_without_keys() -> None:
    mask = [[True, False], [False, False]]
    assert reference.weights([[1.0], [1.0]], [[1], [2]], mask=mask).tolist() == [[1, 0], [0, 0]]
    assert reference.attention([[1]], np.zeros((0, 1)), np.zeros((0, 2))).tolist() == [[0, 0]]


@pytest.mark.parametrize("d", [1, 4, 64])
def test_the_scale_is_one_over_the_root_of_d(d: int) -> None:
    ones = torch.ones(1, d, dtype=torch.float64)
    same(it.attend(ones, ones).scores[0, 0], math.sqrt(d))
