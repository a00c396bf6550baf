"""The examiner names mistakes, alone and together, and leaves what is right alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.checker import check
from intently.checker.catalogue import CATALOGUE

HEADS, WIDTH = 4, 8
LEFT_TO_RIGHT = it.causal()


def right_scale(z: Tensor) -> Tensor:
    return z * WIDTH**-0.5


def hide(z: Tensor) -> Tensor:
    return z.masked_fill(~torch.ones(z.shape[-2:]).tril().bool(), -torch.inf)


def over_keys(z: Tensor) -> Tensor:
    return z.softmax(-1)


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def merge(y: Tensor) -> Tensor:
    return y.transpose(1, 2).flatten(2)


class Causal(nn.Module):
    """Causal self-attention, its steps replaceable."""

    def __init__(self, **steps: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        known = {"scale": right_scale, "hide": hide, "weigh": over_keys, "split": split}
        self.steps = {**known, "merge": merge, **steps}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(self.steps["split"], self.qkv(x).chunk(3, -1))
        weights = self.steps["weigh"](self.steps["hide"](self.steps["scale"](q @ k.mT)))
        return self.out(self.steps["merge"](weights @ v))


def lower(z: Tensor, diagonal: int) -> Tensor:
    return torch.ones(z.shape[-2:]).tril(diagonal).bool()


MISTAKES: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "no-scale": {"scale": lambda z: z},
    "scale-one-over-d": {"scale": lambda z: z / WIDTH},
    "scale-model-width": {"scale": lambda z: z / 32**0.5},
    "scale-inverted": {"scale": lambda z: z * WIDTH**0.5},
    "softmax-over-queries": {"weigh": lambda z: z.softmax(-2).nan_to_num(0.0)},
    "softmax-over-heads": {"weigh": lambda z: z.softmax(1).nan_to_num(0.0)},
    "softmax-over-batch": {"weigh": lambda z: z.softmax(0).nan_to_num(0.0)},
    "not-normalised": {"weigh": lambda z: z.exp()},
    "mask-missing": {"hide": lambda z: z},
    "mask-inverted": {"hide": lambda z: z.masked_fill(lower(z, 0), -1e30)},
    "mask-transposed": {"hide": lambda z: z.masked_fill(~lower(z, 0).mT, -torch.inf)},
    "causal-off-by-one": {"hide": lambda z: z.masked_fill(~lower(z, 1), -torch.inf)},
    "mask-after-softmax": {"hide": lambda z: z, "weigh": lambda z: z.softmax(-1).tril()},
    "mask-too-weak": {"hide": lambda z: z - 4.0 * ~lower(z, 0)},
    "mask-boolean-added": {"hide": lambda z: z + lower(z, 0)},
    "split-by-reshape": {"split": lambda x: x.reshape(len(x), HEADS, -1, WIDTH)},
    "merged-by-reshape": {"merge": lambda y: y.reshape(len(y), y.shape[2], -1)},
}


NAN: dict[str, dict[str, Callable[[Tensor], Tensor]]] = {
    "causal-off-by-one": {"hide": lambda z: z.masked_fill(~lower(z, -1), -torch.inf)},
    "mask-inverted": {"hide": lambda z: z.masked_fill(lower(z, 0), -torch.inf)},
    "mask-after-softmax": {"hide": lambda z: z, "weigh": lambda z: hide(z.softmax(-1))},
    "nan-with-keys": {"hide": lambda z: z - torch.inf * ~lower(z, 0)},
}


LATE: list[dict[str, Callable[[Tensor], Tensor]]] = [
    {"hide": lambda z: z, "weigh": lambda z, n=number: z.softmax(-1) + n * ~lower(z, 0)}
    for number in (-1e4, -1e9)
]
EACH = [*MISTAKES.items(), *NAN.items(), *(("mask-after-softmax", x) for x in LATE)]


@pytest.mark.parametrize(("name", "steps"), EACH)
def test_a_mistake_is_named(name: str, steps: dict[str, Callable[[Tensor], Tensor]]) -> None:
    torch.manual_seed(0)
    report = check(Causal(**steps), mask=LEFT_TO_RIGHT)
    assert [x.name for x in report.mistakes] == [name], str(report)
    assert name in CATALOGUE and not report.ok


@pytest.mark.parametrize(
    "names",
    [
        ("no-scale", "merged-by-reshape"),
        ("mask-boolean-added", "merged-by-reshape"),
        ("scale-model-width", "causal-off-by-one"),
        ("no-scale", "softmax-over-queries"),
    ],
)
def test_two_mistakes_are_named_together(names: tuple[str, str]) -> None:
    torch.manual_seed(0)
    steps = {**MISTAKES[names[0]], **MISTAKES[names[1]]}
    report = check(Causal(**steps), mask=LEFT_TO_RIGHT)
    assert {x.name for x in report.mistakes} == set(names), str(report)


def test_a_mask_of_two_rules_that_is_turned_round_as_a_whole() -> None:
    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = lower(q @ k.mT, 0) & ~lower(q @ k.mT, -4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=~allowed)

    report = check(turned, mask=it.causal() & it.window(3, 0))
    assert [x.name for x in report.mistakes] == ["mask-inverted"], str(report)


class Cross(nn.Module):
    """Four heads whose keys come from a context."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.q, self.kv, self.causal = nn.Linear(32, 32), nn.Linear(32, 64), causal

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q, k, v = map(split, (self.q(x), *self.kv(context).chunk(2, -1)))
        return merge(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal))


@pytest.mark.parametrize("causal", [False, True])
def test_cross_attention_has_no_order_to_mask_by(causal: bool) -> None:
    torch.manual_seed(0)
    report = check(Cross(causal))
    assert [x.name for x in report.mistakes] == ["cross-causal"] * causal, str(report)


@pytest.mark.parametrize("blocks", [False, True])
def test_a_window_that_is_cut_into_blocks(blocks: bool) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        near = (i // 2 - j // 2 <= 1) if blocks else (i - j <= 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=near & (j <= i))

    report = check(attend, mask=it.causal() & it.window(2, 0))
    assert [x.name for x in report.mistakes] == ["window-missing"] * blocks, str(report)


def test_what_is_right_has_no_mistake() -> None:
    torch.manual_seed(0)
    report = check(Causal(), mask=LEFT_TO_RIGHT)
    assert report.ok and not report.findings, str(report)
    assert "4 heads of 8, fused as (3, h, d)" in report.computes[0]


def test_dropout_in_evaluation_mode() -> None:
    class Dropped(Causal):
        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(super().forward(x), 0.3)

    assert [x.name for x in check(Dropped().eval()).mistakes] == ["dropout-in-eval"]


def test_a_subject_that_cannot_be_called_is_refused_in_words() -> None:
    with pytest.raises(it.errors.ArgumentError, match="subject: expected a function or a module"):
        check(3)
    with pytest.raises(it.errors.ArgumentError, match=r"inputs: expected an example call"):
        check(lambda a, b: a.nothing)
    with pytest.raises(it.errors.ArgumentError, match=r"arguments\['mask'\]: expected one of"):
        check(Causal(), arguments={"mask": "maybe"})
