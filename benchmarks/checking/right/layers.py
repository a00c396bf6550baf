"""Layers of PyTorch, diffusers, Keras and x-transformers, in their options."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
from torch import nn

import intently as it
from benchmarks.checking.right import lower, normal, of, real, tokens

B, T, S, C, H, D = 2, 6, 9, 32, 4, 8
CAUSAL, LATER, PADS = it.causal(), ~lower(T), ~real(B, S)
X, Y = normal(B, T, C), normal(B, S, C)
SELF, CROSS = {"query": X, "key": X, "value": X}, {"query": X, "key": Y, "value": Y}
ADDED = torch.zeros(T, T).masked_fill(LATER, -torch.inf)


def _torch(kind: str, *given: Any, **options: Any) -> nn.Module:
    options = {"batch_first": True, **options}
    if "Transformer" in kind:
        options = {"dim_feedforward": 48, **options}
    return getattr(nn, kind)(C, H, *given, **options).eval()


def _stack(kind: str, **options: Any) -> nn.Module:
    return getattr(nn, kind)(_torch(f"{kind}Layer"), 2, **options).eval()


_multi = of("nn.MultiheadAttention", lambda **o: _torch("MultiheadAttention", **o))
_layer = of("nn.TransformerEncoderLayer", lambda **o: _torch("TransformerEncoderLayer", **o))
_decoder = of("nn.TransformerDecoderLayer", lambda **o: _torch("TransformerDecoderLayer", **o))
_encoders = of("nn.TransformerEncoder", lambda **o: _stack("TransformerEncoder", **o), 30)
_decoders = of("nn.TransformerDecoder", lambda: _stack("TransformerDecoder"), 30)
_whole = of("nn.Transformer", lambda **o: _torch("Transformer", 1, 1, **o), 30)
ACROSS = {"tgt": X, "memory": Y, "tgt_mask": LATER}
OF_TORCH = (
    _multi("nothing said"), _multi("self", {"inputs": SELF}), _multi("cross", {"inputs": CROSS}),
    _multi("sequence first", {"inputs": {n: x.transpose(0, 1) for n, x in CROSS.items()}},
           batch_first=False),
    _multi("other widths", {"inputs": {"query": X, "key": normal(B, S, 20),
                                       "value": normal(B, S, 24)}}, kdim=20, vdim=24),
    _multi("bias_k and bias_v", {"inputs": SELF}, add_bias_kv=True),
    _multi("a zero key", {"inputs": SELF}, add_zero_attn=True),
    _multi("causal", {"inputs": {**SELF, "attn_mask": LATER}, "mask": CAUSAL}),
    _multi("causal, additive", {"inputs": {**SELF, "attn_mask": ADDED}, "mask": CAUSAL}),
    _multi("key padding", {"inputs": {**CROSS, "key_padding_mask": PADS}}),
    _layer("nothing said"), _layer("norm first", norm_first=True),
    _layer("causal", {"inputs": {"src": X, "src_mask": LATER}, "mask": CAUSAL}),
    _decoder("nothing said"), _decoder("causal", {"inputs": ACROSS}),
    _encoders("plain", enable_nested_tensor=False), _decoders("causal", {"inputs": ACROSS}),
    _encoders("causal", {"inputs": {"src": X, "mask": LATER}, "mask": CAUSAL}),
    _encoders("padding, nested", {"inputs": {"src": X, "src_key_padding_mask": ~real(B, T)}}),
    _whole("causal", {"inputs": {"src": Y, "tgt": X, "tgt_mask": LATER}}),
)  # fmt: skip


def _processed(processor: str = "", **options: Any) -> Any:
    a = import_module("diffusers.models.attention_processor")
    made = a.Attention(query_dim=C, heads=H, dim_head=D, **options)
    if processor:
        given = {"slice_size": 2} if "Sliced" in processor else {}
        made.set_processor(getattr(a, processor)(**given))
    return made


def _diffuser(path: str, *given: Any, **options: Any) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(*given, **options)


_mixed = of("diffusers' Attention", _processed)
_diffusers = of("diffusers", _diffuser, 30)
IMAGE, WORDS = normal(B, C, 4, 4), {"hidden_states": X, "encoder_hidden_states": Y}
OF_DIFFUSERS = (
    _mixed("nothing said"), _mixed("self", {"inputs": {"hidden_states": X}}),
    _mixed("cross", {"inputs": WORDS}),
    _mixed("plain products", {"inputs": WORDS}, "AttnProcessor"),
    _mixed("fused", {"inputs": WORDS}, "AttnProcessor2_0"),
    _mixed("sliced", {"inputs": WORDS}, "SlicedAttnProcessor"),
    _mixed("normed queries and keys", {"inputs": WORDS}, qk_norm="rms_norm"),
    _mixed("an image", {"inputs": {"hidden_states": IMAGE}}, norm_num_groups=4,
          residual_connection=True),
    _mixed("padding", {"inputs": {**WORDS, "attention_mask": PADS[:, None] * -10_000.0},
                      "arguments": {"attention_mask": "add"}}, "AttnProcessor2_0"),
    _diffusers("BasicTransformerBlock", {"inputs": WORDS},
               "diffusers.models.attention.BasicTransformerBlock", C, H, D, cross_attention_dim=C),
    _diffusers("Transformer2DModel", {"inputs": {**WORDS, "hidden_states": IMAGE}},
               "diffusers.Transformer2DModel", H, D, in_channels=C, norm_num_groups=4,
               cross_attention_dim=C),
)  # fmt: skip


def _keras(name: str, *given: Any, built: bool = True, **options: Any) -> Any:
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu")
    import keras

    keras.utils.set_random_seed(0)
    layer = getattr(keras.layers, name)(*given, **options)
    if built:
        layer(X, Y)
    return layer


def _listed(kind: str, **options: Any) -> Any:
    """Keras' single-head layers take a list: the adapter that their user writes."""
    layer = _keras(kind, built=False, **options)
    return lambda query, value: layer([query, value])


