"""What `load` and `dump` refuse of diffusers' blocks."""

from __future__ import annotations

import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import (
    Attention,
    AttnProcessor,
    IPAdapterAttnProcessor2_0,
    JointAttnProcessor2_0,
)
from torch import nn

import intently as it
from intently.errors import ArgumentError, CheckpointError, KindError
from intently.interop.diffusers import ResidualAttention, dump, load, register
from intently.nn import AttentionOptions as Options
from intently.nn import MultiHeadAttention, Projections
from intently.nn.image.attention import ChannelNorm, ImageAttention

from .comparing import ONE, C, D, H, K, Refusals, changed, refused_unchanged
from .test_diffusers import made

ERRORS: Refusals = {
    CheckpointError: {
        "Attention: expected every parameter to have a place; got 'add_k_proj.bias', "
        "'add_k_proj.weight', 'add_v_proj.bias', 'add_v_proj.weight' left over.": lambda: made(
            {"added_kv_proj_dim": 8}
        ),
        "'to_q.lora_A' left over": lambda: changed(made({}), "to_q.lora_A", ONE),
    },
    ArgumentError: {
        "Attention.processor: expected one of AttnProcessor2_0, IntentlyAttnPr": lambda: made(
            {"processor": JointAttnProcessor2_0()}
        ),
        "got 'IPAdapterAttnProcessor2_0'. What it computes is not in the module's": lambda: made(
            {"processor": IPAdapterAttnProcessor2_0(C, K)}
        ),
        "Attention.spatial_norm: expected None; got 'SpatialNorm'.": lambda: Attention(
            32, heads=4, dim_head=8, spatial_norm_dim=4
        ),
        "Attention.qk_norm: expected the same layer or RMS norm of each head, d=4; got "
        "RMSNorm of 16 and RMSNorm of 16.": lambda: made(
            {"qk_norm": "rms_norm_across_heads", "kv_heads": H}
        ),
        "Attention.processor: expected 'AttnProcessor2_0' or 'IntentlyAttnProcessor'; g": lambda: (
            made({"qk_norm": "rms_norm", "processor": AttnProcessor()})
        ),
        "Attention.pre_only: expected False; got": lambda: made({"pre_only": True}),
        "BasicTransformerBlock.norm_type: expected 'layer_norm'; got 'ada_norm'.": lambda: (
            BasicTransformerBlock(C, H, D, norm_type="ada_norm", num_embeds_ada_norm=3)
        ),
        "BasicTransformerBlock.double_self_attention: expected False; got True.": lambda: (
            BasicTransformerBlock(C, H, D, double_self_attention=True)
        ),
        "BasicTransformerBlock.attention_type: expected 'default'; got 'a fuser (G": lambda: (
            BasicTransformerBlock(C, H, D, cross_attention_dim=K, attention_type="gated")
        ),
        "BasicTransformerBlock.positional_embeddings: expected None; got 'sinusoidal'. Our "
        "layers add no positions.": lambda: BasicTransformerBlock(
            C, H, D, positional_embeddings="sinusoidal", num_positional_embeddings=8
        ),
        "BasicTransformerBlock.final_dropout: expected 0; got 0.1": lambda: BasicTransformerBlock(
            C, H, D, final_dropout=True, dropout=0.1
        ),
        "BasicTransformerBlock.activation_fn: expected one of GELU, ApproximateGELU, GEGLU, "
        "SwiGLU, LinearActivation of SiLU; got 'LinearActivation of Mish'.": lambda: changed(
            BasicTransformerBlock(C, H, D, activation_fn="linear-silu"),
            "ff.net.0.activation",
            nn.Mish(),
        ),
    },
    KindError: {
        "load: expected a module of type Attention or BasicTransformerBlock or "
        "Transformer2DModel; got Linear.": lambda: nn.Linear(2, 2)
    },
}


test_what_is_not_known_is_refused = refused_unchanged(load, ERRORS)


DUMP_ERRORS: Refusals = {
    ArgumentError: {
        "MultiHeadAttention.kv_heads: expected 4; got 2. Heads do not share": lambda: (
            MultiHeadAttention(C, H, kv_heads=2)
        ),
        "MultiHeadAttention.head_widths: expected (4, 4); got (4, 3).": lambda: MultiHeadAttention(
            C, H, head_widths=(4, 3)
        ),
        "MultiHeadAttention.projections.out_width: expected 16; got 3.": lambda: MultiHeadAttention(
            C, H, projections=Projections(out_width=3)
        ),
        "MultiHeadAttention.dropout: expected 0; got 0.1.": lambda: MultiHeadAttention(
            C, H, dropout=0.1
        ),
        "MultiHeadAttention.attention.mask: expected None; got causal().": lambda: (
            MultiHeadAttention(C, H, attention=Options(mask=it.causal()))
        ),
        "MultiHeadAttention.attention.scale: expected None or 1.0 or 0.5; got 0.3.": lambda: (
            MultiHeadAttention(C, H, attention=Options(scale=0.3))
        ),
    },
    KindError: {
        "dump(….norm): expected a module of type GroupNorm; got ChannelNorm.": lambda: (
            ImageAttention(C, H, norm=ChannelNorm)
        ),
        "dump: expected a module of type MultiHeadAtt": lambda: nn.Linear(2, 2),
    },
}


test_what_diffusers_cannot_compute_is_not_dumped = refused_unchanged(dump, DUMP_ERRORS)


def test_nothing_to_register() -> None:
    with pytest.raises(ArgumentError, match="model: expected diffusers modules with plain"):
        register(nn.Linear(2, 2))


def test_around_attention_wants_steps_or_an_image() -> None:
    with pytest.raises(ArgumentError, match=r"x: expected shape \(b, t, c\) or \(b, c, height"):
        ResidualAttention(MultiHeadAttention(C, H))(torch.zeros(2, C))
