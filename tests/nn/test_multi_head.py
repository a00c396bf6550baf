"""Multi-head attention against PyTorch's, against itself in other storage, and its errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.core.biases import Bias
from intently.nn import AttentionOptions, MultiHeadAttention, Projections

from ..combinations import pairs
from ..core.formula import others, random
from ..tensors import close, drawn, renamed

C, H = 12, 3


def x(b: int = 2, t: int = 5, c: int = C, seed: int = 0) -> Tensor:
    return random(b, t, c, seed=seed).requires_grad_()


TORCHS = {
    "qkv_weight": "in_proj_weight",
    "qkv_bias": "in_proj_bias",
    "out_weight": "out_proj.weight",
    "out_bias": "out_proj.bias",
    **{f"{letter}_weight": f"{letter}_proj_weight" for letter in "qkv"},
}


def like_torch(layer: MultiHeadAttention, **options: Any) -> nn.MultiheadAttention:
    """PyTorch's layer with the same weights; every one of ours is used."""
    theirs = nn.MultiheadAttention(C, layer.heads, batch_first=True, **options).double()
    state = layer.state_dict()
    if "q_bias" in state:
        state["qkv_bias"] = torch.cat([state.pop(f"{letter}_bias") for letter in "qkv"])
    theirs.load_state_dict(renamed(state, TORCHS))
    return theirs


