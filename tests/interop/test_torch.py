"""`nn.MultiheadAttention` against ours with its weights, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.core.masks import Geometry
from intently.errors import ArgumentError, CheckpointError, KindError
from intently.interop.torch import BesideExtra, KeyValueAttention, dump, load, mask
from intently.nn import AttentionOptions, MultiHeadAttention, Projections

from ..messages import raises, refused
from .comparing import (
    LENGTHS,
    ONE,
    SEEN,
    B,
    C,
    H,
    Refusals,
    T,
    changed,
    close,
    drawn,
    refused_unchanged,
    same_gradients,
    same_state,
    steps,
)

FORBIDDEN = ~torch.ones(T, 6, dtype=torch.bool).tril()


FORMS: dict[str, dict[str, Any]] = {
    "in_proj": {},
    "no bias": {"bias": False},
    "seq first": {"batch_first": False},
    "separate": {"kdim": 7, "vdim": 7},
    "separate, no bias": {"kdim": 7, "vdim": 7, "bias": False},
    "kdim is not vdim": {"kdim": 7, "vdim": 9},
    "kdim alone": {"kdim": 7},
    "vdim alone": {"vdim": 9},
    "bias_kv": {"add_bias_kv": True},
    "zero": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True},
    "everything": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 7, "vdim": 9},
    "everything, no bias": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 7, "bias": False},
}


MASKS: dict[str, tuple[it.Mask | None, dict[str, Any]]] = {
    "none": (None, {}),
    "padding": (it.padding(LENGTHS), {"key_padding_mask": ~SEEN}),
    "causal": (it.causal(offset=0), {"attn_mask": FORBIDDEN}),
    "both": (
        it.padding(LENGTHS) & it.causal(offset=0),
        {"key_padding_mask": ~SEEN, "attn_mask": FORBIDDEN},
    ),
}


def both_ways(
    ours: Any, theirs: nn.MultiheadAttention, x: Tensor, k: Tensor, v: Tensor, masked: str
) -> tuple[Tensor, Tensor]:
    rule, options = MASKS[masked]
    inputs = (x, k, v) if theirs.batch_first else (y.transpose(0, 1) for y in (x, k, v))
    expected, _ = theirs(*inputs, **options)
    given = (x, k, v) if isinstance(ours, KeyValueAttention) else (x, k)
    return ours(*given, mask=rule), expected if theirs.batch_first else expected.transpose(0, 1)


CASES = [
    *((form, "both", torch.float32) for form in FORMS),
    *((form, masked, torch.float32) for form in ("in_proj", "everything") for masked in MASKS),
    *((form, "both", torch.bfloat16) for form in ("in_proj", "kdim is not vdim", "both", "zero")),
]


@pytest.mark.parametrize(("form", "masked", "dtype"), dict.fromkeys(CASES))
def test_multihead_attention_loads_and_dumps(form: str, masked: str, dtype: torch.dtype) -> None:
    options, training = {"batch_first": True} | FORMS[form], masked == "both"
    theirs = drawn(nn.MultiheadAttention(C, H, **options), dtype).train(training)
    ours = load(theirs)
    assert ours.training == training
    k = steps(6, theirs.kdim, dtype)
    v = k if theirs.kdim == theirs.vdim else steps(6, theirs.vdim, dtype)
    x = steps(T, dtype=dtype)
    close(*both_ways(ours, theirs, x, k, v, masked))
    back = dump(ours)
    assert back.training == training and back.batch_first
    same_state(back, theirs)
    close(*both_ways(ours, back, x, k, v, masked))


@pytest.mark.parametrize("form", ["in_proj", "zero", "both"])
def test_self_attention_and_its_gradients(form: str) -> None:
    theirs = drawn(nn.MultiheadAttention(C, H, batch_first=True, **FORMS[form]))
    ours: Any = load(theirs)
    x = steps(T).requires_grad_()
    expected, weights = theirs(x, x, x, average_attn_weights=False)
    dense = ours.attend(x).dense()
    close(dense, weights[..., : dense.shape[-1]])
    same_gradients(ours(x), expected, x)


def test_extra_keys_are_the_last_columns() -> None:
    theirs = drawn(
        nn.MultiheadAttention(C, H, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    )
    ours: Any = load(theirs)
    x = steps(6)
    rule, options = MASKS["padding"]
    weights = theirs(x, x, x, average_attn_weights=False, **options)[1]
    found = ours.attend(x, mask=rule)
    assert found.shape == (B, H, 6, 8)
    close(found.dense(), weights)
    assert (found.dense()[..., -2:] > 0).all()


@pytest.mark.parametrize(
    "rule", [it.causal(offset=0), it.padding(LENGTHS), it.causal() | it.prefix(2)]
)
def test_the_mask_beside_extra_keys_says_the_same_in_every_way(rule: it.Mask) -> None:
    """As a whole, entry by entry, cut, and under every kernel."""
    beside = BesideExtra(rule, 2)
    g = Geometry((B, H), T, 8, torch.device("cpu"))
    whole = torch.cat(
        [rule.dense(g._replace(s=6)).expand(B, H, T, 6), torch.ones(B, H, T, 2) > 0], -1
    )
    assert torch.equal(beside.dense(g).expand_as(whole), whole)
    index = torch.meshgrid(*(torch.arange(n) for n in g.shape), indexing="ij")
    assert torch.equal(beside.at(g, index[:-2], *index[-2:]).expand_as(whole), whole)
    one = beside.part((slice(1, 2), 0), g).dense(g._replace(lead=(1,)))
    assert torch.equal(one.expand(1, T, 8), whole[1:2, 0])
    ours: Any = load(drawn(nn.MultiheadAttention(C, H, add_bias_kv=True, add_zero_attn=True)))
    x, keys = steps(T), steps(6)
    expected = ours(x, keys, mask=whole[..., :6])
    for kernel in ("eager", "tiled"):
        with it.kernels.use(kernel):
            close(ours(x, keys, mask=rule), expected)
    A = ours.attend(x, keys, mask=rule)
    close(A[1, 2, 1:3, 4:].to(torch.float32), A.dense()[1, 2, 1:3, 4:])


def test_no_keys_but_the_extra_ones() -> None:
    ours: Any = load(drawn(nn.MultiheadAttention(C, H, add_bias_kv=True)))
    found = ours(steps(T), torch.zeros(B, 0, C), mask=it.causal())
    assert found.shape == (B, T, C) and found.isfinite().all()


def test_a_row_without_keys_is_nan_there_and_the_output_bias_here() -> None:
    theirs = drawn(nn.MultiheadAttention(C, H, batch_first=True))
    x, nobody = steps(T), torch.zeros(B, dtype=torch.long)
    expected, _ = theirs(x, x, x, key_padding_mask=torch.ones(B, T, dtype=torch.bool))
    assert expected.isnan().all()
    found = load(theirs)(x, mask=it.padding(nobody))
    close(found, theirs.out_proj.bias.expand(B, T, C))


def test_dropout_is_kept_and_loading_draws_nothing() -> None:
    theirs = nn.MultiheadAttention(C, H, dropout=0.25, batch_first=True)
    state = torch.get_rng_state()
    ours: Any = load(theirs)
    back = dump(ours)
    assert torch.equal(torch.get_rng_state(), state)
    assert ours.dropout == back.dropout == 0.25
    x = steps(T)
    assert not torch.equal(ours(x), ours(x))
    ours.eval()
    close(ours(x), theirs.eval()(x, x, x)[0])


@pytest.mark.parametrize(
    "projections",
    [
        Projections(fused=False),
        Projections(bias=False),
        Projections(out_bias=False),
        Projections(bias=False, out_bias=False),
    ],
    ids=repr,
)
def test_any_biases_and_storage_are_dumped(projections: Projections) -> None:
    ours = drawn(MultiHeadAttention(C, H, projections=projections))
    x = steps(T)
    close(dump(ours)(x, x, x)[0], ours(x))


@pytest.mark.parametrize(
    ("attn_mask", "key_padding", "heads", "shown"),
    [
        (torch.tensor([[False, True], [False, False]]), None, None, "█ ·\n█ █"),
        (torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), None, None, "█ ·\n█ █"),
        (None, torch.tensor([[False, True]]), None, "█ ·\n█ ·"),
        (torch.eye(2).bool(), torch.tensor([[False, True]]), None, "· ·\n█ ·"),
        (torch.eye(2).bool().expand(4, 2, 2), None, 2, "· █\n█ ·"),
    ],
)
def test_masks_are_turned_around(
    attn_mask: Tensor | None, key_padding: Tensor | None, heads: int | None, shown: str
) -> None:
    rule = mask(attn_mask, key_padding, heads=heads)
    assert rule is not None and rule.draw(2) == shown
    assert mask() is None


def test_a_mask_for_each_head() -> None:
    theirs = drawn(nn.MultiheadAttention(C, H, batch_first=True))
    forbidden = torch.rand(B * H, T, T) < 0.5
    forbidden[..., 0] = False
    x = steps(T)
    expected, _ = theirs(x, x, x, attn_mask=forbidden)
    close(load(theirs)(x, mask=mask(forbidden, heads=H)), expected)


class Other(nn.MultiheadAttention):
    def forward(self, *inputs: Any, **options: Any) -> Any:
        return super().forward(*inputs, **options)


def layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(C, H, 24, dropout=0.1)


LOAD_ERRORS: Refusals = {
    CheckpointError: {
        "MultiheadAttention: expected every parameter to have a place; got 'lora_A' left "
        "over. Our block would compute something else": lambda: changed(
            nn.MultiheadAttention(C, H), "lora_A", ONE
        ),
        "got 'layers.0.linear1.lora', 'layers.1.linear1.lora' left over": lambda: (
            nn.TransformerEncoder(
                changed(layer(), "linear1.lora", ONE), 2, enable_nested_tensor=False
            )
        ),
        "(16, 16)": lambda: changed(
            nn.MultiheadAttention(C, H), "in_proj_weight", nn.Parameter(torch.zeros(C, C))
        ),
    },
    KindError: {
        "load: expected a module of type MultiheadAttention or TransformerEncoderLayer": lambda: (
            nn.Linear(2, 2)
        ),
        "got Other, which has a forward of its own": lambda: Other(C, H),
        "load(TransformerEncoderLayer.norm1): expected a module of type LayerNorm; got "
        "RMSNorm.": lambda: changed(layer(), "norm1", nn.RMSNorm(C)),
    },
    ArgumentError: {
        "TransformerEncoderLayer.dropout: expected (0.1, 0.1); got (0.1, 0.2). "
        "Our layer has one rate after each part.": lambda: changed(layer(), "dropout2.p", 0.2)
    },
}


test_what_is_not_known_is_refused = refused_unchanged(load, LOAD_ERRORS)


def undumped(**options: Any) -> Callable[[], object]:
    return lambda: dump(MultiHeadAttention(C, H, **options))


test_bad_input = raises(
    {
        ArgumentError: {
            "MultiHeadAttention.kv_heads: expected 4; got 2. Heads do not share": undumped(
                kv_heads=2
            ),
            "MultiHeadAttention.head_widths: expected (4, 4); got (4, 3).": undumped(
                head_widths=(4, 3)
            ),
            "MultiHeadAttention.attention.mask: expected None; got causal(). "
            "There is none in nn.MultiheadAttention.": undumped(
                attention=AttentionOptions(mask=it.causal())
            ),
            "MultiHeadAttention.attention.qk_norm: expected None": undumped(
                attention=AttentionOptions(qk_norm=nn.RMSNorm)
            ),
            "MultiHeadAttention.attention.sinks: expected None or": undumped(
                attention=AttentionOptions(sinks=torch.ones(H))
            ),
            "attn_mask: expected shape (t, s), or (b·h, t, s)": lambda: mask(torch.zeros(2, 2, 2)),
            "attn_mask: expected a boolean tensor, or one of": lambda: mask(
                torch.full((2, 2), 0.5)
            ),
            "key_padding_mask: expected shape (b, s)": lambda: mask(None, torch.zeros(2)),
            "heads: expected a divisor of width=8; got 3": lambda: KeyValueAttention(8, 3),
            'extra: expected "learned", "zero" or both': lambda: KeyValueAttention(
                8, 2, extra=("zeros",)
            ),
            "keys: expected shape (b=1, steps, 3); got shape (1, 2, 8).": lambda: KeyValueAttention(
                8, 2, key_width=3
            )(torch.zeros(1, 2, 8)),
            "values: expected shape (1, 4, 8); got shape (1, 5, 8).": lambda: KeyValueAttention(
                8, 2
            )(*(torch.zeros(1, n, 8) for n in (4, 4, 5))),
        }
    }
)


HOOKS = {
    "forward pre hooks": lambda module, hook: module.register_forward_pre_hook(hook),
    "forward hooks": lambda module, hook: module.register_forward_hook(hook),
    "backward pre hooks": lambda module, hook: module.register_full_backward_pre_hook(hook),
    "backward hooks": lambda module, hook: module.register_full_backward_hook(hook),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_are_not_lost(kind: str) -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    for model, part, name in (
        (nn.MultiheadAttention(8, 2), "", "MultiheadAttention"),
        (encoder, "linear1", "TransformerEncoderLayer.linear1"),
        (nn.Transformer(8, 2, 1, 1, 16), "", "Transformer"),
    ):
        handle = HOOKS[kind](model.get_submodule(part), lambda *given: None)
        text = (
            f"foreign: expected a module without hooks; got {kind} of {name}. They may change what "
            "it computes. Remove them, and register them on the result."
        )
        refused(lambda model=model: load(model), ArgumentError, text, whole=True)
        handle.remove()
        load(model)


def test_hooks_are_not_lost_by_other_loaders() -> None:
    diffusers = pytest.importorskip("diffusers.models.attention_processor")
    transformers = pytest.importorskip("transformers")
    from intently.interop import diffusers as of_diffusers
    from intently.interop import transformers as of_transformers

    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_attention_heads=2, num_hidden_layers=1,
        intermediate_size=8, attn_implementation="eager",
    )  # fmt: skip
    bert = transformers.BertModel(config).eval()
    bert(torch.tensor([[1, 2]]), output_attentions=True, output_hidden_states=True)
    of_transformers.load(bert)  # whose own hooks collect weights
    ours = MultiHeadAttention(8, 2)
    for argument, module, call in (
        ("source", bert, of_transformers.load),
        ("foreign", diffusers.Attention(8, heads=2, dim_head=4), of_diffusers.load),
        ("ours", ours, of_diffusers.dump),
        ("ours", ours, dump),
    ):
        handle = next(module.children(), module).register_forward_hook(lambda *given: None)
        with pytest.raises(ArgumentError, match=f"^{argument}: expected a module without hooks"):
            call(module)
        handle.remove()
        call(module)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_bias_outside_the_state_dict_is_not_lost(buffered: bool) -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    bias = theirs.in_proj_bias.detach()
    del theirs.in_proj_bias
    if buffered:
        theirs.register_buffer("in_proj_bias", bias, persistent=False)
    else:
        theirs.in_proj_bias = bias
    refused(lambda: load(theirs), CheckpointError, "foreign: expected biases in its")


def test_a_buffer_that_is_no_bias_of_a_weight_is_passed_over() -> None:
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    theirs.register_buffer("attn_bias", torch.ones(2), persistent=False)
    assert torch.equal(load(theirs).qkv_weight, theirs.in_proj_weight)
