"""Keras' attention layers on PyTorch."""

from __future__ import annotations

import os
from typing import Any

import intently as it
from benchmarks.checking.right import Case, normal, of, real

B, T, S, C = 2, 6, 9, 32
X, Y = normal(B, T, C), normal(B, S, C)
CAUSAL = it.causal()
SELF = {"query": X, "value": X}
CROSS = {"query": X, "value": Y}


def _layer(name: str, *given: Any, **options: Any) -> Any:
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu")
    import keras

    keras.utils.set_random_seed(0)
    return getattr(keras.layers, name)(*given, **options)


def _built(layer: Any) -> Any:
    layer(X, Y)
    return layer


_multi = of(
    "Keras' MultiHeadAttention",
    lambda **options: _built(_layer("MultiHeadAttention", 4, 8, **options)),
)
_grouped = of(
    "Keras' GroupQueryAttention",
    lambda **options: _built(_layer("GroupQueryAttention", 8, 4, 2, **options)),
)


def _listed(kind: str, causal: bool = False, **options: Any) -> Any:
    """Keras' single-head layers take a list: the adapter that their user writes."""
    layer = _layer(kind, **options)
    return lambda query, value: layer([query, value], use_causal_mask=causal)


CASES = (
    _multi("nothing said"), _multi("self", {"inputs": SELF}), _multi("cross", {"inputs": CROSS}),
    _multi("causal", {"inputs": {**SELF, "use_causal_mask": True}, "mask": CAUSAL}),
    _multi("not fused", {"inputs": CROSS}, flash_attention=False),
    _multi("a mask", {"inputs": {**CROSS, "attention_mask": real(B, S)[:, None].repeat(1, T, 1)},
                      "arguments": {"attention_mask": "attend"}}),
    _multi("with scores", {"inputs": {**CROSS, "return_attention_scores": True}}),
    _multi("no bias, other width", {"inputs": CROSS}, use_bias=False, value_dim=6),
    _grouped("self", {"inputs": SELF}), _grouped("cross", {"inputs": CROSS}),
    _grouped("causal", {"inputs": {**SELF, "use_causal_mask": True}, "mask": CAUSAL}),
    Case("Keras' MultiHeadAttention, not built", lambda: _layer("MultiHeadAttention", 4, 8),
         {"inputs": CROSS}),
    Case("Keras' Attention", lambda: _listed("Attention"), {"inputs": CROSS}),
    Case("Keras' Attention, causal", lambda: _listed("Attention", True), {
        "inputs": SELF, "mask": CAUSAL}),
    Case("Keras' Attention, scaled", lambda: _listed("Attention", use_scale=True),
         {"inputs": CROSS}),
    Case("Keras' AdditiveAttention", lambda: _listed("AdditiveAttention"), {"inputs": CROSS}),
)  # fmt: skip
