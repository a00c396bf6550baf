"""Trees of models: true to the modules, their order, their shapes and their parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.foundation.parts import Part
from intently.models import (
    LanguageModel,
    LanguageOptions,
    RecurrentOptions,
    RecurrentSeq2Seq,
    Transformer,
    TransformerOptions,
    VisionOptions,
    VisionTransformer,
)
from intently.modules import (
    AttentionOptions,
    GatedFeedForward,
    ImageAttention,
    MultiHeadAttention,
    Projections,
    RelativeBias,
    SpatialTransformer,
)

B, S, T = 3, 7, 5
SIZES = {"b": B, "s": S, "t": T, "height": 4, "width": 6, "pixels": 24}
IDS, TARGETS = torch.arange(B * S).view(B, S) % 20, torch.arange(B * T).view(B, T) % 30
STEP = TARGETS[:, :1]
IMAGE, WORDS = torch.randn(B, 32, 4, 6), torch.randn(B, S, 8)
SMALL = TransformerOptions(20, 30, width=16, heads=4, inner=24, dropout=0.0)
CELLS = RecurrentOptions(20, 30, width=16, dropout=0.0)
TEXT = LanguageOptions(30, width=16)
PIXELS = {"image": (8, 12), "patch": 4, "classes": 9, "width": 16}

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    **{
        f"transformer {changed}": (
            lambda changed=changed: Transformer(replace(SMALL, **changed)),
            (IDS, TARGETS),
        )
        for changed in (
            {},
            {"norm": "post"},
            {"encoder_layers": 1, "decoder_layers": 3},
            {"feed_forward": "gated", "kv_heads": 2},
            {"positions": "rotary"},
            {"positions": "learned"},
            {"share": "all", "target_vocabulary": 20},
        )
    },
    **{
        f"recurrent {changed}": (
            lambda changed=changed: RecurrentSeq2Seq(replace(CELLS, **changed)),
            (IDS, STEP if changed.get("input_feeding", True) else TARGETS),
        )
        for changed in (
            {},
            {"attention": "none"},
            {"attention": "general", "cell": "lstm", "decoder_layers": 2},
            {"attention": "dot", "bidirectional": False, "encoder_layers": 2},
            {"attention": "concat", "cell": "rnn"},
            {"input_feeding": False},
        )
    },
    "language": (lambda: LanguageModel(TEXT), (TARGETS,)),
    "language, learned positions, untied": (
        lambda: LanguageModel(replace(TEXT, positions=9, tied=False, norm=nn.RMSNorm)),
        (TARGETS,),
    ),
    "vision": (lambda: VisionTransformer(VisionOptions(**PIXELS)), (torch.randn(B, 3, 8, 12),)),
    "image": (lambda: ImageAttention(32, 4, head_width=5), (IMAGE,)),
    "image and words": (lambda: ImageAttention(32, 4, context_width=8), (IMAGE, WORDS)),
    "image without residual": (
        lambda: ImageAttention(
            32, 4, norm=None, residual=False, projections=Projections(out_width=11)
        ),
        (IMAGE,),
    ),
    "spatial": (lambda: SpatialTransformer(32, 2, 5, depth=2), (IMAGE,)),
    "spatial and words": (lambda: SpatialTransformer(32, 2, 5, context_width=8), (IMAGE, WORDS)),
}


def sizes(shape: str, steps: int) -> tuple[int, ...]:
    """A shape of the tree with the sizes of these inputs."""
    known = {**SIZES, "t": steps}
    return tuple(known.get(size) or int(size) for size in shape.strip("()").split(", "))


def first(value: Any) -> Any:
    while isinstance(value, tuple):
        value = value[0]
    return value


def record(model: nn.Module, given: tuple[Tensor, ...]) -> dict[str, tuple[Any, Any]]:
    """Shapes into and out of every module by name, in the order of the calls."""
    found: dict[str, tuple[Any, Any]] = {}
    handles = []
    for name, module in model.named_modules():

        def note(_: nn.Module, inputs: Any, output: Any, name: str = name) -> None:
            tensors = [x for x in inputs if isinstance(x, Tensor)]
            wide = sum(x.shape[-1] for x in tensors if x.ndim == tensors[0].ndim)
            several = name in ("decoder.output", "decoder.vector")
            taken = (*tensors[0].shape[:-1], wide) if several else tuple(tensors[0].shape)
            given = first(output)
            found.setdefault(name, (taken, tuple(given.shape) if given is not None else None))

        if not isinstance(module, nn.ModuleList) and name not in ("", "encoder", "decoder"):
            handles.append(module.register_forward_hook(note))
    model.eval()(*given)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("case", CASES)
def test_every_module_has_its_shapes_and_order(case):
    make, given = CASES[case]
    model = make()
    tree, seen = model.tree(), record(model, given)
    steps = given[-1].shape[1] if given[-1].ndim == 2 else T
    parts = [
        part for part in tree.walk() if part.name in seen and part.kind != "cell" and not part.tied
    ]
    assert len(parts) > 4 or isinstance(model, RecurrentSeq2Seq | ImageAttention)
    for part in parts:
        expected = sizes(part.takes, steps), sizes(part.gives, steps)
        assert seen[part.name] == expected, (part.title, part.name)
    once = "attention.key"  # of the source's states, before the first word
    names = [part.name for part in tree.leaves() if part.name in seen and not part.tied]
    names = [name for name in names if name != once]
    assert names == sorted(names, key=list(seen).index)
    leaves = {name for name, module in model.named_modules() if not list(module.children())}
    called = {name for name in seen if name in leaves} - {
        name for name, module in model.named_modules() if isinstance(module, nn.Identity)
    }
    inside = {"decoder.output.join", "decoder.vector.join"}
    assert called - inside <= {part.name for part in tree.walk()}, "a module is missing"


@pytest.mark.parametrize("case", CASES)
def test_parameters_add_up(case):
    model = CASES[case][0]()
    assert model.tree().total == sum(p.numel() for p in model.parameters())
    for part in model.tree().walk():
        at = dict(model.named_modules()).get(part.name) if part.name else None
        if at is not None and part.kind not in ("cell", "stack", "model") and not part.tied:
            assert part.total == sum(p.numel() for p in at.parameters()), part.name


@pytest.mark.parametrize("case", CASES)
def test_shapes_flow(case):
    """Each part takes what the one before it gave, where nothing else is read."""

    def flows(part: Part) -> None:
        inside = part.parts
        if inside and part.kind in ("layer", "residual", "feed-forward"):
            assert inside[0].takes == part.takes and inside[-1].gives == part.gives
            for one, next_one in pairwise(inside):
                assert one.gives == next_one.takes, (one.title, next_one.title)
        for each in inside:
            flows(each)

    flows(CASES[case][0]().tree())


def kinds(part: Part) -> list[str]:
    return [each.kind for each in part.parts]


def test_pre_norm_is_inside_the_residual_and_post_norm_after_it():
    pre, post = (Transformer(replace(SMALL, norm=norm)).tree() for norm in ("pre", "post"))
    first, second = (tree.parts[0].parts[2] for tree in (pre, post))
    assert kinds(first) == ["residual", "residual"]
    assert kinds(first.parts[0]) == ["norm", "attention"]
    assert kinds(second) == ["residual", "norm", "residual", "norm"]
    assert kinds(second.parts[0]) == ["attention"]
    assert pre.parts[0].parts[-1].kind == "norm" and post.parts[0].parts[-1].kind == "layer"


def test_cross_attention_reads_the_encoder():
    decoder = Transformer(SMALL).tree().parts[1]
    reading = [part for part in decoder.walk() if part.kind == "attention" and part.reads]
    assert [part.title for part in reading] == ["Cross-attention"] * 2
    assert {part.reads for part in reading} == {(("encoder", "(b, s, 16)"),)}
    _, keys, values = (part for part in reading[0].parts if "qkv" in part.name)
    assert keys.takes == values.takes == "(b, s, 16)"


def test_masked_means_masked():
    """What the tree calls masked gives no weight to later steps, and nothing else does so."""
    model = Transformer(SMALL)
    matrices = model.attentions(IDS, TARGETS)
    for part in model.tree().walk():
        if part.kind == "attention" and not part.reads:
            matrix = matrices[part.name]
            later = float(matrix.dense().triu(1).sum())
            assert (later == 0) == ("causal" in part.notes) == part.title.startswith("Masked")


def test_weights_have_the_shape_of_the_lazy_matrix():
    block = MultiHeadAttention(16, 4, kv_heads=2, head_widths=(6, 3), context_width=8)
    x, context = torch.randn(B, T, 16), torch.randn(B, S, 8)
    matrix = block.attend(x, context)
    tree = block.tree()
    q, k, v, weights = tree.parts[:4]
    assert sizes(q.gives, T) == tuple(matrix.q.shape) and sizes(k.gives, T) == tuple(matrix.k.shape)
    assert sizes(v.gives, T) == (B, 2, S, 3) and sizes(weights.gives, T) == matrix.shape
    assert sizes(tree.gives, T) == tuple(block(x, context).shape)
    assert tree.notes == ("4 heads", "d = 6", "2 key/value heads")


def test_options_of_attention_are_told():
    options = AttentionOptions(
        mask=it.window(2, 0), positions=it.Rotary(4), bias=RelativeBias(4), qk_norm=nn.RMSNorm
    )
    tree = MultiHeadAttention(16, 4, attention=options).tree()
    assert {"rotary", "window(2, 0)", "relative bias"} <= set(tree.notes)
    assert [part.title for part in tree.parts if part.kind == "norm"] == ["RMS norm"] * 2
    assert "rotary" not in MultiHeadAttention(16, 4).tree().notes
    scored = AttentionOptions(score=it.Cosine())
    assert "cosine" in MultiHeadAttention(16, 4, attention=scored).tree().parts[3].title


def test_shared_weights_count_once():
    shared = Transformer(replace(SMALL, share="all", target_vocabulary=20)).tree()
    embeddings = [part for part in shared.walk() if part.kind == "embedding"]
    assert [part.tied for part in embeddings] == ["", "source_embedding"]
    assert embeddings[1].parameters == 0
    assert list(shared.leaves())[-1].tied == "target_embedding"
    assert list(LanguageModel(replace(TEXT, tied=False)).tree().leaves())[-1].tied == ""


def test_replaced_modules_are_told_as_they_are():
    model = Transformer(SMALL)
    model.encoder[1].feed_forward = GatedFeedForward(16, 40)
    model.decoder_norm = nn.RMSNorm(16)
    model.decoder[0].feed_forward = nn.Sequential(nn.Linear(16, 16), nn.GELU())
    tree = model.tree()
    first, second = (part for part in tree.parts[0].parts if part.kind == "layer")
    assert not first.like(second) and first.like(Transformer(SMALL).tree().parts[0].parts[3])
    assert second.parts[1].parts[1].title == "Gated feed-forward"
    assert tree.parts[1].parts[-2].title == "RMS norm"
    assert "Sequential" in [part.title for part in tree.walk()]
    assert tree.total == sum(p.numel() for p in model.parameters())


def test_the_order_of_a_recurrent_step_is_that_of_its_paper():
    def order(attention: str) -> list[str]:
        tree = RecurrentSeq2Seq(replace(CELLS, attention=attention)).tree()
        return [part.kind for part in tree.parts[1].parts[2:-1]]

    assert order("additive") == ["attention", "cell", "projection"]
    assert order("general") == ["cell", "attention", "projection"]
    assert order("none") == ["cell", "projection"]
    scores = {
        score: RecurrentSeq2Seq(replace(CELLS, attention=score)).tree().parts[1].parts
        for score in ("general", "concat")
    }
    assert len({parts[3].notes for parts in scores.values()}) == 2
