"""Layers of PyTorch, diffusers, Keras and x-transformers, in their options."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import intently as it
from benchmarks.checking.right import Case, lower, normal, of, real, tokens

B, T, S, C, H, D = 2, 6, 9, 32, 4, 8
CAUSAL = it.causal()
X, Y = normal(B, T, C), normal(B, S, C)

# --- PyTorch ------------------------------------------------------------------------------------

LATER = ~lower(T)
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


OF_TORCH = (
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


# --- diffusers ------------------------------------------------------------------------------------


def _diffusers_attention(processor: str = "", **options: Any) -> Any:
    from diffusers.models import attention_processor as a

    options = {"query_dim": C, "heads": H, "dim_head": D, **options}
    made = a.Attention(**options)
    if processor:
        given = {"slice_size": 2} if "Sliced" in processor else {}
        made.set_processor(getattr(a, processor)(**given))
    return made


_mixed = of("diffusers' Attention", _diffusers_attention)


def _block(name: str, **options: Any) -> Any:
    from diffusers.models.attention import BasicTransformerBlock

    return BasicTransformerBlock(C, H, D, **options)


def _transformer_2d(**options: Any) -> Any:
    from diffusers import Transformer2DModel

    return Transformer2DModel(H, D, in_channels=C, norm_num_groups=4, **options)


def _flux(added: bool) -> Any:
    from diffusers.models.transformers.transformer_flux import FluxAttention

    more = {"added_kv_proj_dim": C, "context_pre_only": False} if added else {}
    return FluxAttention(C, heads=H, dim_head=D, bias=True, **more)


def _unet() -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
        block_out_channels=(16, 32), norm_num_groups=4, cross_attention_dim=C,
        attention_head_dim=8, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip


def _dit() -> Any:
    from diffusers import DiTTransformer2DModel

    return DiTTransformer2DModel(
        H, D, in_channels=4, num_layers=1, sample_size=8, patch_size=2, norm_num_groups=4,
        num_embeds_ada_norm=10,
    )  # fmt: skip


WORDS = {"inputs": {"hidden_states": X, "encoder_hidden_states": Y}}
ADDED = torch.zeros(B, S).masked_fill(~real(B, S), -10_000.0)[:, None].repeat(1, 1, 1)
OF_DIFFUSERS = (
    _mixed("nothing said"), _mixed("self", {"inputs": {"hidden_states": X}}),
    _mixed("cross", WORDS), _mixed("cross, another width", {"inputs": {
        "hidden_states": X, "encoder_hidden_states": normal(B, S, 20)}}, cross_attention_dim=20),
    _mixed("plain products", WORDS, "AttnProcessor"), _mixed("fused", WORDS, "AttnProcessor2_0"),
    _mixed("sliced", WORDS, "SlicedAttnProcessor"),
    _mixed("bias", WORDS, bias=True),
    _mixed("normed queries and keys", WORDS, qk_norm="rms_norm"),
    _mixed("layer norms", WORDS, qk_norm="layer_norm"), _mixed("residual", WORDS,
                                                            residual_connection=True),
    _mixed("an image, nothing said", norm_num_groups=4, residual_connection=True),
    _mixed("an image", {"inputs": {"hidden_states": normal(B, C, 4, 4)}}, norm_num_groups=4,
          residual_connection=True),
    _mixed("scaled after", WORDS, scale_qk=True, rescale_output_factor=2.0),
    _mixed("in float32 inside", WORDS, "AttnProcessor", upcast_attention=True,
          upcast_softmax=True),
    _mixed("padding", {"inputs": {"hidden_states": X, "encoder_hidden_states": Y,
                                 "attention_mask": ADDED},
                      "arguments": {"attention_mask": "add"}}, "AttnProcessor2_0"),
    Case("diffusers' BasicTransformerBlock", lambda: _block("")),
    Case("diffusers' BasicTransformerBlock, cross", lambda: _block("", cross_attention_dim=C),
         WORDS),
    Case("diffusers' Transformer2DModel", lambda: _transformer_2d(cross_attention_dim=C),
         {"inputs": {"hidden_states": normal(B, C, 4, 4), "encoder_hidden_states": Y}}, 30),
    Case("diffusers' FluxAttention", lambda: _flux(False), {"inputs": {"hidden_states": X}}),
    Case("diffusers' FluxAttention, joint", lambda: _flux(True), WORDS),
    Case("diffusers' UNet2DConditionModel", _unet, {"inputs": {
        "sample": normal(B, 4, 8, 8), "timestep": 10, "encoder_hidden_states": Y}}, 30),
    Case("diffusers' DiTTransformer2DModel", _dit, {"inputs": {
        "hidden_states": normal(B, 4, 8, 8), "timestep": torch.tensor([10, 20]),
        "class_labels": torch.tensor([1, 2])}}, 30),
)  # fmt: skip


# --- Keras ----------------------------------------------------------------------------------------


ALONE = {"query": X, "value": X}
PAIR = {"query": X, "value": Y}


def _keras(name: str, *given: Any, **options: Any) -> Any:
    os.environ.update(KERAS_BACKEND="torch", KERAS_TORCH_DEVICE="cpu")
    import keras

    keras.utils.set_random_seed(0)
    return getattr(keras.layers, name)(*given, **options)


def _built(layer: Any) -> Any:
    layer(X, Y)
    return layer


_heads = of(
    "Keras' MultiHeadAttention",
    lambda **options: _built(_keras("MultiHeadAttention", 4, 8, **options)),
)
_groups = of(
    "Keras' GroupQueryAttention",
    lambda **options: _built(_keras("GroupQueryAttention", 8, 4, 2, **options)),
)


def _listed(kind: str, causal: bool = False, **options: Any) -> Any:
    """Keras' single-head layers take a list: the adapter that their user writes."""
    layer = _keras(kind, **options)
    return lambda query, value: layer([query, value], use_causal_mask=causal)


