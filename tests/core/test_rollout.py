"""Rollout: row vectors through the layers give what the product of dense matrices gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.matrix import Dense, LazyMatrix
from intently.core.matrix.joined import rollout
from intently.errors import ArgumentError, KindError, MemoryRefused, RangeError

from ..messages import Refusals, raises
from .formula import random

B, H, T, D = 2, 3, 5, 4


def layers(*lead: int, n: int = 3, t: int = T, dtype: torch.dtype = torch.float64) -> list[Any]:
    return [
        it.attend(*(random(*lead, t, D, dtype=dtype, seed=2 * i + j) for j in (0, 1)), scale=2)
        for i in range(n)
    ]


def multiplied(matrices: list[Any], residual: float = 0.5) -> Tensor:
    """The product (…, t, s) as section 3 writes it, the last layer on the left."""
    same = total = torch.eye(matrices[0].shape[-1], dtype=torch.float64)
    for m in matrices:
        weights = m.dense().double()
        weights = weights.mean(-3) if weights.ndim > 2 else weights
        total = (residual * same + (1 - residual) * weights) @ total
    return total


@pytest.mark.parametrize("residual", [0.5, 0.0, 0.2, 1.0])
@pytest.mark.parametrize("lead", [(), (H,), (B, H), (B, 2, H)])
def test_is_the_product_of_dense_matrices(lead: tuple[int, ...], residual: float) -> None:
    matrices = layers(*lead)
    found = rollout(matrices, residual)
    assert found.shape == (*lead[:-1], T, T)
    torch.testing.assert_close(found, multiplied(matrices, residual))
    torch.testing.assert_close(found.sum(-1), torch.ones(found.shape[:-1], dtype=found.dtype))


QUERIES: dict[str, Any] = {
    "an int": 3,
    "from the end": -1,
    "a slice": slice(1, None, 2),
    "a list": [4, 0, 0],
    "a range": range(2, 4),
    "a tensor": torch.tensor([2, 1]),
    "one in a tensor": torch.tensor(2),
    "an array": np.array([3, 3]),
    "a number of NumPy": np.int64(1),
    "a boolean": torch.tensor([True, False, False, True, True]),
    "none of them": [],
    "all": None,
}


@pytest.mark.parametrize("name", QUERIES)
def test_queries(name: str) -> None:
    matrices = layers(B, H)
    asked = QUERIES[name]
    index = slice(None) if asked is None else list(asked) if isinstance(asked, range) else asked
    expected = multiplied(matrices)[:, index]
    torch.testing.assert_close(rollout(matrices, queries=asked), expected)


def test_half_types_are_summed_in_float32() -> None:
    matrices = layers(B, H, dtype=torch.bfloat16)
    found = rollout(matrices)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found.double(), multiplied(matrices), atol=0.01, rtol=0.02)


def test_of_masked_layers_and_their_empty_rows() -> None:
    """A row that attends to nothing keeps what the residual carries."""
    q, k = random(H, T, D), random(H, T, D, seed=1)
    matrices = [it.attend(q, k, mask=it.causal(-1)) for _ in range(2)]
    found = rollout(matrices)
    torch.testing.assert_close(found, multiplied(matrices))
    assert found[0].tolist() == [0.25, 0, 0, 0, 0]
    assert found.triu(1).abs().max() == 0


def test_gradients_flow_through_rollout() -> None:
    q, k = random(H, T, D).requires_grad_(), random(H, T, D, seed=1).requires_grad_()

    def f(q: Tensor, k: Tensor) -> Tensor:
        return rollout([it.attend(q, k), it.attend(k, q)], queries=[1, 2])

    assert torch.autograd.gradcheck(f, (q, k), fast_mode=True)


def test_few_queries_of_a_long_sequence_build_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = LazyMatrix.dense
    monkeypatch.setattr(LazyMatrix, "dense", lambda self, **o: asked.append(1) or whole(self, **o))
    matrices = layers(2, t=600, n=2)
    found = rollout(matrices, queries=[0, 599])
    assert found.shape == (2, 600) and not asked
    torch.testing.assert_close(found, multiplied(matrices)[[0, 599]])


CASES: Refusals = {
    ArgumentError: {
        "matrices: expected at least one layer; got none.": lambda: rollout([]),
        "matrices: expected square matrices, t = s; got shape (3, 4). Rollout follows one "
        "sequence through its layers: self-attention.": lambda: rollout([Dense(torch.ones(3, 4))]),
        "matrices: expected layers of one shape, heads aside; got (3, 3), (4, 4).": lambda: rollout(
            [Dense(torch.eye(3)), Dense(torch.eye(4))]
        ),
        "residual: expected a share from 0 to 1; got 1.5.": lambda: rollout(
            [Dense(torch.eye(3))], residual=1.5
        ),
        "index: expected integers (n,) along t; got torch.float64, shape (1,).": lambda: rollout(
            [Dense(torch.eye(3))], queries=[0.5]
        ),
    },
    KindError: {
        "matrices: expected lazy matrices, one for each layer; got Tensor. Wrap dense weights: "
        "it.Dense(weights).": lambda: rollout([torch.eye(3)])
    },
    RangeError: {
        "index: expected positions from −3 to 2 along t=3; got 3 to 3.": lambda: rollout(
            [Dense(torch.eye(3))], queries=3
        )
    },
    MemoryRefused: {
        "rollout: expected at most max_bytes=255 bytes; got 256 bytes for 8 queries of 8. Ask for "
        "fewer: rollout(matrices, queries=range(10)), or raise max_bytes.": lambda: rollout(
            [Dense(torch.eye(8))], max_bytes=255
        )
    },
}


test_message = raises(CASES, whole=True)


def test_different_numbers_of_heads_are_averaged_before_they_meet() -> None:
    matrices = [layers(2, n=1)[0], layers(3, n=1)[0]]
    torch.testing.assert_close(rollout(matrices), multiplied(matrices))


def test_nan_of_a_padded_query_stays_with_those_who_draw_on_it() -> None:
    q, k = random(2, 3, T, D, seed=1), random(2, 3, T, D, seed=2)
    mask = it.padding([3, T])
    clean = rollout([it.attend(q, k, mask=mask)] * 2)
    q[0, :, 3:] = k[0, :, 3:] = torch.nan
    found = rollout([it.attend(q, k, mask=mask)] * 2)
    torch.testing.assert_close(found[0, :3], clean[0, :3])
    torch.testing.assert_close(found[1], clean[1])
    assert bool(found[0, 3:].isnan().all())
