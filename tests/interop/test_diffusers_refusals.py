"""What `load` and `dump` refuse of diffusers' blocks."""

from __future__ import annotations

from typing import Any

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
from intently.errors import ArgumentError, CheckpointError, IntentlyError, KindError
from intently.interop.diffusers import ResidualAttention, dump, load, register
from intently.modules import AttentionOptions as Options
from intently.modules import MultiHeadAttention, Projections
from intently.modules.image.attention import ChannelNorm, ImageAttention

from .comparing import ONE, C, D, H, K, changed, refused_unchanged
from .test_diffusers import made

ERRORS: dict[str, tuple[Any, type[IntentlyError], str]] = {
    "added keys": (
        lambda: made({"added_kv_proj_dim": 8}),
        CheckpointError,
        "Attention: expected every parameter to have a place; got 'add_k_proj.bias', "
        "'add_k_proj.weight', 'add_v_proj.bias', 'add_v_proj.weight' left over.",
    ),
    "lora": (
        lambda: changed(made({}), "to_q.lora_A", ONE),
        CheckpointError,
        "'to_q.lora_A' left over",
    ),
    "joint": (
        lambda: made({"processor": JointAttnProcessor2_0()}),
        ArgumentError,
        "Attention.processor: expected one of AttnProcessor, AttnProcessor2_0, Sliced",
    ),
    "adapter": (
        lambda: made({"processor": IPAdapterAttnProcessor2_0(C, K)}),
        ArgumentError,
        "got IPAdapterAttnProcessor2_0. What it computes is not in the module's parameters.",
    ),
    "spatial norm": (
        lambda: Attention(32, heads=4, dim_head=8, spatial_norm_dim=4),
        ArgumentError,
        "Attention.spatial_norm: expected None; got a norm.",
    ),
    "across heads": (
        lambda: made({"qk_norm": "rms_norm_across_heads", "kv_heads": H}),
        ArgumentError,
        "Attention.qk_norm: expected the same layer or RMS norm of each head, d=4; "
        "got RMSNorm of 16 and RMSNorm of 16.",
    ),
    "norm passed over": (
        lambda: made({"qk_norm": "rms_norm", "processor": AttnProcessor()}),
        ArgumentError,
        "Attention.processor: expected one that applies norm_q and norm_k; got AttnProcessor.",
    ),
    "no output": (
        lambda: made({"pre_only": True}),
        ArgumentError,
        "Attention.pre_only: expected an output",
    ),
    "kind": (
        lambda: nn.Linear(2, 2),
        KindError,
        "load: expected a module of type Attention or BasicTransformerBlock or Transformer2DModel; "
        "got Linear.",
    ),
    "adaptive": (
        lambda: BasicTransformerBlock(C, H, D, norm_type="ada_norm", num_embeds_ada_norm=3),
        ArgumentError,
        "BasicTransformerBlock.norm_type: expected \"layer_norm\"; got 'ada_norm'.",
    ),
    "double": (
        lambda: BasicTransformerBlock(C, H, D, double_self_attention=True),
        ArgumentError,
        "BasicTransformerBlock.double_self_attention: expected False; got True.",
    ),
    "gated": (
        lambda: BasicTransformerBlock(C, H, D, cross_attention_dim=K, attention_type="gated"),
        ArgumentError,
        'BasicTransformerBlock.attention_type: expected "default"; got a fuser (GLI',
    ),
    "positions": (
        lambda: BasicTransformerBlock(
            C, H, D, positional_embeddings="sinusoidal", num_positional_embeddings=8
        ),
        ArgumentError,
        "BasicTransformerBlock.positional_embeddings: expected None; got 'sinusoidal'. Our layers "
        "add no positions.",
    ),
    "final dropout": (
        lambda: BasicTransformerBlock(C, H, D, final_dropout=True, dropout=0.1),
        ArgumentError,
        "BasicTransformerBlock.final_dropout: expected False, or dropout 0; got 0.1",
    ),
    "activation": (
        lambda: changed(
            BasicTransformerBlock(C, H, D, activation_fn="linear-silu"),
            "ff.net.0.activation",
            nn.Mish(),
        ),
        ArgumentError,
        "BasicTransformerBlock.activation_fn: expected one of GELU, ApproximateGELU, GEGLU, "
        "SwiGLU, LinearActivation of SiLU; got LinearActivation of Mish.",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_what_is_not_known_is_refused(case: str) -> None:
    refused_unchanged(load, ERRORS[case])


DUMP_ERRORS: dict[str, tuple[Any, type[IntentlyError], str]] = {
    "groups": (
        lambda: MultiHeadAttention(C, H, kv_heads=2),
        ArgumentError,
        "MultiHeadAttention.kv_heads: expected kv_heads=heads=4; got 2.",
    ),
    "widths": (
        lambda: MultiHeadAttention(C, H, head_widths=(4, 3)),
        ArgumentError,
        "MultiHeadAttention.head_widths: expected d = e; got (4, 3).",
    ),
    "output": (
        lambda: MultiHeadAttention(C, H, projections=Projections(out_width=3)),
        ArgumentError,
        "MultiHeadAttention.projections.out_width: expected width=16; got 3.",
    ),
    "dropout": (
        lambda: MultiHeadAttention(C, H, dropout=0.1),
        ArgumentError,
        "MultiHeadAttention.dropout: expected 0; got 0.1.",
    ),
    "mask": (
        lambda: MultiHeadAttention(C, H, attention=Options(mask=it.causal())),
        ArgumentError,
        "MultiHeadAttention.attention.mask: expected None; got causal().",
    ),
    "scale": (
        lambda: MultiHeadAttention(C, H, attention=Options(scale=0.3)),
        ArgumentError,
        "MultiHeadAttention.attention.scale: expected 1 or 1/√d; got 0.3.",
    ),
    "norm": (
        lambda: ImageAttention(C, H, norm=ChannelNorm),
        KindError,
        "dump(….norm): expected a module of type GroupNorm; got ChannelNorm.",
    ),
    "kind": (lambda: nn.Linear(2, 2), KindError, "dump: expected a module of type MultiHeadAtt"),
}


@pytest.mark.parametrize("case", DUMP_ERRORS)
def test_what_diffusers_cannot_compute_is_not_dumped(case: str) -> None:
    refused_unchanged(dump, DUMP_ERRORS[case])


def test_nothing_to_register() -> None:
    with pytest.raises(ArgumentError, match="model: expected diffusers modules with plain"):
        register(nn.Linear(2, 2))


def test_around_attention_wants_steps_or_an_image() -> None:
    with pytest.raises(ArgumentError, match=r"x: expected shape \(b, t, c\) or \(b, c, height"):
        ResidualAttention(MultiHeadAttention(C, H))(torch.zeros(2, C))
