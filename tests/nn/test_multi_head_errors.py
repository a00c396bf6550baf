"""What multi-head attention refuses."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

import intently as it
from intently.errors import ArgumentError, KindError
from intently.nn import KeyValueCache, MultiHeadAttention, Projections

from ..messages import Refusals, raises

CASES: Refusals = {
    ArgumentError: {
        "heads: expected a divisor of width=12; got 5. Each head gets width/heads. Choose another "
        "number, or give head_widths=(d, e).": lambda: MultiHeadAttention(12, 5),
        "heads: expected an int ≥ 1; got 0.": lambda: MultiHeadAttention(12, 0),
        "width: expected an int ≥ 1; got 0.": lambda: MultiHeadAttention(0, 4),
        "head_widths: expected two widths (d, e) ≥ 1; got 3.": lambda: MultiHeadAttention(
            12, 4, head_widths=cast(Any, 3)
        ),
        "context_width: expected an int ≥ 1; got 0.": lambda: MultiHeadAttention(
            12, 4, context_width=0
        ),
        "out_width: expected an int ≥ 1; got 0.": lambda: Projections(out_width=0),
        "dropout: expected a probability in [0, 1); got 'a'.": lambda: MultiHeadAttention(
            12, 4, dropout=cast(Any, "a")
        ),
        "kv_heads: expected a divisor of heads=4; got 3.": lambda: MultiHeadAttention(
            12, 4, kv_heads=3
        ),
        "dropout: expected a probability in [0, 1); got 1.0.": lambda: MultiHeadAttention(
            12, 4, dropout=1.0
        ),
        "head_widths: expected an int ≥ 1; got 0.": lambda: MultiHeadAttention(
            12, 4, head_widths=(0, 3)
        ),
        "x: expected shape (b, t, c=12), or (t, c); got shape (12,).": lambda: MultiHeadAttention(
            12, 4
        )(torch.ones(12)),
        "x: expected shape (b, t, c=12), or (t, c); got shape (1, 5, 8).": lambda: (
            MultiHeadAttention(12, 4)(torch.ones(1, 5, 8))
        ),
        "context: expected shape (b, s, 7); got None. This layer was made for cross-attention "
        "(context_width).": lambda: MultiHeadAttention(12, 4, context_width=7)(
            torch.ones(1, 5, 12)
        ),
        "context: expected shape (b=2, s, 12); got shape (1, 5, 12).": lambda: MultiHeadAttention(
            12, 4
        )(torch.ones(2, 5, 12), torch.ones(1, 5, 12)),
        "cache: expected a FixedCache beside a context; got a KeyValueCache. A context does not "
        "grow.": lambda: MultiHeadAttention(12, 4)(
            torch.ones(2, 5, 12), torch.ones(2, 5, 12), cache=KeyValueCache()
        ),
        "mask: expected a shape that broadcasts to (b, h, t, s) = (2, 4, 5, 5); got shape "
        "(2, 5, 5). Its first axis is b, where broadcasting looks for h. Use m[:, None], shape "
        "(b, 1, t, s).": lambda: MultiHeadAttention(12, 4)(
            torch.ones(2, 5, 12), mask=torch.ones(2, 5, 5) > 0
        ),
    },
    KindError: {
        "heads: expected an int ≥ 1; got 4.0.": lambda: MultiHeadAttention(12, cast(Any, 4.0)),
        "attention: expected intently.nn.AttentionOptions(…); got _Causal.": lambda: (
            MultiHeadAttention(12, 4, attention=cast(Any, it.causal()))
        ),
        "projections: expected intently.nn.Projections(…); got bool.": lambda: MultiHeadAttention(
            12, 4, projections=cast(Any, True)
        ),
        "cache: expected a KeyValueCache, WindowCache or FixedCache; got list.": lambda: (
            MultiHeadAttention(12, 4)(torch.ones(2, 5, 12), cache=cast(Any, []))
        ),
        "mask: expected a boolean tensor on the device of q, cpu; got torch.bool on meta. Move it "
        "once with .to(…), not in every call.": lambda: MultiHeadAttention(12, 4)(
            torch.ones(2, 5, 12), mask=torch.ones(5, 5, device="meta") > 0
        ),
        "x: expected a floating-point tensor (b, steps, width); got dtype torch.int64. Embed token "
        "ids first; NumPy arrays go through torch.as_tensor.": lambda: MultiHeadAttention(12, 4)(
            torch.ones(1, 5, 12).long()
        ),
        "x: expected a floating-point tensor (b, steps, width); got ndarray.": lambda: (
            MultiHeadAttention(12, 4)(np.ones((1, 5, 12)))
        ),
    },
}


test_errors = raises(CASES)
