"""The Transformer's variants as one would explain them: one sentence, one head at a time.

Formulas are those of the papers: Vaswani et al. 2017; Xiong et al. 2020 (norms first); Gehring et
al. 2017 (learned positions); Su et al. 2021 (rotary, as complex numbers); Ainslie et al. 2023
(heads that share keys and values); Shazeer 2020 (SwiGLU).
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor

from intently.nn.models import Transformer, TransformerOptions

from ...tensors import drawn as fill

SOURCE = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0], [4, 2, 0, 0, 0]])
LENGTHS = torch.tensor([5, 3, 2])
TARGET = torch.tensor([[1, 5, 6, 7], [1, 9, 8, 7], [1, 4, 4, 5]])

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "learned": {"positions": "learned", "learned_steps": 40},
    "rotary": {"positions": "rotary"},
    "grouped": {"kv_heads": 2},
    "one key": {"kv_heads": 1, "norm": "post"},
    "gated": {"feed_forward": "gated"},
    "all": {"positions": "rotary", "kv_heads": 2, "feed_forward": "gated"},
    "all, post": {
        "positions": "learned",
        "learned_steps": 40,
        "kv_heads": 1,
        "feed_forward": "gated",
        "norm": "post",
    },
}

COMBINATIONS = [
    dict(zip(("norm", "positions", "kv_heads", "feed_forward"), parts))
    for parts in product(
        ("pre", "post"), ("sinusoidal", "learned", "rotary"), (None, 2, 1), ("relu", "gated")
    )
]


def drawn(dtype: torch.dtype = torch.float64, **options: Any) -> Transformer:
    """A tiny model with all parameters drawn."""
    shape: dict[str, Any] = {
        "source_vocabulary": 17,
        "target_vocabulary": 19,
        "width": 16,
        "heads": 4,
        "inner": 20,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    model = Transformer(TransformerOptions(**(shape | options))).eval()
    return fill(model, 0.3, torch.Generator().manual_seed(1)).to(dtype)


class Plain:
    """The logits of one sentence from a model's parameters, and the weights of all its heads."""

    def __init__(self, model: Transformer) -> None:
        self.o = model.options
        self.p = dict(model.named_parameters())
        self.weights: dict[str, Tensor] = {}

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        states = self.embedded("source", source)
        for i in range(self.o.encoder_layers):
            states = self.layer(states, "encoder", i, None)
        states = self.last_norm(states, "encoder")
        y = self.embedded("target", target)
        for i in range(self.o.decoder_layers):
            y = self.layer(y, "decoder", i, states)
        return self.last_norm(y, "decoder") @ self.p["target_embedding.weight"].T

    def embedded(self, side: str, ids: Tensor) -> Tensor:
        x = self.p[f"{side}_embedding.weight"][ids] * math.sqrt(self.o.width)
        places = torch.arange(len(ids), dtype=x.dtype)
        if self.o.positions == "learned":
            return x + self.p[f"{side}_positions.weight"][: len(ids)]
        if self.o.positions == "rotary":
            return x
        found = torch.zeros_like(x)
        for i in range(0, self.o.width, 2):
            angle = places / 10_000 ** (i / self.o.width)
            found[:, i], found[:, i + 1] = angle.sin(), angle.cos()
        return x + found.float()  # as exact as the model keeps them

    def layer(self, x: Tensor, side: str, i: int, states: Tensor | None) -> Tensor:
        where = f"{side}.{i}"

        def own(y: Tensor) -> Tensor:
            return self.attention(
                y, y, f"{where}.self_attention", causal=states is not None, turned=True
            )

        x = self.residual(x, f"{where}.self_norm", own)
        if states is not None:
            x = self.residual(
                x,
                f"{where}.cross_norm",
                lambda y: self.attention(
                    y, states, f"{where}.cross_attention", causal=False, turned=False
                ),
            )
        return self.residual(x, f"{where}.feed_norm", lambda y: self.feed_forward(y, where))

    def residual(self, x: Tensor, norm: str, f: Any) -> Tensor:
        if self.o.norm == "pre":
            return x + f(self.normed(x, norm))
        return self.normed(x + f(x), norm)

    def last_norm(self, x: Tensor, side: str) -> Tensor:
        return self.normed(x, f"{side}_norm") if self.o.norm == "pre" else x

    def normed(self, x: Tensor, where: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        x = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * self.p[f"{where}.weight"] + self.p[f"{where}.bias"]

    def feed_forward(self, x: Tensor, where: str) -> Tensor:
        p, where = self.p, f"{where}.feed_forward"
        if self.o.feed_forward == "relu":
            x = (x @ p[f"{where}.up.weight"].T + p[f"{where}.up.bias"]).clamp(min=0)
            return x @ p[f"{where}.down.weight"].T + p[f"{where}.down.bias"]
        gate, up = p[f"{where}.gate_up.weight"].split(self.o.inner)
        z = x @ gate.T
        return (z * z.sigmoid() * (x @ up.T)) @ p[f"{where}.down.weight"].T

    def attention(
        self, x: Tensor, context: Tensor, name: str, *, causal: bool, turned: bool
    ) -> Tensor:
        o = self.o
        h, d = o.heads, o.width // o.heads
        g = h if o.kv_heads is None else o.kv_heads
        weight, bias = self.p[f"{name}.qkv_weight"], self.p[f"{name}.qkv_bias"]
        sizes = [h * d, g * d, g * d]
        (wq, wk, wv), (bq, bk, bv) = weight.split(sizes), bias.split(sizes)
        q, k, v = x @ wq.T + bq, context @ wk.T + bk, context @ wv.T + bv
        heads, weights = [], []
        for i in range(h):
            j = i // (h // g)  # consecutive heads share keys and values
            qi, kj, vj = (y[:, n * d : (n + 1) * d] for y, n in ((q, i), (k, j), (v, j)))
            if turned and o.positions == "rotary":
                qi, kj = rotated(qi), rotated(kj)
            z = qi @ kj.T / math.sqrt(d)
            if causal:
                z = z.masked_fill(torch.ones_like(z).triu(1).bool(), -math.inf)
            weights.append(z.softmax(-1))
            heads.append(weights[-1] @ vj)
        self.weights[name] = torch.stack(weights)
        out = self.p[f"{name}.out_weight"], self.p[f"{name}.out_bias"]
        return torch.cat(heads, -1) @ out[0].T + out[1]


def rotated(x: Tensor) -> Tensor:
    """Step p of x (t, d): dimensions i and i + d/2 are one complex number, turned by p·rate."""
    t, d = x.shape
    z = torch.complex(x[:, : d // 2], x[:, d // 2 :])
    rates = 10_000 ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    z = z * torch.exp(1j * torch.arange(t, dtype=x.dtype)[:, None] * rates)
    return torch.cat([z.real, z.imag], -1)
