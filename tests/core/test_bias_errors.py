"""Biases that cannot be: what is said of them."""

from __future__ import annotations

import torch

from intently.core.biases import TensorBias, alibi, as_bias, relative_buckets
from intently.errors import ArgumentError, KindError

from ..messages import Refusals, raises
from .test_biases import geometry

WORDS: Refusals = {
    KindError: {
        "bias: expected real numbers: a tensor, a NumPy array or a list of them; got dtype "
        "torch.bool. Booleans say who may attend: mask=.": lambda: as_bias(
            torch.ones(2, 2, dtype=torch.bool)
        ),
        "bias: expected real numbers: a tensor, a NumPy array or a list of them; got "
        "str.": lambda: alibi() + "far",
        "bias: expected a floating-point tensor on the device of q, cpu; got torch.float32 on "
        "meta. Move it once with .to(…), not in every call.": lambda: TensorBias(
            torch.ones(2, 3, device="meta")
        ).check(geometry(2, 3)),
        "slopes: expected a floating-point tensor on the device of q, cpu; got torch.float32 on "
        "meta. Move it once with .to(…), not in every call.": lambda: alibi(
            slopes=torch.ones(3, device="meta")
        ).check(geometry(2, 3, 5, 5)),
        "offset: expected integers; got dtype torch.float32.": lambda: alibi(offset=1.5),
        "slopes: expected a floating-point tensor; got dtype torch.int64.": lambda: alibi(
            slopes=torch.ones(2).long()
        ),
        "slopes: expected a floating-point tensor; got 'steep'.": lambda: alibi(slopes="steep"),
    },
    ArgumentError: {
        "bias: expected a shape that broadcasts to (…, t, s) = (2, 4); got shape (4, 2).": lambda: (
            TensorBias(torch.ones(4, 2)).check(geometry(2, 4))
        ),
        "bias: expected a shape that broadcasts to (b, h, t, s) = (2, 3, 4, 5); got shape "
        "(2, 4, 5). Its first axis is b, where broadcasting looks for h. Use m[:, None], shape "
        "(b, 1, t, s).": lambda: TensorBias(torch.ones(2, 4, 5)).check(geometry(2, 3, 4, 5)),
        "bias: expected a shape that broadcasts to (…, t, s) = (2, 3); got shape (5,).": lambda: (
            alibi() + torch.ones(5)
        ).check(geometry(2, 3)),
        "heads: expected one entry for each head of the matrix, h=3; got 4 heads. Heads are axis "
        "−3.": lambda: alibi(4).check(geometry(2, 3, 5, 5)),
        "slopes: expected one entry for each head of the matrix, h=3; got shape (2,).": lambda: (
            alibi(slopes=[1.0, 2.0]).check(geometry(2, 3, 5, 5))
        ),
        "table: expected one entry for each head of the matrix, h=1; got shape (8, 2).": lambda: (
            relative_buckets(torch.ones(8, 2)).check(geometry(5, 5))
        ),
        "offset: expected a shape that matches the leftmost leading axes (3, 4); got "
        "shape (2,).": lambda: alibi(offset=torch.tensor([1, 2])).check(geometry(3, 4, 5, 5)),
        "heads: expected an int ≥ 1; got 0.": lambda: alibi(0),
        "slopes: expected either heads or slopes; got heads=2 and slopes. Slopes hold one entry "
        "for each head.": lambda: alibi(2, [0.1, 0.2]),
        "slopes: expected shape (h,) or (); got shape (2, 2).": lambda: alibi(
            slopes=torch.ones(2, 2)
        ),
        "table: expected shape (buckets, h); got shape (8,).": lambda: relative_buckets(
            torch.ones(8)
        ),
        "table: expected shape (buckets, h) with an even number ≥ 4 of buckets; got shape (7, 2). "
        "One half is for keys before the query, the other for those ahead of it.": lambda: (
            relative_buckets(torch.ones(7, 2))
        ),
        "table: expected shape (buckets, h) with at least 2 of buckets; got shape "
        "(1, 2).": lambda: relative_buckets(torch.ones(1, 2), bidirectional=False),
        "max_distance: expected an int ≥ 9; got 8.": lambda: relative_buckets(
            torch.ones(32, 2), max_distance=8
        ),
    },
}


test_message = raises(WORDS)