OF_KERAS = (
    _heads("nothing said"), _heads("self", {"inputs": ALONE}), _heads("cross", {"inputs": PAIR}),
    _heads("causal", {"inputs": {**ALONE, "use_causal_mask": True}, "mask": CAUSAL}),
    _heads("not fused", {"inputs": PAIR}, flash_attention=False),
    _heads("a mask", {"inputs": {**PAIR, "attention_mask": real(B, S)[:, None].repeat(1, T, 1)},
                      "arguments": {"attention_mask": "attend"}}),
    _heads("with scores", {"inputs": {**PAIR, "return_attention_scores": True}}),
    _heads("no bias, other width", {"inputs": PAIR}, use_bias=False, value_dim=6),
    _groups("self", {"inputs": ALONE}), _groups("cross", {"inputs": PAIR}),
    _groups("causal", {"inputs": {**ALONE, "use_causal_mask": True}, "mask": CAUSAL}),
    Case("Keras' MultiHeadAttention, not built", lambda: _keras("MultiHeadAttention", 4, 8),
         {"inputs": PAIR}),
    Case("Keras' Attention", lambda: _listed("Attention"), {"inputs": PAIR}),
    Case("Keras' Attention, causal", lambda: _listed("Attention", True), {
        "inputs": ALONE, "mask": CAUSAL}),
    Case("Keras' Attention, scaled", lambda: _listed("Attention", use_scale=True),
         {"inputs": PAIR}),
    Case("Keras' AdditiveAttention", lambda: _listed("AdditiveAttention"), {"inputs": PAIR}),
)  # fmt: skip


# --- x-transformers -------------------------------------------------------------------------------


def _x_attention(**options: Any) -> Any:
    from x_transformers.x_transformers import Attention

    return Attention(C, heads=H, dim_head=D, **options)


def _model(kind: str, **options: Any) -> Any:
    import x_transformers

    torch.manual_seed(0)
    layers = getattr(x_transformers, kind)(dim=C, depth=2, heads=H, attn_dim_head=D, **options)
    return x_transformers.TransformerWrapper(num_tokens=90, max_seq_len=64, attn_layers=layers)


_one = of("x-transformers' Attention", _x_attention)


def _decoder(name: str, mask: it.Mask | None = CAUSAL, **options: Any) -> Case:
    asked: dict[str, Any] = {} if mask is None else {"mask": mask}
    return Case(f"x-transformers' Decoder, {name}", lambda: _model("Decoder", **options), asked, 30)


OF_X_TRANSFORMERS = (
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


CASES = (*OF_TORCH, *OF_DIFFUSERS, *OF_KERAS, *OF_X_TRANSFORMERS)
