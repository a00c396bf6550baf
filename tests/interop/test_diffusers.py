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
    IPAdapterAttnProcessor2_0,
    JointAttnProcessor2_0,
)
from torch import Tensor, nn

import intently as it
from intently.errors import ArgumentError, CheckpointError, IntentlyError, KindError
from intently.interop.diffusers import (
    IntentlyAttnProcessor,
    ResidualAttention,
    dump,
    load,
    register,
    unregister,
)
from intently.modules import AttentionOptions as Options
from intently.modules import DecoderLayer, EncoderLayer, MultiHeadAttention, Projections
from intently.modules.image.attention import ChannelNorm, ImageAttention

from .comparing import TOLERANCE, close, drawn, refused_unchanged

C, H, D, K, B, T, S = 16, 4, 4, 7, 2, 5, 6
LENGTHS = torch.tensor([3, 6])
SEEN = torch.arange(S) < LENGTHS[:, None]


def additive(seen: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The mask as diffusers' models make it: (b, 1, s), −10000 where attention is forbidden."""
    return ((1 - seen.to(dtype)) * -10000.0)[:, None]


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


def made(form: dict[str, Any], dtype: torch.dtype = torch.float32) -> Any:
    return drawn(Attention(C, **{"heads": H, "dim_head": D} | form), dtype)


def same_again(ours: Any, theirs: Any) -> Any:
    """What `dump` gives, after a look at every parameter of it."""
    back: Any = dump(ours)
    assert back.training == theirs.training
    assert back.state_dict().keys() == theirs.state_dict().keys()
    for name, p in theirs.state_dict().items():
        assert torch.equal(back.state_dict()[name], p), name
    return back


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("form", FORMS)
def test_self_attention_loads_and_dumps(form: str, training: bool, dtype: torch.dtype) -> None:
    kind, options = FORMS[form]
    theirs = made(options, dtype).train(training)
    ours: Any = load(theirs)
    assert type(ours) is kind and ours.training == training
    back = same_again(ours, theirs)
    x = torch.randn(B, C, 2, 3).to(dtype)
    flat = x.flatten(2).mT.contiguous()
    masks: list[tuple[Any, Any]] = [(None, None), (it.padding(LENGTHS), additive(SEEN, dtype))]
    for rule, mask in masks:
        expected = theirs(flat, attention_mask=mask)
        close(back(flat, attention_mask=mask), expected)
        if kind is ImageAttention:
            expected = theirs(x, attention_mask=mask)
            close(ours(x, mask=rule), expected)
        else:
            close(ours(flat, mask=rule), expected)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("form", CROSS)
def test_cross_attention_loads_and_dumps(form: str, training: bool, dtype: torch.dtype) -> None:
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
        weights = ours.attend(x, context, mask=rule)
        assert weights.shape == (B, H, T, S)


def test_images_and_their_gradients() -> None:
    theirs = made({"residual_connection": True, "norm_num_groups": 4, "rescale_output_factor": 2.0})
    ours = load(theirs)
    x = torch.randn(B, C, 2, 3).requires_grad_()
    expected = theirs(x)
    close(ours(x), expected)
    up = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(ours(x), x, up)
    close(gradient, torch.autograd.grad(expected, x, up)[0])


def test_one_projection_with_a_bias_of_its_own() -> None:
    """Biases are read: the constructor gives all of them or none, a checkpoint need not."""
    theirs = made({})
    theirs.to_q.bias = nn.Parameter(torch.randn(C))
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
    whole = made({})
    with torch.no_grad():
        whole.load_state_dict(
            {
                name: p.unflatten(0, (2, D)).repeat_interleave(2, 0).flatten(0, 1)
                if name in ("to_k.weight", "to_v.weight")
                else p
                for name, p in theirs.state_dict().items()
            }
        )
    close(theirs(x), whole(x))


def test_dropout_acts_on_the_output() -> None:
    theirs = made({"dropout": 0.5})
    ours: Any = load(theirs)
    assert type(ours) is ResidualAttention and ours.dropout == 0.5
    x = torch.randn(B, T, C)
    assert same_again(ours, theirs).to_out[1].p == 0.5
    torch.manual_seed(1)
    expected = theirs(x)
    torch.manual_seed(1)
    close(ours(x), expected)


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


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("form", BLOCKS)
def test_transformer_blocks(form: str, training: bool, dtype: torch.dtype) -> None:
    theirs = drawn(BasicTransformerBlock(C, H, D, **BLOCKS[form]), dtype).train(training)
    ours: Any = load(theirs)
    crossed = theirs.attn2 is not None
    assert type(ours) is (DecoderLayer if crossed else EncoderLayer) and ours.training == training
    assert len(list(ours.state_dict())) > 0 and not any(p.is_meta for p in ours.parameters())
    x, width = torch.randn(B, T, C).to(dtype), theirs.cross_attention_dim
    own, rule = additive(torch.arange(T) < LENGTHS[:, None], dtype), it.padding(LENGTHS)
    if not crossed:
        close(ours(x), theirs(x))
        close(ours(x, mask=rule), theirs(x, attention_mask=own))
        return
    context = torch.randn(B, S, width).to(dtype)
    close(ours(x, context), theirs(x, encoder_hidden_states=context))
    expected = theirs(
        x,
        encoder_hidden_states=context,
        attention_mask=own,
        encoder_attention_mask=additive(SEEN, dtype),
    )
    close(ours(x, context, mask=rule, states_mask=rule), expected)


def test_dropout_of_blocks_is_where_theirs_is() -> None:
    theirs = drawn(BasicTransformerBlock(C, H, D, cross_attention_dim=K, dropout=0.5))
    ours = load(theirs)
    x, context = torch.randn(B, T, C), torch.randn(B, S, K)
    torch.manual_seed(1)
    expected = theirs(x, encoder_hidden_states=context)
    torch.manual_seed(1)
    close(ours(x, context), expected)


MASKS: dict[str, Tensor | None] = {
    "none": None,
    "additive": additive(SEEN),
    "per query": additive(SEEN).expand(B, T, S) + torch.zeros(B, T, 1),
    "per head": torch.randn(B * H, T, S),
    "boolean": SEEN[:, None],
    "two axes": additive(SEEN)[:, 0],
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ["cross", "context layer norm", "rms norm"])
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
    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("CrossAttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=K,
        attention_head_dim=4,
    )
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(std=0.1)
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


def with_lora() -> nn.Module:
    theirs = made({})
    theirs.to_q.register_parameter("lora_A", nn.Parameter(torch.zeros(1)))
    return theirs


def with_another_activation() -> nn.Module:
    theirs: Any = BasicTransformerBlock(C, H, D, activation_fn="linear-silu")
    theirs.ff.net[0].activation = nn.Mish()
    return theirs


ERRORS: dict[str, tuple[Any, type[IntentlyError], str]] = {
    "added keys": (
        lambda: made({"added_kv_proj_dim": 8}),
        CheckpointError,
        "Attention: expected every parameter to have a place; got 'add_k_proj.bias', "
        "'add_k_proj.weight', 'add_v_proj.bias', 'add_v_proj.weight' left over.",
    ),
    "lora": (with_lora, CheckpointError, "'to_q.lora_A' left over"),
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
        with_another_activation,
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
    make, kind, text = DUMP_ERRORS[case]
    with pytest.raises(kind) as caught:
        dump(make())
    assert text in str(caught.value)


def test_nothing_to_register() -> None:
    with pytest.raises(ArgumentError, match="model: expected diffusers modules with plain"):
        register(nn.Linear(2, 2))


def test_around_attention_wants_steps_or_an_image() -> None:
    with pytest.raises(ArgumentError, match=r"x: expected shape \(b, t, c\) or \(b, c, height"):
        ResidualAttention(MultiHeadAttention(C, H))(torch.zeros(2, C))
