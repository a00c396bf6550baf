"""Attention over pixels: equal to its parts, to diffusers' blocks, and to itself under masks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError
from intently.nn.image.attention import ChannelNorm, ImageAttention, SpatialTransformer, group_norm
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections

from ..combinations import pairs
from ..tensors import renamed


def maps(mha: Any) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of queries, keys and values, however they are stored."""
    state: dict[str, Tensor] = dict(mha.state_dict(keep_vars=True))
    for kind in ("weight", "bias"):
        if f"qkv_{kind}" in state:
            state |= dict(zip((f"{x}_{kind}" for x in "qkv"), state[f"qkv_{kind}"].chunk(3)))
    return [(state[f"{x}_weight"], state.get(f"{x}_bias")) for x in "qkv"]


def by_hand(block: Any, x: Tensor, context: Tensor | None = None) -> Tensor:
    """The block with nothing of it but its weights."""
    b, c, height, width = x.shape
    pixels = block.norm(x).reshape(b, c, height * width).transpose(1, 2)
    mha = block.attention
    other = pixels if context is None else context
    q, k, v = (
        F.linear(steps, *weight).unflatten(-1, (mha.heads, -1)).transpose(1, 2)
        for steps, weight in zip((pixels, other, other), maps(mha))
    )
    y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    y = F.linear(y, mha.out_weight, mha.out_bias).transpose(1, 2).reshape(b, c, height, width)
    return x + y if block.residual else y


NORMS = {"group": group_norm(4), "batch": nn.BatchNorm2d, "layer": ChannelNorm, "none": None}


@pairs(
    {
        "norm": NORMS,
        "residual": [True, False],
        "train": [True, False],
        "cross": [True, False],
        "projections": [Projections(), Projections(False, False, fused=False)],
    }
)
def test_it_is_norm_attention_residual(norm, residual, train, cross, projections) -> None:
    block = ImageAttention(
        8,
        2,
        norm=NORMS[norm],
        residual=residual,
        context_width=5 if cross else None,
        projections=projections,
    ).train(train)
    x, context = torch.randn(2, 8, 3, 4), torch.randn(2, 6, 5) if cross else None
    torch.testing.assert_close(block(x, context), by_hand(block, x, context), atol=1e-5, rtol=1e-5)
    assert block.attend(x, context).shape == (2, 2, 12, 6 if cross else 12)


def test_the_memory_layout_of_the_image_does_not_matter() -> None:
    block, x = ImageAttention(8, 2), torch.randn(2, 8, 3, 4)
    last = x.contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(block(last), block(x))
    torch.testing.assert_close(block(x.mT), block(x.mT.contiguous()))


def test_bfloat16_and_gradients() -> None:
    block, x = ImageAttention(8, 2), torch.randn(1, 8, 4, 4, requires_grad=True)
    y = block(x)
    half = ImageAttention(8, 2).bfloat16()
    half.load_state_dict(block.state_dict())
    torch.testing.assert_close(half(x.bfloat16()).float(), y, atol=5e-2, rtol=2e-2)
    y.sum().backward()
    assert all(p.grad is not None for p in block.parameters()) and x.grad is not None


def test_neighbourhoods_by_mask() -> None:
    near = it.grid(5, 6, 1)
    x = torch.randn(1, 8, 5, 6)
    given = ImageAttention(8, 2, norm=None, residual=False)
    owned = ImageAttention(8, 2, norm=None, residual=False, attention=AttentionOptions(mask=near))
    owned.load_state_dict(given.state_dict())
    torch.testing.assert_close(given(x, mask=near), owned(x))
    far = x.clone()
    far[..., 4, 5] += 100
    changed = (owned(far) != owned(x)).any(1)[0]
    assert changed.nonzero().tolist() == [[3, 4], [3, 5], [4, 4], [4, 5]]
    with pytest.raises(ArgumentError, match=r"mask: expected t = s = 5·6 = 30 for grid\(5, 6, 1\)"):
        given(torch.zeros(1, 8, 4, 6), mask=near)


def test_padded_words_do_not_matter() -> None:
    block = ImageAttention(8, 2, context_width=5)
    x, words = torch.randn(2, 8, 3, 3), torch.randn(2, 4, 5)
    lengths = torch.tensor([4, 2])
    y = block(x, words, mask=it.padding(lengths))
    words[1, 2:] = float("nan")
    torch.testing.assert_close(block(x, words, mask=it.padding(lengths)), y)
    torch.testing.assert_close(block(x[1:], words[1:, :2])[0], y[1], atol=1e-5, rtol=1e-5)


def test_norms() -> None:
    made = [group_norm()(c) for c in (32, 48, 7)]
    assert [(n.num_groups, n.num_channels) for n in made if isinstance(n, nn.GroupNorm)] == [
        (32, 32),
        (16, 48),
        (1, 7),
    ]
    x = torch.randn(2, 8, 3, 4)
    expected = F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2)
    torch.testing.assert_close(ChannelNorm(8)(x), expected)


diffusers = pytest.importorskip("diffusers")


