"""Edits of attention that a model writes out itself equal the same change of its code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently import edits

from ...combinations import pairs

T, HEADS, WIDTH = 6, 4, 16
Change = Callable[[Tensor], Tensor]


class Plain(nn.Module):
    """Attention by hand whose weights (b, h, t, s) pass through ``change``."""

    change: Change | None = None

    def __init__(self) -> None:
        super().__init__()
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        self.out: nn.Module = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        if self.change is not None:
            weights = self.change(weights)
        return self.out(self.merge(weights @ v))

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in x.chunk(3, -1))

    def merge(self, y: Tensor) -> Tensor:
        return y.transpose(1, 2).flatten(2)


class Einsum(Plain):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.unflatten(-1, (HEADS, -1)) for y in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = torch.softmax(scores + torch.zeros(T, T).masked_fill(hidden, -1e9), dim=-1)
        if self.change is not None:
            weights = self.change(weights)
        return self.out(torch.einsum("bhts,bshd->bthd", weights, v).flatten(2))


class Functions(Plain):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = torch.matmul(q, k.mT).mul(q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        weights = nn.functional.dropout(nn.functional.softmax(scores, -1), 0.1, self.training)
        if self.change is not None:
            weights = self.change(weights)
        return self.out(self.merge(torch.matmul(weights, v)))


def renormalised(weights: Tensor) -> Tensor:
    whole = weights.sum(-1, keepdim=True)
    return weights / torch.where(whole > 0, whole, 1)


def of_head(head: int, change: Change) -> Change:
    def changed(w: Tensor) -> Tensor:
        return torch.cat([w[:, :head], change(w[:, head : head + 1]), w[:, head + 1 :]], 1)

    return changed


def without_key_1(w: Tensor) -> Tensor:
    keep = torch.ones(w.shape[-1]).index_fill(0, torch.tensor([1]), 0)
    return renormalised(w * keep)


def threefold_key_2(w: Tensor) -> Tensor:
    return renormalised(w * torch.ones(w.shape[-1]).index_fill(0, torch.tensor([2]), 3))


EDITS = {
    "off": (edits.off(heads=[1]), of_head(1, lambda w: w * 0)),
    "forbid": (edits.forbid([1], heads=2), of_head(2, without_key_1)),
    "favour": (edits.favour([2], 3.0), threefold_key_2),
    "sharpen": (edits.sharpen(2.0, heads=0), of_head(0, lambda w: renormalised(w.square()))),
    "uniform": (edits.uniform(heads=3), of_head(3, lambda w: renormalised((w > 0).to(w)))),
    "weights": (edits.weights(lambda w: w.flip(-1), heads=[0]), of_head(0, lambda w: w.flip(-1))),
}


@pairs({"kind": [Plain, Einsum, Functions], "name": EDITS, "gradients": [False, True]})
def test_edits_equal_changed_code(kind: type[Plain], name: str, gradients: bool) -> None:
    torch.manual_seed(0)
    last = kind()
    model = nn.Sequential(kind(), nn.Tanh(), last).double().eval()
    model.requires_grad_(gradients)
    edit, change = EDITS[name]
    x = torch.randn(2, T, WIDTH, dtype=torch.float64, requires_grad=gradients)
    last.change = change
    expected = model(x)
    last.change = None
    with it.edit(model, {"2": edit}) as done:
        y = model(x)
    assert list(done) == ["2"]
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-8)
    if gradients:
        inputs = (x, *model.parameters())
        found, wanted = (
            torch.autograd.grad(out.square().sum(), inputs, allow_unused=True)
            for out in (y, expected)
        )
        for a, b in zip(found, wanted):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("gradients", [False, True])
def test_heads_that_no_edit_names_stay_the_same_bit_for_bit(gradients: bool) -> None:
    torch.manual_seed(0)
    model = Plain().eval().requires_grad_(gradients)
    model.out = nn.Identity()
    x = torch.randn(2, T, WIDTH)
    before = model(x)
    with it.edit(model, edits.favour([0], 2.0, heads=2, rows=[3])):
        after = model(x)
    changed = (before != after).unflatten(-1, (HEADS, -1)).any(-1).any(0)
    assert changed.nonzero().tolist() == [[3, 2]]
    assert torch.equal(model(x), before)


def test_heads_of_attention_in_blocks_are_off() -> None:
    from transformers import LongformerConfig, LongformerModel

    config = LongformerConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, attention_window=4, max_position_embeddings=64,
    )  # fmt: skip
    model = LongformerModel(config).eval()
    ids = torch.randint(2, 20, (1, 16))
    attention = model.get_submodule("encoder.layer.0.attention.self")

    def without_head_0(module: nn.Module, given: object, result: tuple[Tensor, ...]) -> object:
        y = result[0].clone()
        y[..., :8] = 0
        return (y, *result[1:])

    with torch.no_grad():
        with it.edit(model, edits.off(heads=[0])):
            found = model(ids)[0]
        attention.register_forward_hook(without_head_0)
        torch.testing.assert_close(found, model(ids)[0])


def test_gradients_through_a_checkpoint_are_those_of_the_edited_model() -> None:
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    x = torch.randn(2, T, WIDTH, requires_grad=True)

    def forward(x: Tensor) -> Tensor:
        return layer(x, x, x, need_weights=False)[0]

    grads = []
    for run in (forward, lambda x: checkpoint(forward, x, use_reentrant=False)):
        with it.edit(layer, edits.sharpen(3.0, heads=1)):
            grads += torch.autograd.grad(run(x).square().sum(), x)
    torch.testing.assert_close(*grads)