LENGTHS = torch.tensor([3, 5])
MASKS: dict[str, tuple[it.Mask | None, dict[str, Any]]] = {
    "none": (None, {}),
    "causal": (
        it.causal(),
        {"attn_mask": ~torch.ones(5, 5, dtype=torch.bool).tril(), "is_causal": False},
    ),
    "padding": (it.padding(LENGTHS), {"key_padding_mask": torch.arange(5) >= LENGTHS[:, None]}),
    "both": (
        it.padding(LENGTHS) & it.causal(),
        {
            "key_padding_mask": torch.arange(5) >= LENGTHS[:, None],
            "attn_mask": ~torch.ones(5, 5, dtype=torch.bool).tril(),
        },
    ),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", MASKS)
def test_self_attention_is_torchs(masked: str, bias: bool) -> None:
    projections = Projections(bias=bias, out_bias=bias)
    ours = drawn(MultiHeadAttention(C, H, projections=projections))
    theirs = like_torch(ours, bias=bias)
    mask, options = MASKS[masked]
    a, b = x(), x()
    y = ours(a, mask=mask)
    expected, weights = theirs(b, b, b, average_attn_weights=False, **options)
    close(y, expected)
    close(ours.attend(a, mask=mask).dense(), weights)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(a.grad, b.grad, atol=1e-11, rtol=1e-10)
    torch.testing.assert_close(ours.qkv_weight.grad, theirs.in_proj_weight.grad)
    torch.testing.assert_close(ours.out_weight.grad, theirs.out_proj.weight.grad)
    if bias:
        torch.testing.assert_close(ours.qkv_bias.grad, theirs.in_proj_bias.grad)


@pytest.mark.parametrize("width", [C, 7])
def test_cross_attention_is_torchs(width: int) -> None:
    ours = drawn(MultiHeadAttention(C, H, context_width=width))
    assert ours.fused == (width == C)
    options = {} if width == C else {"kdim": width, "vdim": width}
    theirs = like_torch(ours, **options)
    q, context = x(t=4), x(t=5, c=width, seed=1)
    mask, their_mask = MASKS["padding"]
    y = ours(q, context, mask=mask)
    expected, weights = theirs(q, context, context, average_attn_weights=False, **their_mask)
    close(y, expected)
    A = ours.attend(q, context, mask=mask)
    close(A.dense(), weights)
    up = torch.randn_like(y)
    torch.testing.assert_close(
        torch.autograd.grad(y, (q, context), up),
        torch.autograd.grad(expected, (q, context), up),
        atol=1e-11,
        rtol=1e-10,
    )


def test_a_row_without_keys_is_the_output_bias_where_torch_says_nan() -> None:
    layer = drawn(MultiHeadAttention(C, H))
    y = layer(x(), mask=it.padding(torch.tensor([0, 5])))
    assert torch.equal(y[0], layer.out_bias.expand(5, C))
    expected = layer(x(), mask=it.padding(torch.tensor([5, 5])))[1]
    close(y[1], expected)


def test_heads_are_attention_between_projections() -> None:
    """The same written out: project, split c into (h, d), attend, join, project."""
    layer = drawn(MultiHeadAttention(C, H))
    steps = x()
    q, k, v = (
        (steps @ w.T + b).reshape(2, 5, H, C // H).transpose(1, 2)
        for w, b in zip(layer.qkv_weight.split(C), layer.qkv_bias.split(C))
    )
    y = it.attention(q, k, v).transpose(1, 2).reshape(2, 5, C) @ layer.out_weight.T + layer.out_bias
    close(layer(steps), y)


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no biases": {"bias": False, "out_bias": False},
    "grouped": {"kv_heads": 1},
    "widths": {"head_widths": (2, 5)},
    "grouped, widths": {"kv_heads": 1, "head_widths": (2, 5)},
}


def layer_of(kind: str, fused: bool) -> MultiHeadAttention:
    biases = {name: x for name, x in KINDS[kind].items() if "bias" in name}
    options = {name: x for name, x in KINDS[kind].items() if "bias" not in name}
    projections = Projections(**biases, fused=fused)
    return MultiHeadAttention(C, H, projections=projections, **options).double()


@pairs({"masked": MASKS, "kind": KINDS, "to_fused": [True, False]})
def test_fused_and_separate_storage_are_the_same_numbers(
    kind: str, to_fused: bool, masked: str
) -> None:
    one, other = drawn(layer_of(kind, not to_fused)), layer_of(kind, to_fused)
    state = one.state_dict()
    before = list(state)
    assert str(other.load_state_dict(state)) == "<All keys matched successfully>"
    assert list(state) == before, "the caller's dictionary is left as it was"
    mask, _ = MASKS[masked]
    close(other(x(), mask=mask), one(x(), mask=mask))
    context = x(t=5, seed=2)
    close(other(x(t=3), context), one(x(t=3), context))
    back = layer_of(kind, not to_fused)
    back.load_state_dict(other.state_dict())
    assert all(
        torch.equal(p, q) for p, q in zip(one.state_dict().values(), back.state_dict().values())
    )


def test_storage_inside_a_larger_model() -> None:
    one = nn.ModuleDict({"a": layer_of("plain", True), "b": layer_of("plain", False)})
    other = nn.ModuleDict({"a": layer_of("plain", False), "b": layer_of("plain", True)})
    other.load_state_dict(drawn(one).state_dict())
    for name in one:
        close(other[name](x()), one[name](x()))


def test_grouped_heads_are_repeated_heads() -> None:
    """Ainslie et al. 2023, "GQA", figure 2: consecutive query heads share a key head."""
    h, g, d = 6, 2, 2
    grouped = drawn(MultiHeadAttention(C, h, kv_heads=g, projections=Projections(fused=False)))
    full = MultiHeadAttention(C, h, projections=Projections(fused=False)).double()
    state = dict(grouped.state_dict())
    for name in ("k_weight", "k_bias", "v_weight", "v_bias"):
        heads = state[name].unflatten(0, (g, d))
        state[name] = heads.repeat_interleave(h // g, 0).flatten(0, 1)
    full.load_state_dict(state)
    for mask, _ in MASKS.values():
        close(grouped(x(), mask=mask), full(x(), mask=mask))
    assert grouped.attend(x()).k.shape[1] == g and grouped.attend(x()).shape == (2, h, 5, 5)


def test_dropout_only_while_training() -> None:
    layer = drawn(MultiHeadAttention(C, H, dropout=0.5))
    torch.manual_seed(0)
    assert not torch.equal(layer(x()), layer(x()))
    with it.kernels.use("tiled"):
        reasons = layer.attend(x()).plan().refused
    assert reasons["torch_fused"] == "dropout is not fused on CPU"
    layer.eval()
    assert torch.equal(layer(x()), layer(x())) and others(layer.attend(x()).plan().refused) == {}


def test_each_map_is_drawn_for_its_own_size() -> None:
    for fused in (True, False):
        layer = MultiHeadAttention(256, 4, projections=Projections(fused=fused))
        maps = (
            layer.qkv_weight.split(256)
            if fused
            else (layer.q_weight, layer.k_weight, layer.v_weight)
        )
        for weight in (*maps, layer.out_weight):
            limit = (6 / 512) ** 0.5
            assert 0.98 * limit < float(weight.detach().abs().max()) <= limit
        assert all(not p.any() for n, p in layer.named_parameters() if n.endswith("bias"))


def test_it_is_described() -> None:
    assert (
        repr(MultiHeadAttention(C, H, kv_heads=1))
        == "MultiHeadAttention(width=12, heads=3, kv_heads=1, d=4)"
    )


@pytest.mark.parametrize("empty", ["b", "t", "s"])
def test_empty_dimensions(empty: str) -> None:
    layer = drawn(MultiHeadAttention(C, H))
    b, t, s = (0 if empty == letter else 2 for letter in "bts")
    assert layer(x(b, t), x(b, s)).shape == (b, t, C)
    if empty != "s":
        assert layer(x(b, t)).shape == (b, t, C)


def test_the_options_move_with_the_block() -> None:
    options = AttentionOptions(bias=torch.ones(5, 5), mask=torch.ones(5, 5) > 0)
    layer = MultiHeadAttention(12, 4, attention=options).half()
    assert isinstance(layer.attention.bias, Bias) and layer.attention.bias is layer.bias
    assert layer.attention.bias.tensors()[0].dtype is torch.float16
    assert options.bias.dtype is torch.float32  # pyright: ignore