_heads = of("Keras' MultiHeadAttention", lambda **o: _keras("MultiHeadAttention", 4, 8, **o))
_groups = of("Keras' GroupQueryAttention", lambda **o: _keras("GroupQueryAttention", 8, 4, 2, **o))
_single = of("Keras", _listed)
ALONE, PAIR = {"query": X, "value": X}, {"query": X, "value": Y}
STEPS = {"inputs": {**ALONE, "use_causal_mask": True}, "mask": CAUSAL}
OF_KERAS = (
    _heads("nothing said"), _heads("self", {"inputs": ALONE}), _heads("cross", {"inputs": PAIR}),
    _heads("causal", STEPS), _heads("not fused", {"inputs": PAIR}, flash_attention=False),
    _heads("a mask", {"inputs": {**PAIR, "attention_mask": real(B, S)[:, None].repeat(1, T, 1)},
                      "arguments": {"attention_mask": "attend"}}),
    _heads("not built", {"inputs": PAIR}, built=False), _groups("cross", {"inputs": PAIR}),
    _groups("causal", STEPS), _single("Attention", {"inputs": PAIR}, "Attention"),
    _single("Attention, scaled", {"inputs": PAIR}, "Attention", use_scale=True),
    _single("AdditiveAttention", {"inputs": PAIR}, "AdditiveAttention"),
)  # fmt: skip


def _x_attention(**options: Any) -> Any:
    x = import_module("x_transformers.x_transformers")
    return x.Attention(C, heads=H, dim_head=D, **options)


def _x_model(kind: str, **options: Any) -> Any:
    x = import_module("x_transformers")
    torch.manual_seed(0)
    layers = getattr(x, kind)(dim=C, depth=2, heads=H, attn_dim_head=D, **options)
    return x.TransformerWrapper(num_tokens=90, max_seq_len=64, attn_layers=layers)


_one, _model = of("x-transformers' Attention", _x_attention), of("x-transformers", _x_model, 30)
STATED = {"mask": CAUSAL}
OF_X_TRANSFORMERS = (
    _one("nothing said"), _one("causal", STATED, causal=True), _one("grouped", {}, kv_heads=2),
    _one("cross", {"inputs": {"x": X, "context": Y}}), _one("memory", {}, num_mem_kv=2),
    _one("padding of a context", {"inputs": {"x": X, "context": Y, "context_mask": real(B, S)},
                                  "arguments": {"context_mask": "attend"}}),
    _one("flash", STATED, causal=True, flash=True), _one("gated values", {}, gate_values=True),
    _one("normed queries and keys", {}, qk_norm=True), _one("softcap", {}, softclamp_logits=True),
    _model("Decoder", STATED, "Decoder"), _model("Decoder, nothing said", {}, "Decoder"),
    *(_model(f"Decoder, {name}", STATED, "Decoder", **{name: value}) for name, value in {
        "rotary_pos_emb": True, "alibi_pos_bias": True, "attn_kv_heads": 2, "attn_flash": True,
        "rel_pos_bias": True}.items()),
    _model("Decoder, window", {}, "Decoder", attn_max_attend_past=3),
    _model("Encoder", {}, "Encoder"), _model("Encoder, rotary", {}, "Encoder", rotary_pos_emb=True),
    _model("Encoder, padding", {"inputs": {"x": tokens(B, 8), "mask": real(B, 8)},
                                "arguments": {"mask": "attend"}}, "Encoder"),
)  # fmt: skip


CASES = (*OF_TORCH, *OF_DIFFUSERS, *OF_KERAS, *OF_X_TRANSFORMERS)
