"""The matrices that a whole model hands back are those that its forward multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.core.positions import DynamicNTK
from intently.nn import AttentionOptions, MultiHeadAttention, RelativeBias, SpatialTransformer
from intently.nn.models import Transformer, TransformerOptions
from intently.nn.models.language import LanguageModel, LanguageOptions
from intently.nn.models.recurrent import RecurrentOptions, RecurrentSeq2Seq
from intently.nn.models.vision import VisionOptions, VisionTransformer
from intently.nn.replay import attended

from ...combinations import each
from ...tensors import drawn as fill

C, H, D = 12, 3, 4
IDS = torch.tensor([[5, 6, 7, 8, 3, 4, 9], [9, 10, 2, 1, 3, 3, 7]])
LENGTHS = torch.tensor([7, 4])
IMAGES = torch.linspace(-1, 1, 2 * 3 * 8 * 12).view(2, 3, 8, 12).sin().double()


def table() -> Tensor:
    return torch.linspace(-2, 2, 32 * H).view(32, H).double()


SELF: dict[str, Callable[[], AttentionOptions]] = {
    "plain": AttentionOptions,
    "mask": lambda: AttentionOptions(mask=it.window(2, 2)),
    "mask per row": lambda: AttentionOptions(mask=it.allowed(torch.rand(2, 1, 1, 7) > 0.4)),
    "alibi": lambda: AttentionOptions(bias=it.alibi(H)),
    "buckets": lambda: AttentionOptions(bias=it.relative_buckets(table())),
    "learned bias": lambda: AttentionOptions(bias=RelativeBias(H, buckets=8, max_distance=5)),
    "turned": lambda: AttentionOptions(positions=it.Rotary(D)),
    "turned by length": lambda: AttentionOptions(
        positions=it.Rotary(D, scaling=DynamicNTK(4.0, 3))
    ),
    "capped": lambda: AttentionOptions(softcap=1.5),
    "normed": lambda: AttentionOptions(qk_norm=nn.RMSNorm),
    "scaled": lambda: AttentionOptions(scale=0.9),
    "sinks": lambda: AttentionOptions(sinks=torch.tensor([1.0, -1.0, 2.0]).double()),
    "cosine": lambda: AttentionOptions(score=it.Cosine(), scale=4.0),
    "all": lambda: AttentionOptions(
        mask=it.window(3, 3),
        bias=it.alibi(H),
        positions=it.Rotary(D, layout="interleaved"),
        softcap=3.0,
        qk_norm=nn.LayerNorm,
        scale=0.8,
        sinks=torch.tensor(0.5).double(),
    ),
}
CROSS = [n for n in SELF if not n.startswith(("turned", "all"))]


def drawn(model: nn.Module) -> Any:
    return fill(model, 0.4, torch.Generator().manual_seed(3)).eval()


@contextmanager
def outcomes(blocks: dict[str, nn.Module]) -> Iterator[dict[str, tuple[Any, Any, Tensor]]]:
    """Keep what each block was called with in a pass, and what it gave."""
    kept: dict[str, tuple[Any, Any, Tensor]] = {}
    handles = []
    for name, block in blocks.items():

        def keep(_: Any, given: Any, options: Any, y: Tensor, name: str = name) -> None:
            kept[name] = (given, options, y)

        handles.append(block.register_forward_hook(keep, with_kwargs=True))
    yield kept
    for handle in handles:
        handle.remove()


def blocks_of(model: nn.Module) -> dict[str, nn.Module]:
    return {n: m for n, m in model.named_modules() if isinstance(m, MultiHeadAttention)}


def values_of(block: Any, states: Tensor) -> Tensor:
    """Values (b, h, s, e) of states (b, s, c), by the weights of either storage."""
    name = "qkv" if hasattr(block, "qkv_weight") else "v"
    n = block.out_weight.shape[1] // block.heads * block.kv_heads
    weight, bias = getattr(block, f"{name}_weight"), getattr(block, f"{name}_bias")
    v = F.linear(states, weight[-n:], None if bias is None else bias[-n:])
    v = v.unflatten(2, (block.kv_heads, -1)).transpose(1, 2)
    return v.repeat_interleave(block.heads // block.kv_heads, 1)


@torch.no_grad()
def compare(model: Any, run: Callable[[], Any], *given: Any) -> dict[str, Any]:
    blocks = blocks_of(model)
    with outcomes(blocks) as kept:
        run()
    found = model.attentions(*given)
    assert list(found) == list(kept) and blocks
    for name, (args, _, y) in kept.items():
        block: Any = blocks[name]
        mixed = (found[name].dense() @ values_of(block, args[-1])).transpose(1, 2).flatten(2)
        rebuilt = F.linear(mixed, block.out_weight, block.out_bias)
        torch.testing.assert_close(rebuilt, y, atol=1e-12, rtol=1e-11)
    assert not any(block._forward_pre_hooks for block in blocks.values())
    return found


def translator(own: str, cross: str, norm: Any, **widths: Any) -> Transformer:
    options = TransformerOptions(11, 11, C, H, 2, 2, 20, norm=norm)
    model = Transformer(options)
    for layer in (*model.encoder, *model.decoder):
        kind: Any = layer
        kind.self_attention = MultiHeadAttention(C, H, attention=SELF[own](), **widths)
        if hasattr(layer, "cross_attention"):
            kind.cross_attention = MultiHeadAttention(C, H, attention=SELF[cross](), **widths)
    return drawn(model)


@each({"norm": ["pre", "post"], "own": SELF})
def test_a_translators_layers(own: str, norm: str) -> None:
    model = translator(own, own if own in CROSS else "plain", norm)
    for lengths in (None, LENGTHS):
        compare(model, partial(model, IDS, IDS, lengths), IDS, IDS, lengths)


@pytest.mark.parametrize("widths", [{"kv_heads": 1}, {"head_widths": (4, 2)}], ids=str)
def test_a_translators_heads(widths: dict[str, Any]) -> None:
    model = translator("alibi", "capped", "pre", **widths)
    compare(model, lambda: model(IDS, IDS, LENGTHS), IDS, IDS, LENGTHS)


@pytest.mark.parametrize("own", SELF)
def test_a_language_models_layers(own: str) -> None:
    attention = SELF[own]()
    positions = None if attention.positions is not None else partial(it.Rotary, base=500.0)
    options = LanguageOptions(11, C, H, 2, positions=positions, attention=attention)
    model = drawn(LanguageModel(options))
    found = compare(model, lambda: model(IDS), IDS)
    shapes = {f"decoder.{i}.self_attention": (2, H, 7, 7) for i in (0, 1)}
    assert {name: A.shape for name, A in found.items()} == shapes


@pytest.mark.parametrize("own", SELF)
def test_a_vision_transformers_layers(own: str) -> None:
    options = VisionOptions((8, 12), 4, 5, width=C, heads=H, layers=2, attention=SELF[own]())
    model = drawn(VisionTransformer(options))
    found = compare(model, lambda: model(IMAGES), IMAGES)
    shapes = {f"encoder.{i}.self_attention": (2, H, 7, 7) for i in (0, 1)}
    assert {name: A.shape for name, A in found.items()} == shapes


def test_a_layer_that_was_replaced() -> None:
    """Post norm, and one block in two layers."""
    from intently.nn import EncoderLayer

    model = LanguageModel(LanguageOptions(11, C, H, 3))
    heads = MultiHeadAttention(C, H, attention=AttentionOptions(mask=it.causal(), bias=it.alibi(H)))
    model.decoder[1] = EncoderLayer(C, heads, 20, norm="post")
    compare(drawn(model), lambda: model(IDS), IDS)
    shared: Any = model.decoder
    shared[2].self_attention = heads
    assert [*model.attentions(IDS)] == [f"decoder.{i}.self_attention" for i in range(3)]
    first, second = (model.attentions(IDS)[f"decoder.{i}.self_attention"].dense() for i in (1, 2))
    assert not torch.allclose(first, second)


@torch.no_grad()
def test_beams_share_a_source() -> None:
    model = translator("plain", "plain", "pre")
    targets = torch.cat([IDS, IDS.flip(1)])[[0, 2, 1, 3]]
    found = model.attentions(IDS, targets, LENGTHS)
    each = torch.tensor([0, 0, 1, 1])
    alone = model.attentions(IDS[each], targets, LENGTHS[each])
    assert found["encoder.0.self_attention"].shape == (2, H, 7, 7)
    for name in ("decoder.1.self_attention", "decoder.1.cross_attention"):
        torch.testing.assert_close(found[name].dense(), alone[name].dense())


def test_hooks_are_gone_where_the_pass_raises() -> None:
    model = LanguageModel(LanguageOptions(11, C, H, 2))
    with pytest.raises(it.errors.ArgumentError, match="ids: expected ids from 0 to 10"):
        model.attentions(torch.tensor([[11]]))
    block: Any = MultiHeadAttention(C, H)
    with pytest.raises(ZeroDivisionError):
        attended([("only", block)], lambda: 1 // 0)
    hooks = [m._forward_pre_hooks for m in (*model.modules(), block)]
    assert not any(hooks)


def named() -> Iterator[Any]:
    """Yield models, and the arguments of their `attentions`."""
    yield Transformer(TransformerOptions(11, 11, width=C, heads=H)), (IDS, IDS)
    for attention in ("additive", "general"):
        yield RecurrentSeq2Seq(RecurrentOptions(11, 11, width=C, attention=attention)), (IDS, IDS)
    yield LanguageModel(LanguageOptions(11, C, H, 2)), (IDS,)
    yield (
        VisionTransformer(VisionOptions((8, 12), 4, 5, width=C, heads=H, layers=2)),
        (IMAGES.float(),),
    )
    photos, texts = torch.rand(2, 4, 3, 3), torch.rand(2, 5, 6)
    yield SpatialTransformer(4, 2, 2, depth=2, context_width=6), (photos, texts)
    yield SpatialTransformer(4, 2, 2), (photos,)


@torch.no_grad()
@pytest.mark.parametrize(("model", "given"), [*named()])
def test_a_layer_has_one_name_its_path(model: Any, given: Any) -> None:
    model = model.eval()
    found = model.attentions(*given)
    with it.watch(model) as seen:
        model(*given)
    assert sorted(found) == sorted(seen.layers)
    for name, matrix in found.items():
        assert model.get_submodule(name)
        torch.testing.assert_close(seen[name].dense().view(matrix.shape), matrix.dense())
