"""Inputs without effect, dropout in the wrong place, half types, padding, and what is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently.checker import check

from .reports import names


class Cross(nn.Module):
    def __init__(self, careless: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.careless = careless
        self.q, self.kv, self.out = nn.Linear(16, 16), nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = self.q(x).unflatten(-1, (2, 8)).transpose(1, 2)
        kv = self.kv(x if self.careless else context)
        k, v = kv.unflatten(-1, (2, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("careless", [True, False])
def test_a_context_without_effect(careless: bool) -> None:
    report = check(Cross(careless))
    assert ("cross-ignores-context" in names(report)) is careless, str(report)


class Dropping(nn.Module):
    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where, self.drop, self.qkv = where, nn.Dropout(0.3), nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        z = q @ k.mT * 8**-0.5
        w = (self.drop(z) if self.where == "before" else z).softmax(-1)
        w = self.drop(w) if self.where != "before" else w
        w = self.drop(w) if self.where == "twice" else w
        return (w @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    ("where", "expected"),
    [("before", ["dropout-before-softmax"]), ("twice", ["dropout-twice"]), ("once", [])],
)
def test_dropout_has_its_place(where: str, expected: list[str]) -> None:
    assert names(check(Dropping(where).eval())) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_half_type_inside(dtype: torch.dtype) -> None:
    report = check(lambda q, k, v: (q @ k.mT / 8**0.5).to(dtype).softmax(-1).to(v.dtype) @ v)
    assert ("rounded" in names(report)) is (dtype is torch.bfloat16)


class Positioned(nn.Module):
    """A language model of one layer, with positions counted from the mask or not."""

    def __init__(self, counted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.counted = counted
        self.words, self.places = nn.Embedding(40, 16), nn.Embedding(32, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 40)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        t = input_ids.shape[1]
        at = torch.arange(t)[None]
        if self.counted:
            at = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        x = self.words(input_ids) + self.places(at)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        seen = torch.ones(t, t).tril().bool() & attention_mask[:, None, None].bool()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(y.nan_to_num(0.0).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("counted", [True, False])
def test_padding_on_the_left(counted: bool) -> None:
    ids = torch.randint(3, 40, (2, 6), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    inputs, meant = {"input_ids": ids, "attention_mask": mask}, {"attention_mask": "attend"}
    model = Positioned(counted).eval()
    report = check(model, inputs=inputs, arguments=meant, mask=it.causal())
    assert report.ok, str(report)
    assert ("left-padding-positions" in names(report)) is not counted


@pytest.mark.parametrize("first", [True, False])
def test_batch_and_sequence_exchanged(first: bool) -> None:
    torch.manual_seed(0)

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(16, 2, batch_first=first)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x, x, x, need_weights=False)[0]

    report = check(Mine().eval(), inputs={"x": torch.randn(2, 6, 16)})
    assert ("batch-and-sequence-exchanged" in names(report)) is not first, str(report)


@pytest.mark.parametrize(("read", "said"), [(Tensor.detach, ["gradient-cut"]), (Tensor.clone, [])])
def test_a_gradient_that_is_cut(read: Any, said: list[str]) -> None:
    assert names(check(lambda q, k, v: F.scaled_dot_product_attention(q, read(k), v))) == said


class Block(nn.Module):
    def __init__(self, leaks: bool) -> None:
        super().__init__()
        self.leaks, self.inner = leaks, it.nn.MultiHeadAttention(16, 2)
        self.smooth = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(x, mask=it.causal())
        return x + self.smooth(x.mT).mT if self.leaks else x


@pytest.mark.parametrize("leaking", [None, 1, 2])
def test_the_first_module_that_leaks(leaking: int | None) -> None:
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(n == leaking) for n in range(3))).eval()
    report = check(blocks, inputs={"input": torch.randn(2, 6, 16)}, mask=it.causal())
    where = [f.where for f in report.mistakes if f.name == "leak-later"]
    assert where == ([] if leaking is None else [f"{leaking}"]), str(report)


@pytest.mark.parametrize(
    ("fill", "expected"),
    [(-torch.inf, ["nan-without-keys"]), (-1e9, ["mean-without-keys"]), (None, [])],
)
def test_a_query_that_may_see_nothing(fill: float | None, expected: list[str]) -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor, pad: Tensor) -> Tensor:
        z = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(pad[:, None, None], fill or -torch.inf)
        w = z.softmax(-1)
        return (w.nan_to_num(0.0) if fill is None else w) @ v

    q, k, v = torch.randn(3, 3, 4, 7, 8, generator=torch.Generator().manual_seed(0))
    inputs = {"q": q, "k": k, "v": v, "pad": torch.arange(7) >= torch.tensor([[7], [5], [4]])}
    assert names(check(mine, inputs=inputs, arguments={"pad": "ignore"})) == expected
