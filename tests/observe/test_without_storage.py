"""Tensors without a storage or numbers of their own in a watched or edited model raise nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

import intently as it
from intently import edits

from ..combinations import each

X = torch.randn(3, 2, 6, 16, generator=torch.Generator().manual_seed(0))


class ByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.mT / 4, -1) @ v


class Fused(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1))


class SparseWeights(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q[0] @ k[0].mT / 4, -1).to_sparse() @ v[0]


class CsrBeside(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x[0]).chunk(3, -1)
        v = torch.stack([torch.eye(6).to_sparse_csr() @ y for y in v])
        return torch.softmax(q @ k.mT / 4, -1) @ v


class MkldnnBeside(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.mT / 4, -1) @ v.contiguous().to_mkldnn().to_dense()


class VmapWithin(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        w = torch.func.vmap(lambda a, b: torch.softmax(a @ b.mT / 4, -1))(q, k)
        return w @ v


def transforms(model: nn.Module) -> dict[str, Callable[[], Any]]:
    func, weights = torch.func, dict(model.named_parameters())

    def loss(w: Any, x: Tensor) -> Tensor:
        return func.functional_call(model, w, (x,)).sum()

    return {
        "plain": lambda: model(X[0]),
        "vmap": lambda: func.vmap(model)(X),
        "grad": lambda: func.grad(loss)(weights, X[0]),
        "jacrev": lambda: func.jacrev(model)(X[0, :1]),
        "jvp": lambda: func.jvp(model, (X[0],), (X[0],)),
        "each sample": lambda: func.vmap(func.grad(loss), (None, 0))(weights, X),
    }


def traces(model: nn.Module) -> dict[str, Callable[[], Any]]:
    """Ways to run a model on tensors that hold no numbers, or that a tracer records."""
    x = X[0]

    def fake() -> Any:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            return model(mode.from_tensor(x)).shape

    def meta() -> Any:
        weights = {name: weight.to("meta") for name, weight in model.named_parameters()}
        return torch.func.functional_call(model, weights, (x.to("meta"),)).shape

    def nested() -> Any:
        made = model(torch.nested.nested_tensor([x[0], x[1, :3]]))
        return torch.nested.to_padded_tensor(made, 0.0)

    return {
        "fake": fake,
        "meta": meta,
        "nested": nested,
        "make_fx": lambda: make_fx(model)(x)(x),
        "linearize": lambda: torch.func.linearize(model, x)[1](x),
        "functionalize": lambda: torch.func.functionalize(model)(x),
        "jit.trace": lambda: torch.jit.trace(model, x, check_trace=False)(x),
    }


def same(one: Any, other: Any) -> None:
    for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
        torch.testing.assert_close(a, b)


class Exponentials(ByHand):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        w = torch.exp(q @ k.mT / 4)
        return w @ v / w.sum(-1, keepdim=True)


KINDS = (ByHand, Fused, Exponentials, SparseWeights, CsrBeside, MkldnnBeside, VmapWithin)


@pytest.mark.filterwarnings("ignore:Sparse CSR:UserWarning")
@each({"kind": KINDS, "name": [*transforms(ByHand()), *traces(ByHand())]}, times=2)
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_nothing_raises_inside_the_model(kind: type[nn.Module], name: str) -> None:
    model = nn.Sequential(kind()).eval()
    run = (transforms(model) | traces(model))[name]
    try:
        expected = run()
    except (RuntimeError, NotImplementedError):
        pytest.skip("it does not run unwatched, either")
    for options in ({}, {"deep": True}):
        with it.watch(model, **options) as seen:
            same(run(), expected)
        assert "0" in str(seen.coverage())  # the layer, or why it was not seen
    try:
        with it.edit(model, {"*": edits.off(rows=[0])}):
            run()
    except it.errors.KernelError as refused:
        assert name != "plain" or kind in (SparseWeights, Exponentials), refused
    same(run(), expected)
