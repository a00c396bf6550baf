"""The steps of `intently.reference`: by hand, against our blocks, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently import reference as R
from intently.errors import ArgumentError, KindError
from intently.nn import MultiHeadAttention, Projections

from ..messages import raises

X = np.array([[1, 0, 1, 0], [0, 2, 0, 2]])
NAN, INF = np.nan, np.inf


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).normal(size=shape)


def test_a_projection_is_x_times_w() -> None:
    W = np.arange(12).reshape(4, 3)
    assert R.project(X, W).tolist() == [[6, 8, 10], [24, 28, 32]]
    assert R.project(X, W, [1, 0, -1]).tolist() == [[7, 8, 9], [25, 28, 31]]
    both = R.project(X[None], np.stack([W, -W]), [[1, 1, 1], [0, 0, 0]])
    assert both.shape == (1, 2, 2, 3)
    assert both[0, 0, 0].tolist() == [7, 9, 11] and both[0, 1, 1].tolist() == [-24, -28, -32]


def test_heads_are_split_and_joined() -> None:
    x = np.arange(12).reshape(2, 6)
    heads = R.split_heads(x, 2)
    assert heads.tolist() == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
    assert np.array_equal(R.join_heads(heads), x)
    batch = drawn(5, 3, 2, 8)
    assert R.split_heads(batch, 4).shape == (5, 3, 4, 2, 2)
    assert np.array_equal(R.join_heads(R.split_heads(batch, 4)), batch)


def test_the_steps_are_the_whole() -> None:
    q, k, v = drawn(2, 4, 5, 3), drawn(2, 2, 6, 3), drawn(2, 2, 6, 7)
    z = R.logits(q, k, mask=it.causal())
    w = R.softmax(z, sinks=[0, 1, 2, 3])
    np.testing.assert_array_equal(w, R.weights(q, k, mask=it.causal(), sinks=[0, 1, 2, 3]))
    np.testing.assert_array_equal(
        R.weighted_sum(w, v), R.attention(q, k, v, mask=it.causal(), sinks=[0, 1, 2, 3])
    )


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("crosses", [False, True])
def test_multi_head_is_our_block(crosses: bool, kv_heads: int) -> None:
    own = Projections(bias=False, out_bias=False, fused=False)
    block = MultiHeadAttention(
        8,
        4,
        kv_heads=kv_heads,
        context_width=6 if crosses else None,
        head_widths=(3, 5),
        projections=own,
    ).double()
    wq, wk, wv = [
        p.detach().numpy().reshape(heads, -1, p.shape[1]).swapaxes(-1, -2)
        for p, heads in (
            (block.q_weight, 4),
            (block.k_weight, kv_heads),
            (block.v_weight, kv_heads),
        )
    ]
    out = block.out_weight.detach().numpy().T
    x, context = drawn(2, 5, 8), drawn(2, 7, 6) if crosses else None
    mask = it.padding(torch.tensor([4, 2]))
    tensors = torch.tensor(x), None if context is None else torch.tensor(context)
    expected = block(*tensors, mask=mask).detach()
    found = R.multi_head(x, wq, wk, wv, out, context=context, mask=mask)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
    alone = R.multi_head(
        x[0],
        wq,
        wk,
        wv,
        out,
        context=None if context is None else context[0],
        mask=it.window(3, 3, offset=0),
    )
    np.testing.assert_allclose(
        alone, block(*tensors, mask=it.window(3, 3, offset=0))[0].detach(), rtol=1e-12, atol=1e-13
    )


@pytest.mark.parametrize(
    "mask",
    [it.causal(), it.window(1, 2), it.padding(torch.tensor([3, 0])), ~it.causal() & it.prefix(3)],
)
def test_our_masks_are_taken(mask: it.Mask) -> None:
    q, k, v = drawn(2, 4, 5, 3), drawn(2, 2, 6, 3), drawn(2, 2, 6, 7)
    A = it.attend(*(torch.tensor(x) for x in (q, k)), mask=mask)
    np.testing.assert_allclose(R.weights(q, k, mask=mask), A.dense(), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        R.attention(q, k, v, mask=mask), A @ torch.tensor(v), rtol=1e-12, atol=1e-14
    )
    np.testing.assert_allclose(R.lse(q, k, mask=mask), A.lse, rtol=1e-12, atol=1e-14)


def test_our_biases_are_taken() -> None:
    q, k = drawn(2, 4, 5, 3), drawn(2, 4, 6, 3)
    table = torch.tensor(drawn(8, 4))
    for bias in (it.alibi(4), it.relative_buckets(table), it.alibi(4) + torch.ones(4, 1, 6)):
        A = it.attend(torch.tensor(q), torch.tensor(k), bias=bias)
        np.testing.assert_allclose(R.weights(q, k, bias=bias), A.dense(), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("score", [R.dot, R.cosine, R.general(drawn(3, 3))])
@pytest.mark.filterwarnings("error")
def test_what_nobody_may_attend_changes_nothing(score: R.Score, bad: float) -> None:
    q, k, v = drawn(2, 4, 5, 3), drawn(2, 2, 6, 3), drawn(2, 2, 6, 7)
    mask = it.padding(torch.tensor([4, 6]))
    expected = R.attention(q, k, v, mask=mask, score=score)
    k[0, :, 4:], v[0, :, 4:] = bad, bad
    np.testing.assert_array_equal(R.attention(q, k, v, mask=mask, score=score), expected)


def test_what_somebody_attends_is_not_hidden() -> None:
    y = R.attention([[0.0], [0.0]], [[0], [0]], [[1], [NAN]], mask=[[True, False], [True, True]])
    assert np.isnan(y[1, 0])


test_what_does_not_fit_is_refused = raises(
    {
        KindError: {
            "mask: expected booleans, True means attend, or a mask such as it.causal(); got dtype "
            "float64. Numbers may mean the opposite in other code. What is added to the scores is "
            "a bias: bias=; ones and zeros: np.array(mask) == 1.": lambda: R.weights(
                X, X, mask=np.array([[0.0, -INF], [0, 0]])
            ),
            "mask: expected booleans, True means attend, or a mask such as "
            "it.causal(); got dtype int64.": lambda: R.weights(X, X, mask=[[1, 0], [1, 1]]),
            "mask: expected booleans": lambda: R.weights(X, X, mask=it.alibi(2)),
            "lengths: expected": lambda: R.weights(
                drawn(2, 4, 5, 3), drawn(2, 4, 6, 3), mask=it.padding(torch.ones(3))
            ),
            "bias: expected numbers; got booleans. A boolean array is a mask: mask=.": lambda: (
                R.weights(X, X, bias=[True, False])
            ),
            "q: expected an array of numbers; got list": lambda: R.weights([["a"]], X),
            "q: expected an array of numbers; got Tensor. Can't call numpy() on Tensor that "
            "requires": lambda: R.weights(torch.ones(1, 4, requires_grad=True), X),
            "k: expected an array of numbers": lambda: R.weights(X, [[1], [1, 2]]),
            "score: expected a function (q, k) → (…, t, s): dot, cosine, general(W), additive(…); "
            "got Cosine. Scores of intently.core.scores are for tensors.": lambda: R.weights(
                X, X, score=it.Cosine()
            ),
        },
        ArgumentError: {
            "mask: expected a shape that broadcasts to (…, t, s) = (2, 2); got shape "
            "(3, 2).": lambda: R.weights(X, X, mask=np.ones((3, 2), bool)),
            "mask: expected a shape that broadcasts to (…, t, s) = (2, 4, 5, "
            "6); got shape (2, 5, 6). Its first axis is b, where broadcasting looks for h. Use "
            "m[:, None]": lambda: R.weights(
                drawn(2, 4, 5, 3), drawn(2, 4, 6, 3), mask=np.ones((2, 5, 6), bool)
            ),
            "bias: expected a shape that broadcasts to (…, t, s) = (2, 2); got shape "
            "(3,).": lambda: R.weights(X, X, bias=[1, 2, 3]),
            "scale: expected a shape": lambda: R.weights(X, X, scale=[1, 2, 3]),
            "q: expected at least 2 axes; got shape (2,).": lambda: R.weights([1, 2], X),
            "k: expected shape (…, s, d=4), as wide as q; got shape (2, 3).": lambda: R.weights(
                X, drawn(2, 3)
            ),
            "k: expected a width that the score takes beside q (…, t, d=4); got "
            "shape (2, 3).": lambda: R.weights(X, drawn(2, 3), score=R.general(drawn(4, 4))),
            "k: expected leading axes that broadcast with those of q (4,); got shape (2, 5, 3). "
            "Heads are axis −3; with four or more axes h may be a multiple of g.": lambda: (
                R.weights(drawn(4, 5, 3), drawn(2, 5, 3))
            ),
            "k: expected leading axes that broadcast with those of q (1, 4); got shape (1, 3, 5, "
            "3).": lambda: R.weights(drawn(1, 4, 5, 3), drawn(1, 3, 5, 3)),
            "v: expected leading axes that broadcast with those of q (4,); got shape "
            "(2, 5, 3).": lambda: R.attention(drawn(4, 5, 3), drawn(4, 5, 3), drawn(2, 5, 3)),
            "v: expected s=2 rows, one for each key; got shape (3, 1).": lambda: R.attention(
                X, X, drawn(3, 1)
            ),
            "sinks: expected shape () or (h,) = (4,); got shape (2,).": lambda: R.weights(
                drawn(1, 4, 5, 3), drawn(1, 4, 5, 3), sinks=[1, 2]
            ),
            "weight: expected shape (c=4, n), or (h, c=4, n); got shape (3, 4). Weights of "
            "nn.Linear are (n, c): pass weight.T.": lambda: R.project(X, np.ones((3, 4))),
            "bias: expected shape (3,), as wide as the weight; got shape (2,).": lambda: R.project(
                X, np.ones((4, 3)), [1, 2]
            ),
            "heads: expected a divisor of the width 4; got 3.": lambda: R.split_heads(X, 3),
            "y: expected at least 3 axes; got shape (2, 4).": lambda: R.join_heads(X),
        },
    }
)
