"""Scores that cannot be: what is said of them."""

from __future__ import annotations

import torch
from torch import Tensor

import intently as it
from intently.core.scores import Additive, Cosine, Dot, General, Score, concat
from intently.errors import ArgumentError, KindError

from ..messages import Refusals, raises


def x(*shape: int) -> Tensor:
    return torch.ones(*shape)


def per_head() -> Score:
    return General(x(3, 4, 5))


CASES: Refusals = {
    KindError: {
        "weight: expected a floating-point tensor (…, d, d_k); got list.": lambda: General([[1.0]]),
        "weight: expected a floating-point tensor (…, d, d_k); got dtype torch.int64.": lambda: (
            General(x(2, 2).long())
        ),
        "bias: expected a floating-point tensor (…, a=3); got float.": lambda: Additive(
            x(3, 2), x(3, 2), x(3), 1.0
        ),
        "score: expected a floating-point tensor on the device of q, cpu; got torch.float32 on "
        "meta. Move it once with .to(…), not in every call.": lambda: General(
            torch.ones(4, 5, device="meta")
        ).check(x(2, 4), x(2, 5)),
    },
    ArgumentError: {
        "weight: expected shape (…, d, d_k); got shape (2,).": lambda: General(x(2)),
        "query_weight: expected shape (…, a, d); got shape (3,).": lambda: Additive(
            x(3), x(3, 2), x(3)
        ),
        "key_weight: expected shape (…, a=3, d_k); got shape (4, 2).": lambda: Additive(
            x(3, 2), x(4, 2), x(3)
        ),
        "energy: expected shape (…, a=3); got shape (2,).": lambda: Additive(
            x(3, 2), x(3, 2), x(2)
        ),
        "bias: expected shape (…, a=3); got shape (2,).": lambda: Additive(
            x(3, 2), x(3, 2), x(3), x(2)
        ),
        "weight: expected an even number of columns, half for q and half for k; got shape "
        "(3, 5). Pass the width of the queries: concat(weight, energy, d).": lambda: concat(
            x(3, 5), x(3)
        ),
        "d: expected a number of columns from 0 to 5; got 6.": lambda: concat(x(3, 5), x(3), 6),
        "k: expected shape (…, s, d=3) like q; got shape (2, 4). Queries and keys of a dot "
        "product have the same width.": lambda: Dot().check(x(2, 3), x(2, 4)),
        "k: expected shape (…, s, d=3) like q; got shape (2, 4).": lambda: it.attend(
            x(2, 3), x(2, 4), score=Cosine()
        ),
        "q: expected shape (…, t, d=4), as the score was made for; got shape (2, 3).": lambda: (
            it.attend(x(2, 3), x(2, 5), score=General(x(4, 5)))
        ),
        "k: expected shape (…, s, d_k=5), as the score was made for; got shape (2, 3).": [
            lambda: it.attend(x(2, 4), x(2, 3), score=General(x(4, 5))),
            lambda: it.attend(x(2, 4), x(2, 3), score=Additive(x(1, 4), x(1, 5), x(1))),
        ],
        "score: expected leading axes that broadcast to (2, 4); got (3,) in a tensor of shape "
        "(3, 4, 5). A tensor for each head begins with (h, …), heads being axis −3 of q.": lambda: (
            it.attend(x(2, 4, 6, 4), x(2, 4, 6, 5), score=per_head())
        ),
        "score: expected leading axes that broadcast to (); got (3,) in a tensor of shape "
        "(3, 4, 5).": lambda: it.attend(x(6, 4), x(6, 5), score=per_head()),
    },
    NotImplementedError: {"Score gives neither operands nor": lambda: Score()(x(1, 1), x(1, 1))},
}


test_message = raises(CASES)
