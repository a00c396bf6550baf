"""Diffusers' attention against ours with its weights, back, and its modules on our attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import (
    Attention,
    AttnProcessor,
    AttnProcessor2_0,
    JointAttnProcessor2_0,
)
from torch import Tensor, nn

import intently as it
from intently.interop.diffusers import (
    IntentlyAttnProcessor,
    ResidualAttention,
    dump,
    load,
    register,
    unregister,
)
from intently.nn import DecoderLayer, EncoderLayer, MultiHeadAttention
from intently.nn.image.attention import ImageAttention

from .comparing import (
    LENGTHS,
    SEEN,
    B,
    C,
    D,
    H,
    K,
    S,
    T,
    changed,
    close,
    drawn,
    in_both,
    same_gradients,
    same_outputs_with_dropout,
    same_state,
)


def additive(seen: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask as diffusers' models make it: (b, 1, s), −10000 where attention is forbidden."""
    return ((1 - seen.to(dtype)) * -10000.0)[:, None]


def made(form: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    return drawn(Attention(C, **{"heads": H, "dim_head": D} | form), dtype)


def unet(inner: str, context_width: int, **options: Any) -> Any:
    """A U-Net of two levels: cross-attention outside, blocks of the kind ``inner`` inside."""
    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", f"{inner}DownBlock2D"),
        up_block_types=(f"{inner}UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=context_width,
        attention_head_dim=4,
        **options,
    )
    return drawn(model, std=0.1)


FORMS: dict[str, tuple[type, dict[str, Any]]] = {
    "self": (MultiHeadAttention, {}),
    "biases": (MultiHeadAttention, {"bias": True}),
    "no biases": (MultiHeadAttention, {"out_bias": False}),
    "wide heads": (MultiHeadAttention, {"dim_head": 6}),
    "unscaled": (MultiHeadAttention, {"scale_qk": False}),
    "layer norm": (MultiHeadAttention, {"qk_norm": "layer_norm", "eps": 1e-3}),
    "rms norm": (MultiHeadAttention, {"qk_norm": "rms_norm"}),
    "plain norm": (MultiHeadAttention, {"qk_norm": "rms_norm", "elementwise_affine": False}),
    "group norm": (ImageAttention, {"norm_num_groups": 4, "eps": 1e-3}),
    "image": (
        ImageAttention,
        {"norm_num_groups": 4, "residual_connection": True, "bias": True, "dim_head": 3},
    ),
    "residual": (ResidualAttention, {"residual_connection": True}),
    "divisor": (
        ResidualAttention,
        {"residual_connection": True, "rescale_output_factor": 1.5, "norm_num_groups": 2},
    ),
}


CROSS: dict[str, tuple[type, dict[str, Any]]] = {
    "cross": (MultiHeadAttention, {}),
    "same width": (MultiHeadAttention, {"cross_attention_dim": C, "bias": True}),
    "context layer norm": (ResidualAttention, {"cross_attention_norm": "layer_norm"}),
    "context group norm": (
        ResidualAttention,
        {
            "cross_attention_norm": "group_norm",
            "cross_attention_norm_num_groups": 2,
            "cross_attention_dim": 8,
            "residual_connection": True,
        },
    ),
    "rms norm": (MultiHeadAttention, {"qk_norm": "rms_norm", "bias": True}),
}


def same_again(ours: Any, theirs: Any) -> Any:
    """What `dump` gives, after a look at every parameter of it."""
    back: Any = dump(ours)
    assert back.training == theirs.training
    same_state(back, theirs)
    return back


@pytest.mark.parametrize(("form", "dtype"), in_both(FORMS, "biases", "rms norm", "image"))
def test_self_attention_loads_and_dumps(form: str, dtype: torch.dtype) -> None:
    training = dtype is torch.float32
    kind, options = FORMS[form]
    theirs = made(options, dtype).train(training)
    ours: Any = load(theirs)
    assert type(ours) is kind and ours.training == training
    back = same_again(ours, theirs)
    x = torch.randn(B, C, 2, 3).to(dtype)
    flat = x.flatten(2).mT.contiguous()
    given = x if kind is ImageAttention else flat
    masks: list[tuple[Any, Any]] = [(None, None), (it.padding(LENGTHS), additive(SEEN, dtype))]
    for rule, mask in masks:
        close(back(flat, attention_mask=mask), theirs(flat, attention_mask=mask))
        close(ours(given, mask=rule), theirs(given, attention_mask=mask))


@pytest.mark.parametrize(("form", "dtype"), in_both(CROSS, "cross", "context group norm"))
def test_cross_attention_loads_and_dumps(form: str, dtype: torch.dtype) -> None:
    training = dtype is torch.float32
    kind, options = CROSS[form]
    theirs = made({"cross_attention_dim": K} | options, dtype).train(training)
    ours: Any = load(theirs)
    assert type(ours) is kind and ours.training == training
    back = same_again(ours, theirs)
    x = torch.randn(B, T, C).to(dtype)
    context = torch.randn(B, S, theirs.cross_attention_dim).to(dtype)
    masks: list[tuple[Any, Any]] = [(None, None), (it.padding(LENGTHS), additive(SEEN, dtype))]
    for rule, mask in masks:
        expected = theirs(x, context, attention_mask=mask)
        close(ours(x, context, mask=rule), expected)
        close(back(x, context, attention_mask=mask), expected)
        assert ours.attend(x, context, mask=rule).shape == (B, H, T, S)


def test_images_and_their_gradients() -> None:
    theirs = made({"residual_connection": True, "norm_num_groups": 4, "rescale_output_factor": 2.0})
    x = torch.randn(B, C, 2, 3).requires_grad_()
    same_gradients(load(theirs)(x), theirs(x), x)


def test_one_projection_with_a_bias_of_its_own() -> None:
    """Biases are read: the constructor gives all of them or none, a checkpoint need not."""
    theirs = changed(made({}), "to_q.bias", nn.Parameter(torch.randn(C)))
    x = torch.randn(B, T, C)
    close(load(theirs)(x), theirs(x))


def test_scale_is_what_the_processor_applies() -> None:
    x = torch.randn(B, T, C)
    for processor in (AttnProcessor(), AttnProcessor2_0()):
        theirs = made({"scale_qk": False, "processor": processor})
        expected = theirs(x)
        close(load(theirs)(x), expected)
        assert register(theirs) == register(theirs) == [""]
        close(theirs(x), expected)
        close(load(theirs)(x), expected)
        assert unregister(theirs) == [""] and theirs.processor is processor


def test_the_processor_shares_key_heads() -> None:
    theirs = made({"kv_heads": 2, "processor": IntentlyAttnProcessor()})
    ours: Any = load(theirs)
    assert ours.kv_heads == 2
    x = torch.randn(B, T, C)
    close(theirs(x), ours(x))
    whole, state = made({}), theirs.state_dict()
    for name in ("to_k.weight", "to_v.weight"):
        state[name] = state[name].unflatten(0, (2, D)).repeat_interleave(2, 0).flatten(0, 1)
    whole.load_state_dict(state)
    close(theirs(x), whole(x))


def test_dropout_acts_on_the_output() -> None:
    theirs = made({"dropout": 0.5})
    ours: Any = load(theirs)
    assert type(ours) is ResidualAttention and ours.dropout == 0.5
    x = torch.randn(B, T, C)
    assert same_again(ours, theirs).to_out[1].p == 0.5
    same_outputs_with_dropout(lambda: theirs(x), lambda: ours(x))


BLOCKS: dict[str, dict[str, Any]] = {
    "stable diffusion": {"cross_attention_dim": K},
    "self only": {"attention_bias": True, "norm_eps": 1e-3},
    "no biases": {"ff_bias": False, "attention_out_bias": False, "norm_elementwise_affine": False},
    "gelu": {"activation_fn": "gelu", "cross_attention_dim": C},
    "tanh gelu": {"activation_fn": "gelu-approximate"},
    "sigmoid gelu": {"activation_fn": "geglu-approximate"},
    "silu": {"activation_fn": "linear-silu"},
    "swiglu": {"activation_fn": "swiglu", "ff_inner_dim": 10, "cross_attention_dim": K},
}


@pytest.mark.parametrize(("form", "dtype"), in_both(BLOCKS, "stable diffusion", "swiglu"))
def test_transformer_blocks(form: str, dtype: torch.dtype) -> None:
    training = dtype is torch.float32
    theirs = drawn(BasicTransformerBlock(C, H, D, **BLOCKS[form]), dtype).train(training)
    ours: Any = load(theirs)
    crossed = theirs.attn2 is not None
    assert type(ours) is (DecoderLayer if crossed else EncoderLayer) and ours.training == training
    assert len(list(ours.state_dict())) > 0 and not any(p.is_meta for p in ours.parameters())
    x, width = torch.randn(B, T, C).to(dtype), theirs.cross_attention_dim
    own, rule = additive(torch.arange(T) < LENGTHS[:, None], dtype), it.padding(LENGTHS)
    given, masks, rules = {}, {"attention_mask": own}, {"mask": rule}
    if crossed:
        given = {"encoder_hidden_states": torch.randn(B, S, width).to(dtype)}
        masks["encoder_attention_mask"], rules["states_mask"] = additive(SEEN, dtype), rule
    close(ours(x, *given.values()), theirs(x, **given))
    close(ours(x, *given.values(), **rules), theirs(x, **given, **masks))


def test_dropout_of_blocks_is_where_theirs_is() -> None:
    theirs = drawn(BasicTransformerBlock(C, H, D, cross_attention_dim=K, dropout=0.5))
    ours = load(theirs)
    x, context = torch.randn(B, T, C), torch.randn(B, S, K)
    same_outputs_with_dropout(
        lambda: theirs(x, encoder_hidden_states=context), lambda: ours(x, context)
    )


MASKS: dict[str, Tensor | None] = {
    "none": None,
    "additive": additive(SEEN),
    "per query": additive(SEEN).expand(B, T, S) + torch.zeros(B, T, 1),
    "per head": torch.randn(B * H, T, S),
    "boolean": SEEN[:, None],
    "two axes": additive(SEEN)[:, 0],
}


@pytest.mark.parametrize(
    ("form", "mask"),
    [*(("cross", mask) for mask in MASKS), ("context layer norm", "none"), ("rms norm", "boolean")],
)
def test_the_processor_computes_what_theirs_does(form: str, mask: str) -> None:
    theirs = made({"cross_attention_dim": K} | CROSS[form][1])
    x, context = torch.randn(B, T, C), torch.randn(B, S, K)
    expected = theirs(x, context, attention_mask=MASKS[mask])
    assert register(theirs) == [""]
    close(theirs(x, context, attention_mask=MASKS[mask]), expected)


@pytest.mark.parametrize("form", FORMS)
def test_the_processor_runs_every_form(form: str) -> None:
    theirs = made(FORMS[form][1])
    x = torch.randn(B, C, 2, 3)
    expected = theirs(x)
    theirs.set_processor(IntentlyAttnProcessor())
    close(theirs(x), expected)
    assert type(load(theirs)) is FORMS[form][0]


def test_a_whole_model_runs_on_it() -> None:
    model = unet("Attn", K)
    x, context = torch.randn(B, 4, 8, 8), torch.randn(B, S, K)
    inputs: dict[str, Any] = {"encoder_attention_mask": SEEN}
    expected = model(x, 3, context, **inputs).sample
    changed = register(model)
    assert len(changed) == len(model.attn_processors)
    assert all(type(p) is IntentlyAttnProcessor for p in model.attn_processors.values())
    close(model(x, 3, context, **inputs).sample, expected)
    assert unregister(model) == changed and unregister(model) == []
    assert not any(type(p) is IntentlyAttnProcessor for p in model.attn_processors.values())


def test_modules_that_compute_something_else_are_left_alone() -> None:
    joint = Attention(C, heads=H, dim_head=D, processor=JointAttnProcessor2_0())  # pyright: ignore
    model = nn.ModuleDict({"joint": joint, "plain": made({})})
    assert register(model) == ["plain"]
    assert type(joint.processor) is JointAttnProcessor2_0
