"""Blocks made of anybody's own weights: every layout against the code it comes from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn import AttentionOptions, MultiHeadAttention

from ..core.formula import random
from ..messages import Refusals, raises
from ..tensors import close

C, H, D, E, T = 8, 2, 3, 5, 6


def joined(heads: list[Tensor], out: Tensor) -> Tensor:
    return torch.cat(heads, -1) @ out.T


@pytest.mark.parametrize("causal", [False, True])
def test_head_after_head(causal: bool) -> None:
    """The textbook's: W_q of shape (h·d, c), viewed as (b, t, h, d)."""
    x, context = random(2, T, C), random(2, 4, 7) if not causal else random(2, T, 7)
    q, k, v, out = (
        random(H * D, C),
        random(H * D, 7, seed=1),
        random(H * E, 7, seed=2),
        random(C, H * E),
    )
    options = AttentionOptions(mask=it.causal()) if causal else AttentionOptions()
    block = MultiHeadAttention.from_weights(q, k, v, out, layout="h d", heads=H, attention=options)
    Q, K, V = (
        (y @ w.T).view(2, -1, H, w.shape[0] // H).transpose(1, 2)
        for y, w in ((x, q), (context, k), (context, v))
    )
    z = Q @ K.mT / D**0.5
    if causal:
        z = z.masked_fill(~torch.ones(T, T).tril().bool(), -torch.inf)
    y = (z.softmax(-1) @ V).transpose(1, 2).reshape(2, T, H * E) @ out.T
    close(block(x, context), y)
    assert not block.fused and block.out_bias is None and block.q_bias is None


def fused_by_hand(x: Tensor, W: Tensor, b: Tensor, out: Tensor, layout: str) -> Tensor:
    joint = x @ W.T + b
    if layout == "3 h d":  # chunked, then split into heads
        q, k, v = (y.view(2, T, H, D).transpose(1, 2) for y in joint.chunk(3, -1))
    else:  # split into heads, then chunked
        q, k, v = joint.view(2, T, H, 3 * D).transpose(1, 2).chunk(3, -1)
    y = (q @ k.mT / D**0.5).softmax(-1) @ v
    return y.transpose(1, 2).reshape(2, T, H * D) @ out.T


def test_fused_layouts_have_one_shape_and_are_two_layers() -> None:
    x, W, b, out = random(2, T, C), random(3 * H * D, C), random(3 * H * D), random(C, H * D)
    found = {}
    for layout in ("3 h d", "h 3 d"):
        block = MultiHeadAttention.from_weights((W, b), None, None, out, layout=layout, heads=H)
        assert block.fused
        found[layout] = block(x)
        close(found[layout], fused_by_hand(x, W, b, out, layout))
    assert not torch.allclose(found["3 h d"], found["h 3 d"])


def test_a_list_of_heads() -> None:
    x = random(2, T, C)
    q, k, v = ([random(n, C, seed=10 * i + j) for i in range(H)] for j, n in enumerate((D, D, E)))
    out = random(C, H * E)
    block = MultiHeadAttention.from_weights(q, k, v, out, layout="list of heads")
    each = [((x @ a.T) @ (x @ b.T).mT / D**0.5).softmax(-1) @ (x @ c.T) for a, b, c in zip(q, k, v)]
    close(block(x), joined(each, out))
    split = [(part, random(C, seed=i)) for i, part in enumerate(out.split(E, 1))]
    summed = MultiHeadAttention.from_weights(q, k, v, split, layout="list of heads")
    close(summed(x), joined(each, out) + random(C, seed=0) + random(C, seed=1))


def test_linear_layers_whose_keys_have_no_bias() -> None:
    """As in Whisper: queries and values have biases, keys have none."""
    q, k, v, out = (nn.Linear(C, H * D, bias=name != "k").double() for name in "qkvo")
    out = nn.Linear(H * D, C).double()
    block = MultiHeadAttention.from_weights(q, k, v, out, layout="h d", heads=H)
    x = random(2, T, C)
    Q, K, V = (f(x).view(2, T, H, D).transpose(1, 2) for f in (q, k, v))
    y = out((((Q @ K.mT) / D**0.5).softmax(-1) @ V).transpose(1, 2).reshape(2, T, H * D))
    close(block(x), y)
    assert block.qkv_bias is not None
    assert not block.qkv_bias[H * D : 2 * H * D].any()
    q.weight.data.zero_()
    close(block(x), y)


def test_grouped_heads_and_an_output_of_its_own_width() -> None:
    """Two inputs of width 4, two heads of width 3 on one key head, an output of width 3."""
    block = MultiHeadAttention.from_weights(
        random(6, 4),
        random(3, 4),
        random(3, 4, seed=1),
        random(3, 6),
        layout="h d",
        heads=2,
        kv_heads=1,
    )
    assert (block.heads, block.kv_heads, block.d, block.e) == (2, 1, 3, 3)
    assert block(random(1, 2, 4)).shape == (1, 2, 3)


def test_arrays_and_dtypes() -> None:
    q = np.ones((6, 4), np.float32)
    block = MultiHeadAttention.from_weights(q, q, q, np.ones((4, 6), "f"), layout="h d", heads=2)
    assert block.qkv_weight.dtype == torch.float32 and block.qkv_weight.requires_grad
    half = torch.ones(6, 4, dtype=torch.bfloat16)
    block = MultiHeadAttention.from_weights(half, half, half, half.T, layout="h d", heads=2)
    assert block(half[None, :3]).dtype == torch.bfloat16


def test_transposed_as_keras_stores_them() -> None:
    kernel, out = random(C, 3 * H * D), random(H * D, C)
    block = MultiHeadAttention.from_weights(kernel.T, None, None, out.T, layout="3 h d", heads=H)
    x = random(2, T, C)
    close(block(x), fused_by_hand(x, kernel.T, torch.zeros(()), out.T, "3 h d"))


def made(**changed: Any) -> Callable[[], object]:
    given: dict[str, Any] = {
        "q": random(6, 8),
        "k": random(6, 8),
        "v": random(6, 8),
        "out": random(8, 6),
        "layout": "h d",
        "heads": 2,
    }
    return lambda: MultiHeadAttention.from_weights(**(given | changed))


FUSED = {"k": None, "v": None, "layout": "3 h d"}
HEADS = {"layout": "list of heads", **{name: [random(4, 8)] * 2 for name in "qkv"}}
STORED = "Weights are stored (out, in) as in nn.Linear; Keras stores (in, out)."
CASES: Refusals = {
    ArgumentError: {
        'layout: expected one of "h d", "3 h d", "h 3 d", "list of heads"; got \'qkv\'. Fused '
        "weights of different layouts have the same shape.": made(layout="qkv"),
        "heads: expected how many heads the rows of layout 'h d' hold; got None.": made(heads=None),
        'k, v: expected weights of their own in the layout "h d"; got None. A fused weight needs '
        'layout="3 h d" or layout="h 3 d".': made(k=None),
        "k, v: expected None: in the layout 'h 3 d' q holds all three; got weights of their own. "
        'Separate weights need layout="h d".': made(layout="h 3 d"),
        "q: expected a multiple of 3·heads = 6 rows, (3·h·d, c); got shape (8, 18). "
        + STORED: made(**FUSED, q=random(8, 18)),
        "kv_heads: expected heads=2 in the layout '3 h d'; got 1. Its three parts ha": made(
            **FUSED, q=random(18, 8), kv_heads=1
        ),
        "q: expected a multiple of heads=4 rows, (h·d, c); got shape (6, 8). " + STORED: made(
            heads=4
        ),
        "k: expected shape (g·d=6, c) for g=2 and d=3 of q; got shape (3, 8). "
        + STORED
        + " Pass kv_heads= if query heads share keys.": made(k=random(3, 8)),
        "v: expected shape (g·e, c=8) for g=2 heads, c as for k; got shape (6, 7).": made(
            v=random(6, 7)
        ),
        "out: expected shape (c, h·e=6); got shape (6, 8). "
        + STORED
        + " Pass weight.T if it is transposed.": made(out=random(6, 8)),
        "kv_heads: expected a divisor of heads=2; got 4.": made(kv_heads=4),
        "q: expected shape (out, in); got shape (6,).": made(q=random(6)),
        "q: expected a bias of shape (6,); got shape (8,).": made(q=(random(6, 8), random(8))),
        "k: expected heads of one shape (d, c); got (3, 8), (2, 8).": made(
            layout="list of heads", q=[random(3, 8)] * 2, k=[random(3, 8), random(2, 8)]
        ),
        "heads: expected 3, as long as the list q; got 2.": made(
            layout="list of heads", q=[random(3, 8)] * 3
        ),
        "v: expected as many heads as k, 2; got 1.": made(
            layout="list of heads", q=[random(3, 8)] * 2, k=[random(3, 8)] * 2, v=[random(3, 8)]
        ),
        "q: expected a bias for every head or for none; got 1.": made(
            layout="list of heads", q=[random(3, 8), (random(3, 8), random(3))]
        ),
        "kv_heads: expected 2, as long as the list k; got 1.": made(**HEADS, kv_heads=1),
        "out: expected 2 heads of one shape (c, e), as many as q; got an empty list.": made(
            **HEADS, out=[]
        ),
        "out: expected 2 heads of one shape (c, e), as many as q; got (3, 4), (4, 4).": made(
            **HEADS, out=[random(3, 4), random(4, 4)]
        ),
    },
    KindError: {
        "q: expected floating-point weights; got dtype torch.int64.": made(
            q=torch.ones(6, 8).long()
        ),
        "k, v, out: expected torch.float64 on cpu, as the first weight; got torch.float32 on cpu. "
        "Convert one of them with .to(…).": made(k=random(6, 8).float()),
        "q: expected a weight (out, in), a pair (weight, bias), an nn.Linear or a Keras "
        "Dense; got list. One "
        'weight for each head needs layout="list of heads".': made(q=[random(3, 8)] * 2),
        "q: expected a list with one weight (d, c) for each head; got Tensor.": made(
            layout="list of heads"
        ),
        "heads: expected an int ≥ 1; got '2'.": made(layout="h d", heads="2"),
    },
}


test_errors = raises(CASES)
