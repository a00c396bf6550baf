"""Loaded blocks keep what was frozen, in whatever mode they are loaded, and can be pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hugging_face
from diffusers.models.attention import BasicTransformerBlock
from diffusers.models.attention_processor import Attention
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from torch import Tensor, nn

from intently.errors import ArgumentError
from intently.interop import diffusers, transformers
from intently.interop import torch as in_torch
from intently.interop.torch import KeyValueAttention
from intently.nn import MultiHeadAttention, Projections

from ..messages import refused
from .comparing import drawn
from .tiny_models import GPT2, MARIAN, SHARED

ONE_LAYER = {**SHARED, "num_hidden_layers": 1}


def of_transformers(name: str, **given: Any) -> Callable[[], nn.Module]:
    kind = getattr(hugging_face, name)
    return lambda: kind(kind.config_class(**given))


IMAGE: dict[str, Any] = {"heads": 4, "dim_head": 4, "norm_num_groups": 4, "qk_norm": "layer_norm"}
AROUND: dict[str, Any] = {"heads": 4, "dim_head": 4, "cross_attention_norm": "layer_norm"}
GEGLU: dict[str, Any] = {"cross_attention_dim": 6, "activation_fn": "geglu-approximate"}
SPATIAL: dict[str, Any] = {"in_channels": 16, "norm_num_groups": 4, "cross_attention_dim": 24}
SIDES = {"encoder_layers": 1, "decoder_layers": 1}
FOREIGN: dict[str, tuple[Callable[[Any], nn.Module], Callable[[], nn.Module]]] = {
    "fused": (in_torch.load, lambda: nn.MultiheadAttention(8, 2)),
    "separate": (in_torch.load, lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=6)),
    "extra": (in_torch.load, lambda: nn.MultiheadAttention(8, 2, kdim=6, add_bias_kv=True)),
    "PReLU": (in_torch.load, lambda: nn.TransformerEncoderLayer(8, 2, 12, activation=nn.PReLU(12))),
    "transformer": (in_torch.load, lambda: nn.Transformer(8, 2, 1, 1, 12)),
    "image": (diffusers.load, lambda: Attention(16, residual_connection=True, bias=True, **IMAGE)),
    "around": (diffusers.load, lambda: Attention(16, cross_attention_dim=6, **AROUND)),
    "block": (diffusers.load, lambda: BasicTransformerBlock(16, 4, 4, **GEGLU)),
    "spatial": (diffusers.load, lambda: Transformer2DModel(2, 8, **SPATIAL)),
    "gpt2": (transformers.load, of_transformers("GPT2LMHeadModel", **{**GPT2, "n_layer": 1})),
    "llama": (transformers.load, of_transformers("LlamaForCausalLM", **ONE_LAYER)),
    "qwen3": (transformers.load, of_transformers("Qwen3ForCausalLM", **ONE_LAYER, head_dim=8)),
    "bert": (transformers.load, of_transformers("BertForMaskedLM", **ONE_LAYER)),
    "marian": (transformers.load, of_transformers("MarianMTModel", **{**MARIAN, **SIDES})),
}


PARTS = (
    *("to_q", "to_k", "to_v", "q_proj", "k_proj", "v_proj", "query", "key", "value"),
    *(".q.", ".k.", ".v.", "gate_proj", "up_proj"),
)
"""Parameters of theirs that become parts of one of ours."""


def apart(ours: nn.Module, frozen: list[Tensor]) -> list[str]:
    """Our parameters that learn though their numbers are frozen there, or the other way round."""
    values = torch.cat([torch.zeros(0), *(x.detach().float().flatten() for x in frozen)])
    return [
        name
        for name, p in ours.named_parameters()
        if p.requires_grad == bool(torch.isin(p.detach(), values).float().mean() > 0.5)
    ]


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_frozen_stays_frozen(case: str) -> None:
    load, make = FOREIGN[case]
    theirs = drawn(make(), std=1.0)
    buffers = [b for b in theirs.buffers() if b.is_floating_point()]
    fixed = [p for p in theirs.parameters() if not p.requires_grad]
    refused = []
    for name, p in theirs.named_parameters():
        p.requires_grad_(False)
        try:
            assert apart(load(theirs), [p, *fixed, *buffers]) == [], name
        except ArgumentError as error:
            assert "They become one tensor, which learns or does not" in str(error)
            refused.append(name)
        if all(p is not x for x in fixed):
            p.requires_grad_(True)
    assert all(any(part in name for part in PARTS) for name in refused), refused
    assert apart(load(theirs), [*fixed, *buffers]) == []
    theirs.requires_grad_(False)
    assert not any(p.requires_grad for p in load(theirs).parameters())


@pytest.mark.parametrize(
    ("case", "mode"),
    [
        *((case, torch.inference_mode) for case in FOREIGN),
        *((case, torch.no_grad) for case in ("fused", "block", "llama")),
    ],
)
def test_the_mode_of_the_caller_freezes_nothing(case: str, mode: Any) -> None:
    load, make = FOREIGN[case]
    theirs = drawn(make(), std=1.0)
    expected = {name: p.requires_grad for name, p in load(theirs).named_parameters()}
    with mode():
        ours = load(theirs)
    assert {name: p.requires_grad for name, p in ours.named_parameters()} == expected
    assert not any(p.is_inference() for p in ours.parameters())


def test_parts_of_one_tensor_are_frozen_together() -> None:
    theirs: Any = partial(Attention, 16, heads=4, dim_head=4)()
    theirs.to_k.requires_grad_(False)
    refused(
        lambda: diffusers.load(theirs),
        ArgumentError,
        "MultiHeadAttention.qkv_weight: expected all or none of q_weight, k_weight, v_weight "
        "frozen; got k_weight frozen alone. They become one tensor, which learns or does not. "
        "Freeze, or let learn, all of them there and load again.",
        whole=True,
    )
    theirs = of_transformers("LlamaForCausalLM", **ONE_LAYER)()
    theirs.model.layers[0].mlp.gate_proj.requires_grad_(False)
    with pytest.raises(
        ArgumentError, match=r"gate_up\.weight: expected all or none of .* frozen; "
    ):
        transformers.load(theirs)


def test_dumped_blocks_are_frozen_where_ours_are() -> None:
    for ours in (MultiHeadAttention(8, 2), KeyValueAttention(8, 2, key_width=6, value_width=4)):
        ours.out_bias.requires_grad_(False)  # pyright: ignore
        with torch.no_grad():
            theirs = in_torch.dump(ours)
        frozen = [name for name, p in theirs.named_parameters() if not p.requires_grad]
        assert frozen == ["out_proj.bias"]
    ours = MultiHeadAttention(8, 2).requires_grad_(False)
    assert not any(p.requires_grad for p in diffusers.dump(ours).parameters())
    ours = MultiHeadAttention(8, 2, projections=Projections(fused=False))
    ours.k_weight.requires_grad_(False)
    with pytest.raises(ArgumentError, match="in_proj_weight: expected all or none of q_weight, k_"):
        in_torch.dump(ours)
    assert not diffusers.dump(ours).to_k.weight.requires_grad  # pyright: ignore


def test_biases_that_only_pytorch_has_do_not_learn() -> None:
    ours = MultiHeadAttention(8, 2, projections=Projections(bias=False))
    learns = {name: p.requires_grad for name, p in in_torch.dump(ours).named_parameters()}
    assert learns == {
        "in_proj_weight": True,
        "in_proj_bias": False,
        "out_proj.weight": True,
        "out_proj.bias": True,
    }


@pytest.mark.parametrize("case", FOREIGN)
def test_loaded_blocks_can_be_pickled(case: str) -> None:
    load, make = FOREIGN[case]
    ours = load(drawn(make(), std=1.0))
    again = pickle.loads(pickle.dumps(ours))
    assert type(again) is type(ours)
    state = ours.state_dict()
    assert all(torch.equal(x, state[name]) for name, x in again.state_dict().items())


def test_a_pickled_activation_is_the_same() -> None:
    theirs: Any = partial(BasicTransformerBlock, 16, 4, 4, activation_fn="geglu-approximate")()
    x, ours = torch.randn(1, 5, 16), diffusers.load(theirs.eval())
    again = pickle.loads(pickle.dumps(ours))
    torch.testing.assert_close(again(x), theirs(x), atol=1e-5, rtol=1e-5)
