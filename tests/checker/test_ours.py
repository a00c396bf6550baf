"""Our own modules and models, examined as a user would, with the mask each should have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.nn import (
    AdditiveAttention,
    AdditiveScore,
    AttentionHead,
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    GatedFeedForward,
    GeneralScore,
    ImageAttention,
    LuongAttention,
    MultiHeadAttention,
    RelativeBias,
    Sinks,
    SpatialTransformer,
    convolution_as_attention,
)
from intently.nn.models import (
    LanguageModel,
    LanguageOptions,
    RecurrentOptions,
    RecurrentSeq2Seq,
    Transformer,
    TransformerOptions,
    VisionOptions,
    VisionTransformer,
)

Examine = Callable[..., Any]
CAUSAL, NEAR = it.causal(), it.causal() & it.window(2, 0)


def ids(*shape: int) -> Tensor:
    return torch.randint(3, 20, shape, generator=torch.Generator().manual_seed(1))


def heads(mask: Any = None, kv_heads: int | None = None, **options: Any) -> MultiHeadAttention:
    attention = AttentionOptions(mask=mask, **options)
    return MultiHeadAttention(32, 4, kv_heads=kv_heads, attention=attention)


class Remembering(nn.Module):
    """An attention that keeps what it attends to, called in one go."""

    def __init__(self, attention: AdditiveAttention | LuongAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, context: Tensor, lengths: Tensor) -> Tensor:
        return self.attention(x, self.attention.remember(context, lengths))


BLOCKS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], str]] = {
    "head": (lambda: AttentionHead(32, 8), {}, "no mask"),
    "causal head": (
        lambda: AttentionHead(32, 8, attention=AttentionOptions(mask=CAUSAL)),
        {"mask": CAUSAL},
        "mask: causal",
    ),
    "heads": (heads, {}, "4 heads of 8"),
    "a window": (lambda: heads(NEAR), {"mask": NEAR}, "mask: causal & window"),
    "rotary, grouped": (
        lambda: heads(CAUSAL, kv_heads=2, positions=it.Rotary(8)),
        {"mask": CAUSAL},
        "4 heads of 8 on 2 of keys and values",
    ),
    "ALiBi": (
        lambda: heads(CAUSAL, bias=it.alibi(4)),
        {"mask": CAUSAL, "bias": it.alibi(4)},
        "bias as intended",
    ),
    "softcap": (lambda: heads(softcap=30.0), {}, "softcap 30"),
    "sinks": (lambda: heads(sinks=Sinks(4)), {}, "4 heads of 8"),
    "relative": (lambda: heads(bias=RelativeBias(4)), {}, "4 heads of 8"),
    "cosine": (lambda: heads(score=it.Cosine()), {}, "cosine"),
    "normed": (lambda: heads(CAUSAL, qk_norm=nn.RMSNorm), {"mask": CAUSAL}, ""),
    "additive score": (lambda: heads(score=AdditiveScore(4, 8, 16)), {}, ""),
    "general score": (lambda: heads(score=GeneralScore(4, 8)), {}, ""),
    "encoder": (lambda: EncoderLayer(32, 4, 64), {}, "no mask"),
    "modern": (
        lambda: EncoderLayer(
            32, heads(CAUSAL, 2, positions=it.Rotary(8)), GatedFeedForward(32, 40), norms=nn.RMSNorm
        ),
        {"mask": CAUSAL},
        "rotary in halves",
    ),
    "language model": (
        lambda: LanguageModel(LanguageOptions(20, 32, 4, 2, kv_heads=2)),
        {"mask": CAUSAL},
        "mask: causal",
    ),
}
"""By name, what is made, what it should do, and what is measured first."""


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_right(name: str, examine: Examine) -> None:
    make, intent, computed = BLOCKS[name]
    report = examine(make().eval(), **intent)
    assert computed in report.computes[0], str(report)


IMAGES = it.grid(4, 4, 1)


@pytest.mark.parametrize(
    ("make", "intent"),
    [
        (lambda: ImageAttention(32, 4), {}),
        (lambda: ImageAttention(32, 4, attention=AttentionOptions(mask=IMAGES)), {"mask": IMAGES}),
        (lambda: convolution_as_attention(nn.Conv2d(32, 4, 3, padding=1)), {}),
    ],
    ids=["all pixels", "neighbours", "convolution"],
)
def test_images_are_right(make: Callable[[], nn.Module], intent: Any, examine: Examine) -> None:
    examine(make().eval(), inputs={"x": torch.randn(2, 32, 4, 4)}, **intent)


def test_images_with_words_are_right(examine: Examine) -> None:
    given = {"x": torch.randn(2, 32, 4, 4), "context": torch.randn(2, 5, 8)}
    report = examine(SpatialTransformer(32, 2, 16, context_width=8).eval(), inputs=given)
    assert len(report.computes) == 2


def test_a_decoder_layer_is_right(examine: Examine) -> None:
    given = {"x": torch.randn(2, 5, 32), "states": torch.randn(2, 7, 32)}
    report = examine(DecoderLayer(32, 4, 64).eval(), inputs=given, arguments={"states": "context"})
    assert len(report.computes) == 2


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned"])
def test_a_transformer_is_right(positions: Any, examine: Examine) -> None:
    options = TransformerOptions(20, 20, 32, 4, 1, 1, 64, positions=positions)
    given = {"source": ids(2, 6), "target": ids(2, 5), "lengths": torch.tensor([6, 4])}
    report = examine(Transformer(options).eval(), inputs=given, arguments={"lengths": "lengths"})
    masks = [x.rsplit("mask: ")[1] for x in report.computes]
    assert masks == ["lengths", "causal (inferred)", "lengths"], str(report)


def test_a_vision_transformer_is_right(examine: Examine) -> None:
    options = VisionOptions((8, 8), 4, 3, width=32, heads=4, layers=1)
    given = {"images": torch.randn(2, 3, 8, 8)}
    model = VisionTransformer(options).eval()
    report = examine(model, inputs=given, arguments={"images": "x"})
    assert "4 heads of 8" in report.computes[0]


@pytest.mark.parametrize(
    ("make", "width"),
    [
        (lambda: AdditiveAttention(16, 24, 32), 24),
        (lambda: LuongAttention(16, 16, "dot"), 16),
        (lambda: LuongAttention(16, 24, "general"), 24),
        (lambda: LuongAttention(16, 24, "concat", hidden=8), 24),
    ],
    ids=["additive", "dot", "general", "concat"],
)
def test_recurrent_attention_is_right(make: Any, width: int, examine: Examine) -> None:
    given = {"x": torch.randn(2, 5, 16), "context": torch.randn(2, 7, width)}
    given["lengths"] = torch.tensor([7, 4])
    report = examine(Remembering(make()), inputs=given, arguments={"lengths": "lengths"})
    assert next(p for p in report.properties if p.name == "padding").holds


@pytest.mark.parametrize("attention", ["additive", "dot", "general", "concat"])
def test_recurrent_models_are_right(attention: Any, examine: Examine) -> None:
    model = RecurrentSeq2Seq(RecurrentOptions(20, 20, 16, attention=attention)).eval()
    given = {"source": ids(2, 6), "target": ids(2, 5), "lengths": torch.tensor([6, 4])}
    examine(model, inputs=given, arguments={"lengths": "lengths"})


def test_another_mask_than_the_stated_one_fails(examine: Examine) -> None:
    with pytest.raises(pytest.fail.Exception, match="1 mistake: window-missing"):
        examine(heads(CAUSAL).eval(), mask=NEAR)
