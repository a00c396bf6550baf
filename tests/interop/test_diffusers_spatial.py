"""Diffusers' image transformers, alone and inside a U-Net, against `SpatialTransformer`."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from diffusers.models.attention_processor import Attention, AttnProcessor
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, CheckpointError, KindError
from intently.interop.diffusers import load
from intently.nn import DecoderLayer, EncoderLayer
from intently.nn.image.attention import SpatialTransformer

from ..show.refusals import refuses
from .comparing import (
    ONE,
    Refusals,
    changed,
    close,
    drawn,
    in_both,
    refused_unchanged,
    same_outputs_with_dropout,
)
from .test_diffusers import unet

C, H, D, K, B, S = 12, 2, 5, 6, 2, 7
LENGTHS = torch.tensor([3, S])
SEEN = torch.arange(S) < LENGTHS[:, None]

FORMS: dict[str, dict[str, Any]] = {
    "self": {},
    "text": {"cross_attention_dim": K},
    "linear": {"cross_attention_dim": K, "use_linear_projection": True},
    "linear self, three": {"use_linear_projection": True, "num_layers": 3},
    "text, three": {"cross_attention_dim": K, "num_layers": 3},
    "biases": {"cross_attention_dim": K, "attention_bias": True, "norm_eps": 1e-3},
    "as wide as inside": {"cross_attention_dim": H * D, "upcast_attention": True},
    "gelu, plain norms": {"activation_fn": "gelu", "norm_elementwise_affine": False},
    "no layers": {"num_layers": 0, "cross_attention_dim": K},
}
IMAGES = [(3, 5), (1, 1), (7, 2)]


def made(**options: Any) -> Any:
    options = {"in_channels": C, "norm_num_groups": 4} | options
    return drawn(Transformer2DModel(H, D, **options), std=0.15)


@pytest.mark.parametrize(("form", "dtype"), in_both(FORMS, "text", "linear self, three"))
def test_it_is_a_spatial_transformer(form: str, dtype: torch.dtype) -> None:
    training = dtype is torch.float32
    theirs = made(**FORMS[form]).to(dtype).train(training)
    ours: Any = load(theirs)
    assert type(ours) is SpatialTransformer
    assert all(module.training == training for module in ours.modules())
    assert {p.dtype for p in ours.parameters()} == {dtype}
    blocks = theirs.transformer_blocks
    kind = DecoderLayer if "cross_attention_dim" in FORMS[form] else EncoderLayer
    assert [type(x) for x in ours.layers] == [kind] * len(blocks)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    wide = ours.context_width
    for height, width in IMAGES:
        x = torch.randn(B, C, height, width).to(dtype)
        words = None if wide is None else torch.randn(B, S, wide).to(dtype)
        close(ours(x, words), theirs(x, encoder_hidden_states=words).sample)
        pixels = torch.arange(height * width) < torch.tensor([[1], [height * width]])
        expected = theirs(
            x, encoder_hidden_states=words, attention_mask=pixels, encoder_attention_mask=SEEN
        ).sample
        found = ours(x, words, mask=pixels[:, None, None], context_mask=it.padding(LENGTHS))
        close(found, expected)


@pytest.mark.parametrize(
    ("form", "training"),
    [("self", True), ("text, three", True), ("linear", False), ("biases", True)],
)
def test_gradients_of_every_input_and_parameter(form: str, training: bool) -> None:
    theirs = made(**FORMS[form]).train(training)
    ours: Any = load(theirs)
    image, up = torch.randn(B, C, 3, 5), torch.randn(B, C, 3, 5)
    words = torch.randn(B, S, K) if ours.context_width else None
    found: list[list[Tensor]] = []
    for model in (ours, theirs):
        inputs = [x.clone().requires_grad_() for x in (image, words) if x is not None]
        if model is ours:
            y = model(*inputs, context_mask=it.padding(LENGTHS) if words is not None else None)
        else:
            y = model(*inputs, encoder_attention_mask=SEEN).sample
        y.backward(up)
        found.append([x.grad for x in inputs if x.grad is not None])
    assert len(found[0]) == len(found[1]) == (1 if words is None else 2)
    for a, b in zip(*found):
        close(a, b)
    as_weights = copy.deepcopy(theirs)
    for p, own in zip(as_weights.parameters(), theirs.parameters()):
        p.data = own.grad
    expected = load(as_weights).state_dict()
    for name, p in ours.named_parameters():
        close(p.grad, expected[name])


def test_dropout_is_where_theirs_is() -> None:
    theirs = made(cross_attention_dim=K, num_layers=2, dropout=0.5)
    ours = load(theirs)
    x, words = torch.randn(B, C, 3, 5), torch.randn(B, S, K)
    same_outputs_with_dropout(lambda: theirs(x, words).sample, lambda: ours(x, words))
    close(ours.eval()(x, words), theirs.eval()(x, words).sample)


@pytest.mark.parametrize("linear", [True, False])
def test_every_transformer_of_a_unet(linear: bool) -> None:
    model = unet(
        "", K, use_linear_projection=linear, transformer_layers_per_block=2, upcast_attention=True
    ).eval()
    calls: dict[str, Any] = {}
    hooks = [
        part.register_forward_hook(
            lambda _, args, named, y, name=name: calls.update({name: (args, named, y)}),
            with_kwargs=True,
        )
        for name, part in model.named_modules()
        if isinstance(part, Transformer2DModel)
    ]
    model(torch.randn(B, 4, 8, 10), 3, torch.randn(B, S, K), encoder_attention_mask=SEEN)
    for hook in hooks:
        hook.remove()
    assert sorted(calls) == [
        "down_blocks.0.attentions.0",
        "mid_block.attentions.0",
        "up_blocks.1.attentions.0",
        "up_blocks.1.attentions.1",
    ]
    for name, ((x,), named, (expected,)) in calls.items():
        ours: Any = load(model.get_submodule(name))
        words = named["encoder_hidden_states"]
        close(ours(x, words, context_mask=it.padding(LENGTHS)), expected)
        weights = ours.attentions(x, words, context_mask=it.padding(LENGTHS))
        heads, pixels = ours.layers[0].cross_attention.heads, x.shape[2] * x.shape[3]
        assert weights["layers.0.cross_attention"].shape == (B, heads, pixels, S)
        assert not weights["layers.0.cross_attention"][0, :, :, 3:].any()


def test_the_other_side_is_read_and_left_as_it_is() -> None:
    theirs = made(cross_attention_dim=K)
    before = {name: (p._version, p.clone()) for name, p in theirs.state_dict().items()}
    keys = set(vars(theirs))
    ours = drawn(load(theirs))
    ours.train(not theirs.training)
    for name, p in theirs.state_dict().items():
        assert p._version == before[name][0] and torch.equal(p, before[name][1])
    assert set(vars(theirs)) == keys and theirs.training


def test_upcast_attention_is_what_ours_does_anyway() -> None:
    """In float16 the scores of these are beyond its range; theirs are NaN unless upcast."""
    options: dict[str, Any] = {"heads": 2, "dim_head": 8, "processor": AttnProcessor()}
    torch.manual_seed(0)
    upcast = Attention(16, upcast_attention=True, upcast_softmax=True, **options).half()
    x = (torch.randn(B, 9, 16) * 1500).half()
    expected = upcast(x)
    assert expected.isfinite().all()
    upcast.upcast_attention = False
    assert not upcast(x).isfinite().all()
    torch.testing.assert_close(load(upcast)(x), expected, atol=2e-2, rtol=2e-2)


def in_chunks() -> nn.Module:
    theirs = made()
    theirs.transformer_blocks[0].set_chunk_feed_forward(1, 1)
    return theirs


ERRORS: Refusals = {
    ArgumentError: {
        "Transformer2DModel.num_vector_embeds: expected None; got 9. Our block takes images "
        "as they are.": lambda: Transformer2DModel(H, D, num_vector_embeds=9, sample_size=2),
        "Transformer2DModel.patch_size: expected None; got 2. Our block takes images as they "
        "are.": lambda: Transformer2DModel(
            H,
            16,
            in_channels=4,
            sample_size=8,
            patch_size=2,
            norm_type="ada_norm_single",
            caption_channels=8,
        ),
        "Transformer2DModel.out_channels: expected 12; got 8. The image is added to": lambda: made(
            out_channels=8
        ),
        "BasicTransformerBlock.only_cross_attention: expected False; got True. Our layers "
        "attend to themselves, then to a context.": lambda: made(
            only_cross_attention=True, cross_attention_dim=K
        ),
        "BasicTransformerBlock.set_chunk_feed_forward: expected None; got 1. Ours computes "
        "the feed-forward in one piece.": in_chunks,
    },
    KindError: {
        "load(Transformer2DModel.transformer_blocks.0): expected a module of type "
        "BasicTransformerBlock; got Identity.": lambda: changed(
            made(), "transformer_blocks.0", nn.Identity()
        )
    },
    CheckpointError: {
        "Transformer2DModel: expected every parameter to have a place; got "
        "'transformer_blocks.0.attn1.to_q.lora' left over.": lambda: changed(
            made(), "transformer_blocks.0.attn1.to_q.lora", ONE
        ),
        "Transformer2DModel: expected every parameter to have a place; got 'extra' left": lambda: (
            changed(made(), "extra", ONE)
        ),
        "got 'transformer_blocks.0.gate' left over.": lambda: changed(
            made(), "transformer_blocks.0.gate", ONE
        ),
        "SpatialTransformer: expected its own tensors; got size mismatch for project_in": lambda: (
            changed(made(), "proj_in", nn.Conv2d(C, H * D, 3, padding=1))
        ),
    },
}


test_what_ours_cannot_have_is_refused = refused_unchanged(load, ERRORS)


def test_a_context_that_is_not_there() -> None:
    ours: Any = load(made(cross_attention_dim=K))
    refuses(
        ArgumentError,
        {
            r"context: expected shape \(b, s, 6\); got None\.": lambda: ours(
                torch.zeros(1, C, 2, 2)
            ),
            r"context: expected None; got shape \(1, 7, 6\)\.": lambda: load(made())(
                torch.zeros(1, C, 2, 2), torch.zeros(1, S, K)
            ),
        },
    )
