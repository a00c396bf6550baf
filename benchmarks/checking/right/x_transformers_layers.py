"""x-transformers' attention and models, in their options."""

from __future__ import annotations

from typing import Any

import torch

import intently as it
from benchmarks.checking.right import Case, normal, of, real, tokens

B, T, S, C, H, D = 2, 6, 9, 32, 4, 8
CAUSAL = it.causal()
X, Y = normal(B, T, C), normal(B, S, C)


def _attention(**options: Any) -> Any:
    from x_transformers.x_transformers import Attention

    return Attention(C, heads=H, dim_head=D, **options)


def _model(kind: str, **options: Any) -> Any:
    import x_transformers

    torch.manual_seed(0)
    layers = getattr(x_transformers, kind)(dim=C, depth=2, heads=H, attn_dim_head=D, **options)
    return x_transformers.TransformerWrapper(num_tokens=90, max_seq_len=64, attn_layers=layers)


_one = of("x-transformers' Attention", _attention)


def _decoder(name: str, mask: it.Mask | None = CAUSAL, **options: Any) -> Case:
    asked: dict[str, Any] = {} if mask is None else {"mask": mask}
    return Case(f"x-transformers' Decoder, {name}", lambda: _model("Decoder", **options), asked, 30)


CASES = (
    _one("nothing said"), _one("causal", {"mask": CAUSAL}, causal=True),
    _one("cross", {"inputs": {"x": X, "context": Y}}),
    _one("padding", {"inputs": {"x": X, "mask": real(B, T)}, "arguments": {"mask": "attend"}}),
    _one("padding of a context", {"inputs": {"x": X, "context": Y, "context_mask": real(B, S)},
                                  "arguments": {"context_mask": "attend"}}),
    _one("flash", {"mask": CAUSAL}, causal=True, flash=True), _one("grouped", {}, kv_heads=2),
    _one("normed queries and keys", {}, qk_norm=True), _one("gated values", {}, gate_values=True),
    _one("memory", {}, num_mem_kv=2), _one("talking heads", {}, pre_talking_heads=True),
    _one("softcap", {}, softclamp_logits=True),
    _decoder("plain"), _decoder("nothing said", None), _decoder("rotary", rotary_pos_emb=True),
    _decoder("ALiBi", alibi_pos_bias=True), _decoder("grouped", attn_kv_heads=2),
    _decoder("flash", attn_flash=True), _decoder("relative bias", rel_pos_bias=True),
    _decoder("window", None, attn_max_attend_past=3),
    Case("x-transformers' Encoder", lambda: _model("Encoder"), {}, 30),
    Case("x-transformers' Encoder, padding", lambda: _model("Encoder"), {
        "inputs": {"x": tokens(B, 8), "mask": real(B, 8)}, "arguments": {"mask": "attend"}}, 30),
    Case("x-transformers' Encoder, rotary", lambda: _model("Encoder", rotary_pos_emb=True), {}, 30),
)  # fmt: skip
