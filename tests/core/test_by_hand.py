"""An example to follow with a pencil: three queries, three keys, whole numbers.

Scores are q·k, scale 1, and the logarithms are chosen so that exp gives whole numbers:

    q·k      ln 1  ln 2  ln 5      exp   1 2 5     weights   1/8  2/8  5/8
             ln 3  ln 3  ln 3            3 3 3               1/3  1/3  1/3
             ln 1  ln 1  ln 2            1 1 2               1/4  1/4  2/4
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently import reference
from intently.core.scores import Additive, Cosine, General, concat

from .formula import IN_FLOAT64

EXP = torch.tensor([[1.0, 2.0, 5.0], [3.0, 3.0, 3.0], [1.0, 1.0, 2.0]], dtype=torch.float64)
Q, K = EXP.log(), torch.eye(3, dtype=torch.float64)
V = torch.tensor([[8.0, 12.0, 0.0], [0.0, 12.0, 4.0], [16.0, 0.0, 8.0]], dtype=torch.float64)
A = it.attend(Q, K, scale=1)


def numbers(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def same(found: Tensor, expected: list | float) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=found.dtype), atol=1e-12, rtol=0)


def test_weights() -> None:
    same(A.dense(), [[1 / 8, 2 / 8, 5 / 8], [1 / 3, 1 / 3, 1 / 3], [1 / 4, 1 / 4, 2 / 4]])


def test_product_by_every_kernel() -> None:
    """Query 0: (8 + 0·2 + 16·5)/8 = 11, (12 + 12·2)/8 = 4.5, (4·2 + 8·5)/8 = 6."""
    for kernel in IN_FLOAT64:
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
    weights = reference.weights(Q, K, scale=1, sinks=math.log(8))
    np.testing.assert_allclose(weights[0], [1 / 16, 2 / 16, 5 / 16], atol=1e-15)


def test_bias_multiplies_the_exponentials() -> None:
    """A bias of ln 3 on key 0 counts it three times: 3, 2, 5."""
    bias = torch.tensor([math.log(3), 0, 0], dtype=torch.float64)
    same(it.attend(Q, K, scale=1, bias=bias)[0], [3 / 10, 2 / 10, 5 / 10])


def test_scale_is_an_exponent() -> None:
    """Twice the scale squares the exponentials: 1, 4, 25."""
    same(it.attend(Q, K, scale=2)[0], [1 / 30, 4 / 30, 25 / 30])


def test_a_softcap_bends_the_scores() -> None:
    """tanh(½ ln x) = (x − 1) / (x + 1), for x = 3, 1, ⅓: ½, 0, −½. Times the cap 2 ln 2: ±ln 2.

    Scores ln 2 · ln 3, 0 and their negative are ½ ln 3, 0, −½ ln 3 times the cap, so that exp
    gives 2, 1, ½ of a sum of 3½: 4/7, 2/7, 1/7.
    """
    z = math.log(2) * math.log(3)
    capped = it.attend(numbers([z, 0, -z]), K, scale=1, softcap=2 * math.log(2))
    same(capped.dense(), [[4 / 7, 2 / 7, 1 / 7]])


def test_padding_leaves_the_others_their_share() -> None:
    """Without key 2 the exponentials are 1 2, 3 3 and 1 1; without all of them nothing is left."""
    masked = it.attend(Q, K, scale=1, mask=it.prefix(2))
    same(masked.dense(), [[1 / 3, 2 / 3, 0], [1 / 2, 1 / 2, 0], [1 / 2, 1 / 2, 0]])
    same(masked.lse, [math.log(3), math.log(6), math.log(2)])
    for kernel in IN_FLOAT64:
        with it.kernels.use(kernel):
            # query 0: (8 + 0)/3, (12 + 2·12)/3, (0 + 2·4)/3; the others: half of keys 0 and 1
            same(masked @ V, [[8 / 3, 12, 8 / 3], [4, 12, 2], [4, 12, 2]])
            same(it.attention(Q, K, V, scale=1, mask=it.prefix(0)), [[0, 0, 0]] * 3)


def test_the_transposed_product_gives_values_to_keys() -> None:
    """Key 0 gathers 24·⅛ + 12·⅓ + 8·¼ = 9, key 1 6 + 4 + 2 = 12, key 2 15 + 4 + 4 = 23."""
    same(A.mT @ numbers([24], [12], [8]), [[9], [12], [23]])


def test_two_heads_of_a_query() -> None:
    """Head 0 has the weights above; head 1 doubles the scores: 1, 4, 25 of 30. Mean of both."""
    two = it.attend(torch.stack([Q, 2 * Q]), K.expand(2, 3, 3), scale=1)
    same(two[1, 0], [1 / 30, 4 / 30, 25 / 30])
    same(two.mean_heads()[0], [(1 / 8 + 1 / 30) / 2, (2 / 8 + 4 / 30) / 2, (5 / 8 + 25 / 30) / 2])


# --- the other scores -----------------------------------------------------------------------------


def test_additive() -> None:
    """One unit, 12 ln 2 · tanh(xᵢ − xⱼ), of x = ½ ln 1, ½ ln 3, ½ ln 5 with itself.

    xᵢ − xⱼ = ½ ln of      tanh(½ ln x) = (x − 1)/(x + 1)      exp = 2 to the power of 12 tanh

        1    ⅓    ⅕                0   −½   −⅔                      1   1/64  1/256
        3    1    ⅗                ½    0   −¼                     64    1     1/8
        5   5/3   1                ⅔    ¼    0                    256    8      1
    """
    one = numbers([1])
    score = Additive(one, -one, numbers([12 * math.log(2)])[0])
    x = numbers([1], [3], [5]).log() / 2
    found = it.attend(x, x, score=score)
    powers = numbers([0, -6, -8], [6, 0, -3], [8, 3, 0])
    same(found.scores[...], (math.log(2) * powers).tolist())
    same(
        found.dense(),
        [
            [256 / 261, 4 / 261, 1 / 261],
            [512 / 521, 8 / 521, 1 / 521],
            [256 / 265, 8 / 265, 1 / 265],
        ],
    )
    formula = reference.additive(one, -one, [12 * math.log(2)])
    np.testing.assert_allclose(reference.weights(x, x, score=formula), found.dense(), atol=1e-15)


def test_concat_is_one_matrix_beside_the_other() -> None:
    """The same unit as [1, −1] on the query and the key, one above the other."""
    x = numbers([1], [3], [5]).log() / 2
    score = concat(numbers([1, -1]), numbers([12 * math.log(2)])[0])
    same(it.attend(x, x, score=score)[0], [256 / 261, 4 / 261, 1 / 261])


def test_general() -> None:
    """W = (0 ln 2; ln 3 0), keys (1, 0), (0, 1), (0, 0): q W k are the entries of q W, and 0.

    q = (1, 0): 0, ln 2, 0; (0, 1): ln 3, 0, 0; (1, 1): ln 3, ln 2, 0.
    """
    score = General(numbers([0, math.log(2)], [math.log(3), 0]))
    q, k = numbers([1, 0], [0, 1], [1, 1]), numbers([1, 0], [0, 1], [0, 0])
    found = it.attend(q, k, score=score)
    same(found.dense(), [[1 / 4, 2 / 4, 1 / 4], [3 / 5, 1 / 5, 1 / 5], [3 / 6, 2 / 6, 1 / 6]])
    formula = reference.general(score.parts[0])
    np.testing.assert_allclose(reference.weights(q, k, score=formula), found.dense(), atol=1e-15)


def test_cosine() -> None:
    """Lengths do not count: (3, 4) has cosines ⅗ and ⅘ with the axes, however long they are.

    With 5 ln 2 as scale exp gives 2³ = 8 and 2⁴ = 16, and 2⁰ = 1 for the key that is zero; (2, 0)
    lies on the first axis, 2⁵ = 32, 1, 1; the query that is zero looks at all keys alike.
    """
    q, k = numbers([3, 4], [2, 0], [0, 0]), numbers([7, 0], [0, 2], [0, 0])
    found = it.attend(q, k, score=Cosine(), scale=5 * math.log(2))
    same(
        found.dense(), [[8 / 25, 16 / 25, 1 / 25], [32 / 34, 1 / 34, 1 / 34], [1 / 3, 1 / 3, 1 / 3]]
    )
    weights = reference.weights(q, k, score=reference.cosine, scale=5 * math.log(2))
    np.testing.assert_allclose(weights, found.dense(), atol=1e-15)


# --- the reference --------------------------------------------------------------------------------


def test_the_reference_agrees_and_takes_bare_integers() -> None:
    np.testing.assert_allclose(reference.weights(Q, K, scale=1), A.dense(), atol=1e-15)
    np.testing.assert_allclose(reference.attention(Q, K, V, scale=1), A @ V, atol=1e-14)
    np.testing.assert_allclose(reference.logits(Q, K, scale=1), A.scores[...], atol=1e-15)
    np.testing.assert_allclose(reference.lse(Q, K, scale=1), np.log([8, 9, 4]), atol=1e-15)
    np.testing.assert_allclose(
        reference.lse(Q, K, scale=1, sinks=np.log(8)), np.log([16, 17, 12]), atol=1e-15
    )
    pixels = [[255, 0, 0, 1], [0, 255, 0, 1], [0, 0, 255, 2]]
    found = reference.attention(pixels, pixels, pixels, scale=0)
    np.testing.assert_allclose(found, np.tile([85, 85, 85, 4 / 3], (3, 1)))


def test_the_reference_gives_zero_for_a_row_without_keys() -> None:
    mask = [[True, False], [False, False]]
    assert reference.weights([[1.0], [1.0]], [[1], [2]], mask=mask).tolist() == [[1, 0], [0, 0]]
    assert reference.attention([[1]], np.zeros((0, 1)), np.zeros((0, 2))).tolist() == [[0, 0]]
    assert reference.lse([[1.0], [1.0]], [[1], [2]], mask=mask).tolist() == [1, -math.inf]
    assert reference.lse([[1]], np.zeros((0, 1))).tolist() == [-math.inf]


def test_the_reference_does_not_need_torch() -> None:
    assert reference.__file__ is not None
    source = Path(reference.__file__).read_text(encoding="utf-8")
    assert re.findall(r"^(?:import|from) (\S+)", source, re.MULTILINE) == [
        "__future__",
        "collections.abc",
        "typing",
        "numpy",
        "numpy.typing",
        "intently.errors",
    ]


@pytest.mark.parametrize("d", [1, 4, 64])
def test_the_scale_is_one_over_the_root_of_d(d: int) -> None:
    ones = torch.ones(1, d, dtype=torch.float64)
    same(it.attend(ones, ones).scores[0, 0], math.sqrt(d))
