"""PyTorch's own layers, in their options."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import intently as it
from benchmarks.checking.right import Case, lower, normal, of, real

B, T, S, C, H = 2, 6, 9, 32, 4
CAUSAL = it.causal()
LATER = ~lower(T)
X, Y = normal(B, T, C), normal(B, S, C)
SELF = {"query": X, "key": X, "value": X}
CROSS = {"query": X, "key": Y, "value": Y}


def _encoder_layer(**options: Any) -> nn.Module:
    options = {"dim_feedforward": 48, "batch_first": True, **options}
    return nn.TransformerEncoderLayer(C, H, **options).eval()


_multi = of(
    "nn.MultiheadAttention",
    lambda **options: nn.MultiheadAttention(C, H, **{"batch_first": True, **options}),
)
_layer = of("nn.TransformerEncoderLayer", _encoder_layer)


def _decoder_layer(**options: Any) -> nn.Module:
    options = {"dim_feedforward": 48, "batch_first": True, **options}
    return nn.TransformerDecoderLayer(C, H, **options).eval()


def _encoder(layers: int = 2, **options: Any) -> nn.Module:
    return nn.TransformerEncoder(_encoder_layer(**options), layers, enable_nested_tensor=False)


CASES = (
    _multi("nothing said"), _multi("self", {"inputs": SELF}), _multi("cross", {"inputs": CROSS}),
    _multi("sequence first, nothing said", batch_first=False),
    _multi("sequence first", {"inputs": {n: x.transpose(0, 1) for n, x in CROSS.items()}},
           batch_first=False),
    _multi("no bias", {"inputs": SELF}, bias=False),
    _multi("no weights", {"inputs": {**SELF, "need_weights": False}}),
    _multi("weights of each head", {"inputs": {**SELF, "average_attn_weights": False}}),
    _multi("other widths", {"inputs": {"query": X, "key": normal(B, S, 20),
                                       "value": normal(B, S, 24)}}, kdim=20, vdim=24),
    _multi("other widths, nothing said", kdim=20, vdim=24),
    _multi("bias_k and bias_v", {"inputs": SELF}, add_bias_kv=True),
    _multi("a zero key", {"inputs": SELF}, add_zero_attn=True),
    _multi("dropout", {"inputs": SELF}, dropout=0.1),
    _multi("causal", {"inputs": {**SELF, "attn_mask": LATER}, "mask": CAUSAL}),
    _multi("causal, said twice", {"inputs": {**SELF, "attn_mask": LATER}, "mask": CAUSAL,
                                  "arguments": {"attn_mask": "ignore"}}),
    _multi("causal, is_causal", {"inputs": {**SELF, "attn_mask": LATER, "is_causal": True,
                                            "need_weights": False}, "mask": CAUSAL}),
    _multi("causal, additive", {"inputs": {**SELF, "attn_mask": torch.zeros(T, T).masked_fill(
        LATER, -torch.inf)}, "mask": CAUSAL}),
    _multi("key padding", {"inputs": {**CROSS, "key_padding_mask": ~real(B, S)}}),
    _multi("key padding, no weights", {
        "inputs": {**CROSS, "key_padding_mask": ~real(B, S), "need_weights": False}}),
    _multi("causal and key padding", {"inputs": {
        **SELF, "attn_mask": LATER, "key_padding_mask": ~real(B, T)}, "mask": CAUSAL}),
    _multi("a mask of heads", {"inputs": {**SELF, "attn_mask": LATER.repeat(B * H, 1, 1)},
                               "mask": CAUSAL}),
    _layer("nothing said"), _layer("norm first", norm_first=True),
    _layer("sequence first", {"inputs": {"src": X.transpose(0, 1)}}, batch_first=False),
    _layer("gelu, no bias", activation="gelu", bias=False),
    _layer("causal", {"inputs": {"src": X, "src_mask": LATER}, "mask": CAUSAL}),
    _layer("padding", {"inputs": {"src": X, "src_key_padding_mask": ~real(B, T)}}),
    Case("nn.TransformerDecoderLayer, nothing said", _decoder_layer),
    Case("nn.TransformerDecoderLayer, causal", _decoder_layer,
         {"inputs": {"tgt": X, "memory": Y, "tgt_mask": LATER}}),
    Case("nn.TransformerDecoderLayer, memory padded", lambda: _decoder_layer(norm_first=True),
         {"inputs": {"tgt": X, "memory": Y, "tgt_mask": LATER,
                     "memory_key_padding_mask": ~real(B, S)}}),
    Case("nn.TransformerEncoder", _encoder, {}, 30),
    Case("nn.TransformerEncoder, causal", _encoder,
         {"inputs": {"src": X, "mask": LATER}, "mask": CAUSAL}, 30),
    Case("nn.TransformerEncoder, padding, nested tensors",
         lambda: nn.TransformerEncoder(_encoder_layer(), 2).eval(),
         {"inputs": {"src": X, "src_key_padding_mask": ~real(B, T)}}, 30),
    Case("nn.TransformerDecoder", lambda: nn.TransformerDecoder(_decoder_layer(), 2),
         {"inputs": {"tgt": X, "memory": Y, "tgt_mask": LATER}}, 30),
    Case("nn.Transformer", lambda: nn.Transformer(C, H, 1, 1, 48, batch_first=True).eval(),
         {"inputs": {"src": Y, "tgt": X, "tgt_mask": LATER}}, 30),
    Case("nn.Transformer, sequence first", lambda: nn.Transformer(C, H, 1, 1, 48).eval(),
         {"inputs": {"src": Y.transpose(0, 1), "tgt": X.transpose(0, 1), "tgt_mask": LATER}}, 30),
)  # fmt: skip
