"""Weights that make no block: what is said of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from intently.errors import ArgumentError, KindError
from intently.nn import (
    AdditiveAttention,
    AttentionalVector,
    AttentionHead,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    ImageAttention,
    LuongAttention,
    SpatialTransformer,
)

from ..core.formula import random
from ..messages import Refusals, raises
from .test_blocks_from_weights import A, C, D, E, H, K

STORED = "Weights are stored (out, in) as in nn.Linear; Keras stores (in, out)."
TURN = " Pass weight.T if it is transposed."
LAYER = EncoderLayer(C, H, A).double()
NORM = nn.LayerNorm(C).double()


def image(**changed: Any) -> ImageAttention:
    given = {"q": random(D, C), "k": random(D, C), "v": random(E, C), "out": random(C, E)}
    return ImageAttention.from_weights(**(given | changed), layout="h d", heads=1)


ERRORS: Refusals = {
    ArgumentError: {
        'k, v: expected weights of their own in the layout "h d"; got None.': lambda: (
            AttentionHead.from_weights(random(D, C), None, None)
        ),
        f"k: expected shape (g·d=4, c) for g=1 and d=4 of q; got shape (8, 4). {STORED}": lambda: (
            AttentionHead.from_weights(random(D, C), random(C, D), random(E, C))
        ),
        "q: expected a multiple of 3·heads = 3 rows, (3·h·d, c); got shape (5, 8).": lambda: (
            AttentionHead.from_weights(random(D + 1, C), None, None, layout="3 h d")
        ),
        f"down: expected shape (c=8, inner=5); got shape (5, 8). {STORED}{TURN}": lambda: (
            FeedForward.from_weights(random(A, C), random(A, C))
        ),
        "up: expected shape (out, in); got shape (5, 8, 3, 3).": lambda: FeedForward.from_weights(
            random(A, C, 3, 3), random(C, A)
        ),
        "up: expected a weight of its own (inner, c); got None. A weight of both needs "
        'layout="gate up" or layout="up gate".': lambda: GatedFeedForward.from_weights(
            random(A, C), None, random(C, A)
        ),
        "up: expected None: in the layout 'gate up' gate holds both; got a weight of "
        'its own. Separate weights need layout="separate".': lambda: GatedFeedForward.from_weights(
            random(A, C), random(A, C), random(C, A), layout="gate up"
        ),
        "gate: expected an even number of rows, (2·inner, c); got shape (5, 8).": lambda: (
            GatedFeedForward.from_weights(random(A, C), None, random(C, A), layout="up gate")
        ),
        'layout: expected "separate", "gate up" or "up gate"; got \'up, gate\'.': lambda: (
            GatedFeedForward.from_weights(random(A, C), None, random(C, A), layout="up, gate")
        ),
        f"key: expected shape (a=5, k); got shape (6, 6). {STORED}{TURN}": lambda: (
            AdditiveAttention.from_weights(random(A, C), random(A + 1, K), random(A))
        ),
        "energy: expected shape (1, a=5); got shape (1, 6).": lambda: (
            AdditiveAttention.from_weights(random(A, C), random(A, K), random(A + 1))
        ),
        "energy: expected shape (a,) or (1, a); got shape (5, 2).": lambda: (
            AdditiveAttention.from_weights(random(A, C), random(A, K), random(A, 2))
        ),
        'query: expected a weight, for the score "concat"; got None.': lambda: (
            LuongAttention.from_weights("concat", random(A, K))
        ),
        'energy: expected None: it is for the score "concat"; got a weight.': lambda: (
            LuongAttention.from_weights("general", random(C, K), energy=random(A))
        ),
        'score: expected "general" or "concat"; got \'dot\'. It has no weights: write': lambda: (
            LuongAttention.from_weights("dot", random(C, K))
        ),
        'layout: expected "context query" or "query context"; got \'k c\'.': lambda: (
            AttentionalVector.from_weights(random(C, K + C), layout="k c")
        ),
        f"join: expected shape (c, k + c); got shape (8, 8). {STORED}{TURN}": lambda: (
            AttentionalVector.from_weights(random(C, C), layout="context query")
        ),
        "q: expected a convolution of single pixels, kernel_size=1; got kernel_size=(3, 3). Only "
        "such a convolution is a linear map of each pixel.": lambda: image(q=nn.Conv2d(C, D, 3)),
        "q: expected a convolution of single pixels, groups=1; got groups=2.": lambda: image(
            q=nn.Conv2d(C, C, 1, groups=2)
        ),
        "out: expected shape (c=8, h·e); got shape (9, 3). The output is added to": lambda: image(
            out=random(C + 1, E)
        ),
        "norm: expected a norm with weights (c=8,); got shape (4,).": lambda: image(
            norm=nn.GroupNorm(2, 4).double()
        ),
        "norms: expected a list of 2 norms; got 1.": lambda: EncoderLayer.from_weights(
            LAYER.self_attention, LAYER.feed_forward, [NORM]
        ),
        "feed_forward: expected one of width c=8, as the attention; got width 6.": lambda: (
            EncoderLayer.from_weights(
                LAYER.self_attention, FeedForward(K, A).double(), [NORM, NORM]
            )
        ),
        "layers[0]: expected a layer of width 6, as project_in makes; got width 8.": lambda: (
            SpatialTransformer.from_weights(random(K, C), [LAYER], random(C, K))
        ),
        f"project_out: expected shape (c=6, w=8); got shape (8, 6). {STORED}{TURN}": lambda: (
            SpatialTransformer.from_weights(random(C, K), [LAYER], random(C, K))
        ),
        "layers: expected layers that attend to contexts of one width; got [None, 8].": lambda: (
            SpatialTransformer.from_weights(
                random(C, K), [LAYER, DecoderLayer(C, H, A).double()], random(K, C)
            )
        ),
    },
    KindError: {
        "down: expected torch.float64 on cpu, as the first weight; got torch.float32 on": lambda: (
            FeedForward.from_weights(random(A, C), random(C, A).float())
        ),
        "down: expected a weight (out, in), a pair (weight, bias), an nn.Linear or a Keras "
        "Dense; got list.": lambda: FeedForward.from_weights(random(A, C), [[1.0]]),
        "down: expected floating-point weights; got dtype int64.": lambda: FeedForward.from_weights(
            random(A, C), np.ones((C, A), int)
        ),
        "up: expected floating-point weights; got list.": lambda: FeedForward.from_weights(
            (random(A, C), [1.0]), random(C, A)
        ),
        "up: expected a layer with weights; got one without. Call it once to set its": lambda: (
            FeedForward.from_weights(nn.LazyLinear(A), random(C, A))
        ),
        "norm: expected torch.float64 on cpu, as the first weight; got torch.float32": lambda: (
            image(norm=nn.GroupNorm(2, C))
        ),
        "norm: expected the module itself, with its weights; got Tensor.": lambda: image(
            norm=random(C)
        ),
        "attention: expected a MultiHeadAttention, with its weights; got EncoderLayer.": lambda: (
            EncoderLayer.from_weights(LAYER, FeedForward(C, A), [NORM, NORM])
        ),
    },
}


test_errors = raises(ERRORS)
