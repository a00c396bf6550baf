"""What PyTorch refuses, the drop-in refuses, too."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from intently.core.drop_in import scaled_dot_product_attention
from intently.errors import ArgumentError, IntentlyError, KindError

from .formula import random
from .test_drop_in import LEADS, S, T, tensors


def x(*shape: int) -> Tensor:
    return torch.ones(*shape)


Q, K = x(2, 4, 5, 8), x(2, 4, 6, 8)
REFUSED: list[tuple[Callable[[Callable[..., Tensor]], object], type[Exception], str]] = [
    (
        lambda f: f(Q, x(2, 2, 6, 8), x(2, 2, 6, 8)),
        ArgumentError,
        "key: expected leading axes that broadcast with (2, 4); got shape (2, 2, 6, 8). If "
        "query heads share key heads, pass enable_gqa=True.",
    ),
    (
        lambda f: f(Q, K, x(2, 2, 6, 8)),
        ArgumentError,
        "value: expected leading axes that broadcast with (2, 4); got shape (2, 2, 6, 8).",
    ),
    (
        lambda f: f(Q, x(3, 4, 6, 8), x(3, 4, 6, 8)),
        ArgumentError,
        "key: expected leading axes that broadcast with (2, 4); got shape (3, 4, 6, 8).",
    ),
    (
        lambda f: f(Q, x(2, 3, 6, 8), x(2, 3, 6, 8), enable_gqa=True),
        ArgumentError,
        "key: expected a number of heads that divides those of query, h=4; got shape (2, 3, 6, 8).",
    ),
    (
        lambda f: f(Q, K, x(2, 8, 6, 8), enable_gqa=True),
        ArgumentError,
        "value: expected a number of heads that divides those of query, h=4; got shape "
        "(2, 8, 6, 8).",
    ),
    (
        lambda f: f(x(2, 1, 5, 8), K, K, enable_gqa=True),
        ArgumentError,
        "key: expected a number of heads that divides those of query, h=1; got shape (2, 4, 6, 8).",
    ),
    (
        lambda f: f(x(5, 8), x(6, 8), x(6, 8), enable_gqa=True),
        ArgumentError,
        "query: expected heads at axis −3, shape (…, heads, steps, width); got shape (5, 8). "
        "Leave out enable_gqa for tensors without heads.",
    ),
    (
        lambda f: f(Q, x(6, 8), x(6, 8), enable_gqa=True),
        ArgumentError,
        "key: expected heads at axis −3, shape (…, heads, steps, width); got shape (6, 8).",
    ),
    (
        lambda f: f(Q, x(3, 4, 6, 8), x(3, 4, 6, 8), enable_gqa=True),
        ArgumentError,
        "k: expected leading axes that broadcast with those of q (2, 4); got shape (3, 4, 6, 8).",
    ),
    (
        lambda f: f(x(8), x(6, 8), x(6, 8)),
        ArgumentError,
        "q: expected at least two axes (…, steps, d); got shape (8,).",
    ),
    (
        lambda f: f(Q, x(2, 4, 6, 7), x(2, 4, 6, 7)),
        ArgumentError,
        "k: expected shape (…, s, d=8) like q; got shape (2, 4, 6, 7).",
    ),
    (
        lambda f: f(Q[0], K[0], x(4, 7, 8)),
        ArgumentError,
        "v: expected shape (…, s=6, e); got shape (4, 7, 8). V holds one row for each key.",
    ),
    (
        lambda f: f(Q, K.double(), K),
        KindError,
        "k: expected dtype and device of q, torch.float32 on cpu; got torch.float64 on cpu.",
    ),
    (
        lambda f: f(Q, K, K.half()),
        KindError,
        "v: expected dtype and device of the matrix, torch.float32 on cpu; got torch.float16",
    ),
    (
        lambda f: f(Q.long(), K.long(), K.long()),
        KindError,
        "query: expected a floating-point tensor (…, steps, width); got dtype torch.int64. Lists",
    ),
    (
        lambda f: f(Q.tolist(), K, K),
        KindError,
        "query: expected a floating-point tensor (…, steps, width); got list.",
    ),
    (
        lambda f: f(Q, K, K, x(5, 6).tolist()),
        KindError,
        "attn_mask: expected a tensor (…, t, s); got list.",
    ),
    *[
        (
            lambda f, dtype=dtype: f(Q, K, K, x(5, 6).to(dtype)),
            KindError,
            f"attn_mask: expected dtype bool, float32 or that of query, torch.float32; got dtype "
            f"{dtype}.",
        )
        for dtype in (torch.float64, torch.float16, torch.int64, torch.uint8)
    ],
    (
        lambda f: f(Q.half(), K.half(), K.half(), x(5, 6).bfloat16()),
        KindError,
        "attn_mask: expected dtype bool, float32 or that of query, torch.float16; got dtype "
        "torch.bfloat16.",
    ),
    (
        lambda f: f(Q, K, K, x(2, 5, 6) > 0),
        ArgumentError,
        "mask: expected a shape that broadcasts to (b, h, t, s) = (2, 4, 5, 6); got shape "
        "(2, 5, 6). Its first axis is b, where broadcasting looks for h. Use m[:, None]",
    ),
    (
        lambda f: f(Q, K, K, x(5, 7)),
        ArgumentError,
        "bias: expected a shape that broadcasts to (…, t, s) = (2, 4, 5, 6); got shape (5, 7).",
    ),
    (
        lambda f: f(Q, K, K, x(1, 2, 4, 5, 6)),
        ArgumentError,
        "bias: expected a shape that broadcasts to (…, t, s) = (2, 4, 5, 6); got shape "
        "(1, 2, 4, 5, 6).",
    ),
    (
        lambda f: f(Q, K, K, dropout_p=1.5),
        ArgumentError,
        "dropout: expected a probability in [0, 1); got 1.5.",
    ),
    (
        lambda f: f(Q, K, K, dropout_p=-0.1),
        ArgumentError,
        "dropout: expected a probability in [0, 1); got -0.1.",
    ),
]


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(("call", "kind", "text"), REFUSED, ids=[text[:40] for *_, text in REFUSED])
def test_refused_by_both(
    call: Callable[[Callable[..., Tensor]], object], kind: type[Exception], text: str
) -> None:
    with pytest.raises((RuntimeError, IndexError, TypeError)):
        call(F.scaled_dot_product_attention)
    with pytest.raises(IntentlyError) as caught:
        call(scaled_dot_product_attention)
    assert isinstance(caught.value, kind)
    assert str(caught.value).startswith(text), str(caught.value)


# --- what differs on purpose ----------------------------------------------------------------------


def test_nan_under_a_mask_stays_there() -> None:
    """PyTorch multiplies it by a weight of zero, which is NaN."""
    q, k, v = tensors(LEADS["4-D"])
    allow = (torch.arange(S) < S - 2).expand(T, S)
    expected = F.scaled_dot_product_attention(q, k, v, allow)
    k, v = k.clone(), v.clone()
    k[..., -2:, :] = v[..., -2:, :] = math.nan
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, allow), expected)


@pytest.mark.usefixtures("as_users_call")
def test_values_of_another_length_are_refused_always() -> None:
    """PyTorch reads as many values as there are keys where its fused kernel serves."""
    with pytest.raises(ArgumentError, match=r"v: expected shape \(…, s=6, e\)"):
        scaled_dot_product_attention(Q, K, x(2, 4, 7, 8))


def test_masks_of_fewer_axes_broadcast_always() -> None:
    """PyTorch's plain kernel takes them, its fused kernel raises an IndexError."""
    q, k, v = tensors(LEADS["3-D"])
    for mask in (random(S), torch.tensor(0.5, dtype=q.dtype)):
        theirs = F.scaled_dot_product_attention(q, k, v, mask)
        torch.testing.assert_close(scaled_dot_product_attention(q, k, v, mask), theirs)
        ours = scaled_dot_product_attention(q[None], k[None], v[None], mask)
        torch.testing.assert_close(ours, theirs[None])
