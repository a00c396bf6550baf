"""Image blocks with the weights of others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from intently.nn import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    ImageAttention,
    MultiHeadAttention,
    SpatialTransformer,
)

from ..core.formula import random
from ..tensors import close, drawn
from .test_blocks_from_weights import PICTURE, A, C, D, E, H, S, X


class NonLocal(nn.Module):
    """Attention over pixels as articles write it: a norm, convolutions of single pixels."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, C)
        self.q, self.k, self.v, self.out = (nn.Conv2d(C, C, 1) for _ in range(4))
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, c, height, width = x.shape
        y = self.norm(x)
        q, k, v = (f(y).view(b, self.heads, -1, height * width) for f in (self.q, self.k, self.v))
        weights = (q.mT @ k / (c // self.heads) ** 0.5).softmax(-1)
        return x + self.out((v @ weights.mT).reshape(x.shape))


@pytest.mark.parametrize("heads", [1, 2])
def test_image_attention_of_the_articles(heads: int) -> None:
    theirs = drawn(NonLocal(heads))
    maps = theirs.q, theirs.k, theirs.v, theirs.out
    ours = ImageAttention.from_weights(*maps, layout="h d", heads=heads, norm=theirs.norm)
    close(ours(PICTURE), theirs(PICTURE))
    arrays = [(f.weight.detach().numpy(), f.bias.detach().numpy()) for f in maps]
    assert arrays[0][0].shape == (C, C, 1, 1)
    ours = ImageAttention.from_weights(*arrays, layout="h d", heads=heads, norm=theirs.norm)
    close(ours(PICTURE), theirs(PICTURE))
    q, k, v = (torch.tensor(weight) for weight, _ in arrays[:3])
    b = torch.cat([torch.tensor(bias) for _, bias in arrays[:3]])
    joint, out = (torch.cat([q, k, v]), b), arrays[3]
    fused = ImageAttention.from_weights(
        joint, None, None, out, layout="3 h d", heads=heads, norm=theirs.norm
    )
    close(fused(PICTURE), theirs(PICTURE))


def test_image_attention_without_norm_and_residual_may_change_the_channels() -> None:
    q, k, v, out = random(D, C, 1, 1), random(D, C, 1, 1), random(E, C, 1, 1), random(5, E, 1, 1)
    own = AttentionOptions(scale=1.0)
    block = ImageAttention.from_weights(
        q, k, v, out, layout="h d", heads=1, residual=False, attention=own
    )
    x = PICTURE.flatten(2).mT
    y = ((x @ q.flatten(1).T) @ (x @ k.flatten(1).T).mT).softmax(-1) @ (x @ v.flatten(1).T)
    close(block(PICTURE), (y @ out.flatten(1).T).mT.reshape(2, 5, 3, 4))


def test_the_image_attention_of_diffusers() -> None:
    kind = pytest.importorskip("diffusers.models.attention_processor").Attention
    theirs = kind(
        C, heads=H, dim_head=D, norm_num_groups=2, bias=True, residual_connection=True
    ).double()
    maps = theirs.to_q, theirs.to_k, theirs.to_v, theirs.to_out[0]
    ours = ImageAttention.from_weights(*maps, layout="h d", heads=H, norm=theirs.group_norm)
    close(ours(PICTURE), theirs(PICTURE))


def attention_of(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    joint = theirs.in_proj_weight, theirs.in_proj_bias
    return MultiHeadAttention.from_weights(
        joint, None, None, theirs.out_proj, layout="3 h d", heads=theirs.num_heads
    )


@pytest.mark.parametrize("first", [True, False])
def test_layers_of_pytorch(first: bool) -> None:
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": first}
    norm: Any = "pre" if first else "post"
    theirs = drawn(nn.TransformerEncoderLayer(C, H, A, **options))
    feed = FeedForward.from_weights(theirs.linear1, theirs.linear2)
    ours = EncoderLayer.from_weights(
        attention_of(theirs.self_attn), feed, [theirs.norm1, theirs.norm2], norm=norm
    )
    close(ours(X), theirs(X))
    other = drawn(nn.TransformerDecoderLayer(C, H, A, **options))
    both = attention_of(other.self_attn), attention_of(other.multihead_attn)
    decoder = DecoderLayer.from_weights(
        *both,
        FeedForward.from_weights(other.linear1, other.linear2),
        (other.norm1, other.norm2, other.norm3),
        norm=norm,
    )
    states = random(2, S, C)
    close(decoder(X, states), other(X, states))


def test_a_spatial_transformer_of_convolutions_without_layers() -> None:
    enter, leave = nn.Conv2d(C, A, 1, bias=False).double(), nn.Conv2d(A, C, 1).double()
    block = SpatialTransformer.from_weights(enter, [], leave)
    close(block(PICTURE), PICTURE + leave(enter(PICTURE)))