DIFFUSERS = {
    "proj_in": "project_in",
    "proj_out": "project_out",
    "transformer_blocks": "layers",
    "attn1.": "self_attention.",
    "attn2.": "cross_attention.",
    **{f"to_{x}.": f"{x}_" for x in "qkv"},
    "to_out.0.": "out_",
    "norm1": "self_norm",
    "norm2": "cross_norm",
    "norm3": "feed_norm",
    "ff.net.0.proj": "feed_forward.gate_up",
    "ff.net.2": "feed_forward.down",
}


@pairs({"linear": [False, True], "cross": [False, True], "depth": [1, 2], "train": [False, True]})
def test_a_spatial_transformer_is_that_of_diffusers(linear, cross, depth, train) -> None:
    from diffusers.models.transformers.transformer_2d import Transformer2DModel

    width: dict[str, Any] = {"cross_attention_dim": 6} if cross else {}
    theirs = Transformer2DModel(
        2,
        5,
        in_channels=12,
        num_layers=depth,
        norm_num_groups=4,
        use_linear_projection=linear,
        **width,
    ).train(train)
    for p in theirs.parameters():
        nn.init.normal_(p, std=0.3)
    ours = SpatialTransformer(
        12,
        2,
        5,
        depth=depth,
        context_width=6 if cross else None,
        norm=group_norm(4, eps=1e-6),
        projections=Projections(bias=False),
    ).train(train)
    state = renamed(theirs.state_dict(), DIFFUSERS)
    for name, y in state.items():
        if y.ndim == 4:
            state[name] = y.flatten(1)  # a convolution of single pixels is a linear map
        elif "gate_up" in name:
            state[name] = torch.cat(y.chunk(2)[::-1])  # theirs begins with the values
    ours.load_state_dict(state)
    x, words = torch.randn(2, 12, 4, 3), torch.randn(2, 7, 6) if cross else None
    expected = theirs(x, encoder_hidden_states=words).sample
    torch.testing.assert_close(ours(x, words), expected, atol=1e-5, rtol=1e-5)
    theirs, ours = theirs.bfloat16(), ours.bfloat16()
    x, words = x.bfloat16(), None if words is None else words.bfloat16()
    expected = theirs(x, encoder_hidden_states=words).sample
    error = (ours(x, words) - expected).abs().max() / expected.abs().max()
    assert float(error.detach()) < 2e-2


def test_an_image_attention_is_that_of_diffusers() -> None:
    from diffusers.models.attention_processor import Attention as Theirs

    theirs = Theirs(
        12, heads=2, dim_head=5, norm_num_groups=4, eps=1e-6, residual_connection=True, bias=True
    )
    ours = ImageAttention(12, 2, head_width=5, norm=group_norm(4, eps=1e-6))
    words = {"group_norm": "norm", "to_out.0.": "attention.out_"}
    words |= {f"to_{x}.": f"attention.{x}_" for x in "qkv"}
    ours.load_state_dict(renamed(theirs.state_dict(), words))
    x = torch.randn(2, 12, 4, 3)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)


def test_the_matrices_of_a_spatial_transformer_are_what_its_layers_multiply() -> None:
    block = SpatialTransformer(8, 2, 4, depth=2, context_width=6).eval()
    x, words = torch.randn(1, 8, 3, 3), torch.randn(1, 5, 6)
    options: dict[str, Any] = {
        "mask": it.grid(3, 3, 1),
        "context_mask": it.padding(torch.tensor([3])),
    }
    found = block.attentions(x, words, **options)
    assert {name: A.shape for name, A in found.items()} == {
        f"layers.{i}.{kind}": (1, 2, 9, n)
        for i in (0, 1)
        for kind, n in (("self_attention", 9), ("cross_attention", 5))
    }
    assert not found["layers.1.cross_attention"].mass([3, 4]).any()
    assert not found["layers.1.self_attention"][0, :, 0, 8].any()
    calls: dict[str, tuple[Any, Any]] = {}
    for name, module in block.named_modules():
        if name.endswith("_attention"):
            module.register_forward_pre_hook(
                lambda m, args, options, name=name: (
                    calls.setdefault(name, (args, options)) and None
                ),
                with_kwargs=True,
            )
    block(x, words, **options)
    for name, A in found.items():
        module: Any = block.get_submodule(name)
        args, options = calls[name]
        torch.testing.assert_close(A.dense(), module.attend(*args, **options).dense())


def test_pixels_attend_their_neighbours_by_a_mask_given_or_owned() -> None:
    near, x, words = it.grid(3, 4, 1), torch.randn(2, 8, 3, 4), torch.randn(2, 5, 6)
    for context_width, context in ((None, None), (6, words)):
        given = SpatialTransformer(8, 2, 4, depth=2, context_width=context_width)
        owned = SpatialTransformer(
            8, 2, 4, depth=2, context_width=context_width, attention=AttentionOptions(mask=near)
        )
        owned.load_state_dict(given.state_dict())
        torch.testing.assert_close(given(x, context, mask=near), owned(x, context))
        assert not torch.allclose(given(x, context), owned(x, context))
