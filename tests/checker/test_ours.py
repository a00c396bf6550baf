"""Our own modules and models, examined as a user would, with the mask each should have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently.nn import (
    AdditiveAttention,
    AttentionOptions,
    ImageAttention,
    LuongAttention,
    MultiHeadAttention,
    convolution_as_attention,
)
from intently.nn.models import RecurrentOptions, RecurrentSeq2Seq

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(str(Path(__file__).parents[2]))
    from benchmarks.checking.right.own import CASES

Examine = Callable[..., Any]
COMPUTED = {
    "AttentionHead": "no mask",
    "MultiHeadAttention, plain": "4 heads of 8",
    "MultiHeadAttention, causal": "mask: causal",
    "MultiHeadAttention, window": "mask: causal & window",
    "MultiHeadAttention, grouped": "4 heads of 8 on 2 of keys and values",
    "MultiHeadAttention, rotary": "rotary in halves",
    "MultiHeadAttention, softcap": "softcap 30",
    "MultiHeadAttention, cosine": "cosine",
    "VisionTransformer": "4 heads of 8",
}
"""What is measured first."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_the_benchmark_holds_is_right(case: Any, examine: Examine) -> None:
    report = examine(case.make().eval(), **case.asked)
    assert COMPUTED.get(case.name.removeprefix("intently's "), "") in report.computes[0]


def test_the_parts_of_a_transformer_are_told_apart(examine: Examine) -> None:
    case = next(x for x in CASES if x.name == "intently's Transformer, lengths")
    report = examine(case.make().eval(), **case.asked)
    masks = [x.rsplit("mask: ")[1] for x in report.computes]
    assert masks == ["lengths", "causal (inferred)", "lengths"], str(report)


def test_a_stated_bias_is_compared(examine: Examine) -> None:
    attention = AttentionOptions(mask=it.causal(), bias=it.alibi(4))
    layer = MultiHeadAttention(32, 4, attention=attention).eval()
    report = examine(layer, mask=it.causal(), bias=it.alibi(4))
    assert "bias as intended" in report.computes[0]


IMAGES = it.grid(4, 4, 1)


def test_images_are_right(examine: Examine) -> None:
    layer = ImageAttention(32, 4, attention=AttentionOptions(mask=IMAGES)).eval()
    examine(layer, inputs={"x": torch.randn(2, 32, 4, 4)}, mask=IMAGES)


def test_weights_that_no_data_makes_are_no_attention(examine: Examine) -> None:
    layer = convolution_as_attention(nn.Conv2d(32, 4, 3, padding=1)).eval()
    report = examine(layer, inputs={"x": torch.randn(2, 32, 4, 4)}, allow_unmeasured=True)
    assert report.ok is None, str(report)


class Remembering(nn.Module):
    """An attention that keeps what it attends to, called in one go."""

    def __init__(self, attention: AdditiveAttention | LuongAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, context: Tensor, lengths: Tensor) -> Tensor:
        return self.attention(x, self.attention.remember(context, lengths))


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdditiveAttention(16, 24, 32),
        lambda: LuongAttention(16, 24, "general"),
        lambda: LuongAttention(16, 24, "concat", hidden=8),
    ],
    ids=["additive", "general", "concat"],
)
def test_recurrent_attention_is_right(make: Any, examine: Examine) -> None:
    given = {"x": torch.randn(2, 5, 16), "context": torch.randn(2, 7, 24)}
    given["lengths"] = torch.tensor([7, 4])
    report = examine(Remembering(make()), inputs=given, arguments={"lengths": "lengths"})
    assert next(p for p in report.properties if p.name == "padding").holds


@pytest.mark.parametrize("attention", ["additive", "dot", "general", "concat"])
def test_recurrent_models_are_right(attention: Any, examine: Examine) -> None:
    model = RecurrentSeq2Seq(RecurrentOptions(20, 20, 16, attention=attention)).eval()
    ids = torch.randint(3, 20, (2, 6), generator=torch.Generator().manual_seed(1))
    given = {"source": ids, "target": ids[:, 1:], "lengths": torch.tensor([6, 4])}
    examine(model, inputs=given, arguments={"lengths": "lengths"})


def test_another_mask_than_the_stated_one_fails(examine: Examine) -> None:
    layer = MultiHeadAttention(32, 4, attention=AttentionOptions(mask=it.causal())).eval()
    with pytest.raises(pytest.fail.Exception, match="1 mistake: window-missing"):
        examine(layer, mask=it.causal() & it.window(2, 0))
