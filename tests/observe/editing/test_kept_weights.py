"""Edits of weights that no one product and softmax gives equal the same change of the code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import intently as it
from intently import edits
from intently.errors import AbsentError, ArgumentError, KernelError

from ...combinations import pairs
from ...messages import refused
from .test_by_hand import EDITS, HEADS, WIDTH, Plain, T

D = WIDTH // HEADS


def causal(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)


class Kept(Plain):
    """Attention whose weights (b, h, t, s) are ``made`` of scores and pass through ``change``."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        w = self.made(causal(q @ k.mT / D**0.5))
        return self.meet(w if self.change is None else self.change(w), v)

    def made(self, z: Tensor) -> Tensor:
        return z.softmax(-1)

    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return self.out(self.merge(w @ v))


class Squares(Kept):
    def made(self, z: Tensor) -> Tensor:
        w = z.softmax(-1) ** 2
        return w / w.sum(-1, keepdim=True)


class Powers(Kept):
    def made(self, z: Tensor) -> Tensor:
        e = 2**z
        return e / e.sum(-1, keepdim=True)


class OffByOne(Kept):
    """Rows sum to less than 1; keys may be hidden."""

    hidden: tuple[int, ...] = ()

    def made(self, z: Tensor) -> Tensor:
        e = z.exp().index_fill(-1, torch.tensor(self.hidden).long(), 0)
        return e / (1 + e.sum(-1, keepdim=True))


class Summed(Kept):
    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return self.out(self.merge((w[..., None] * v[:, :, None]).sum(-2)))


class Twice(Kept):
    """One softmax whose weights meet two values."""

    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return self.out(self.merge(w @ v + torch.tanh(w @ v.flip(-1))))


class Joined(Kept):
    """The product adds up heads, on top of something else."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super(Joined, self).forward(row) for row in x.split(1)])

    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return torch.addbmm(v.new_ones(T, D), w[0], v[0], alpha=0.5)[None]


class Divided(Kept):
    """Exponentials meet the values before they are divided by their sum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        if self.change is not None:
            return self.meet(self.change(causal(q @ k.mT / D**0.5).softmax(-1)), v)
        e = causal(q @ k.mT / D**0.5).exp()
        return self.out(self.merge(e @ v / e.sum(-1, keepdim=True)))


class Linear(Kept):
    """Features of queries times features of keys; the weights are never made."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        q, k = (nn.functional.elu(y) + 1 for y in (q, k))
        if self.change is not None:
            w = q @ k.mT
            return self.meet(self.change(w / w.sum(-1, keepdim=True)), v)
        y = torch.einsum("bhtd,bhde->bhte", q, torch.einsum("bhsd,bhse->bhde", k, v))
        return self.out(self.merge(y / (q @ k.sum(-2)[..., None])))


class Overwriting(Kept):
    """Softmax in place, and the product into a buffer where no gradients flow."""

    def made(self, z: Tensor) -> Tensor:
        e = (z - z.amax(-1, keepdim=True)).exp_()
        return e.div_(e.sum(-1, keepdim=True)) if not z.requires_grad else z.softmax(-1)

    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        if w.requires_grad:
            return super().meet(w, v)
        return self.out(self.merge(torch.matmul(w, v, out=torch.empty_like(v))))


KINDS = [Squares, Powers, Summed, Twice, Joined, Divided, Linear, Overwriting]


def pair(kind: type[Plain], name: str) -> tuple[nn.Module, nn.Module, edits.Edit]:
    """A model to edit, the same with its code changed, and the edit."""
    models = []
    for change in (None, EDITS[name][1]):
        torch.manual_seed(0)
        layer = kind()
        layer.change = change
        models.append(nn.Sequential(nn.Linear(WIDTH, WIDTH), layer).double().eval())
    return *models, EDITS[name][0]


@pairs({"kind": KINDS, "name": EDITS, "gradients": [False, True]})
def test_edits_equal_changed_code(kind: type[Plain], name: str, gradients: bool) -> None:
    model, changed, edit = pair(kind, name)
    x, y = (torch.randn(2, T, WIDTH, generator=seed()).double() for _ in range(2))
    x.requires_grad_(gradients), y.requires_grad_(gradients)
    model.requires_grad_(gradients), changed.requires_grad_(gradients)
    expected = changed(y)
    with it.edit(model, edit) as done:
        found = model(x)
    assert list(done) == ["1"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)
    if gradients:
        one, two = (torch.autograd.grad(z.sin().sum(), at) for z, at in ((found, x), (expected, y)))
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_rows_that_sum_to_less_than_one_keep_what_they_lack() -> None:
    model = OffByOne().eval()
    x = torch.randn(2, T, WIDTH, generator=seed())
    with torch.no_grad():
        with it.edit(model, edits.forbid([1, 2])):
            found = model(x)
        model.hidden = (1, 2)
        torch.testing.assert_close(found, model(x))


def seed() -> torch.Generator:
    return torch.Generator().manual_seed(1)


@pytest.mark.parametrize("kind", [Plain, *KINDS[:6]])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_edited_calls_again(kind: type[Plain], reentrant: bool) -> None:
    model, changed, edit = pair(kind, "off")
    grads = []
    with it.edit(model, edit):
        x = torch.randn(2, T, WIDTH, generator=seed()).double().requires_grad_()
        checkpoint(model, x, use_reentrant=reentrant).sin().sum().backward()
        grads.append(x.grad)
    x = torch.randn(2, T, WIDTH, generator=seed()).double().requires_grad_()
    changed(x).sin().sum().backward()
    torch.testing.assert_close(grads[0], x.grad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(dtype: torch.dtype, autocast: bool) -> None:
    model, changed, edit = pair(Squares, "weights")
    kept = torch.float32 if autocast else dtype
    x = torch.randn(2, T, WIDTH, generator=seed()).to(kept)
    model.to(kept), changed.to(kept)
    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=autocast):
        with it.edit(model, edit):
            found = model(x)
        expected = changed(x)
    assert found.dtype is dtype
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)


def test_the_edges_of_a_graph() -> None:
    """Weights over edges meet sources and are added up at targets."""
    source, target = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 1, 0, 0, 2, 3, 3]])

    class Graph(nn.Module):
        scale = 1.0

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.values, self.score = nn.Linear(8, 8), nn.Linear(16, 2)

        def forward(self, x: Tensor) -> Tensor:
            e = self.score(torch.cat([x[source], x[target]], -1)).exp()
            whole = torch.zeros(5, 2).index_add_(0, target, e)
            w = e / whole[target]
            w = torch.cat([w[:, :1] * self.scale, w[:, 1:]], -1)
            v = self.values(x).unflatten(-1, (2, 4))
            y = torch.zeros(5, 2, 4).index_add_(0, target, w[..., None] * v[source])
            return y.flatten(1)

    model, grads, results = Graph(), [], []
    edit = edits.weights(lambda w: 0.5 * w, heads=[0])
    for scale, way in ((1.0, it.edit(model, edit)), (0.5, it.watch(model))):
        model.scale = scale
        x = torch.randn(5, 8, generator=seed()).requires_grad_()
        with way:
            results.append(model(x))
        grads += torch.autograd.grad(results[-1].sin().sum(), x)
    torch.testing.assert_close(*results)
    torch.testing.assert_close(*grads)


class Halves(Kept):
    """Some keys meet values in one product, the others in another."""

    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return self.out(self.merge(w[..., :3] @ v[..., :3, :] + w[..., 3:] @ v[..., 3:, :]))


class OwnBackward(Kept):
    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return self.out(self.merge(Product.apply(w, v)))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(w, v)
        return w @ v

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        w, v = ctx.saved_tensors
        return dy @ v.mT, w.mT @ dy


class Mapped(Kept):
    def meet(self, w: Tensor, v: Tensor) -> Tensor:
        return self.out(self.merge(torch.func.vmap(torch.matmul)(w, v)))


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Halves, "aten._softmax"), (OwnBackward, "autograd.Function"), (Mapped, "torch.func")],
)
def test_what_prevents_an_edit_is_named(kind: type[Plain], said: str) -> None:
    model, _, edit = pair(kind, "off")
    x = torch.randn(2, T, WIDTH, generator=seed()).double().requires_grad_()
    with pytest.raises(KernelError, match=said), it.edit(model, edit):
        model(x)


@pytest.mark.parametrize("part", ["queries", "keys"])
def test_weights_alone_have_no_queries_and_keys_to_replace(part: Any) -> None:
    x = torch.randn(2, T, WIDTH, generator=seed())
    model, plain = nn.Sequential(Squares()).eval(), nn.Sequential(Kept()).eval()
    with torch.no_grad(), it.watch(model) as seen:
        model(x)
    refused(
        lambda: edited(model, edits.replace(seen, part), x),
        ArgumentError,
        "part: expected weights of 0 that follow from its queries and keys; got weights "
        "alone. What watch keeps as weights has neither, nor has what another edit made. Replace "
        'queries and keys first, or part="weights".',
    )
    told = f"A.{part[0]}: expected a matrix of queries and keys, as attend makes it; got Dense"
    with pytest.raises(AbsentError, match=told):
        edited(plain, edits.replace(seen, part), x)


def edited(model: nn.Module, edit: edits.Edit, x: Tensor) -> Tensor:
    with torch.no_grad(), it.edit(model, edit):
        return model(x)


def test_a_function_with_its_own_backward_is_edited_where_no_gradients_flow() -> None:
    model, changed, edit = pair(OwnBackward, "off")
    x = torch.randn(2, T, WIDTH, generator=seed()).double()
    with torch.no_grad():
        with it.edit(model, edit):
            found = model(x)
        torch.testing.assert_close(found, changed(x))


def test_errors_of_edits_reach_the_user_through_operators() -> None:
    """Python's operators turn a TypeError into one of their own."""
    from intently.errors import KindError

    model, _, _ = pair(Squares, "off")
    with pytest.raises(KindError, match="rows"), it.edit(model, edits.off(rows=[1.5])):  # type: ignore[list-item]
        model(torch.randn(2, T, WIDTH).double())


@pytest.mark.parametrize("part", ["outputs", "values"])
def test_outputs_and_values_of_several_products_are_not_replaced(part: Any) -> None:
    model, x = nn.Sequential(Twice()).eval(), torch.randn(2, T, WIDTH, generator=seed())
    with torch.no_grad(), it.watch(model, gradients=True) as seen:
        model(x)
    with pytest.raises(KernelError, match="in several, of which a watch keeps the first"):
        edited(model, edits.replace(seen, part), x)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("outer", [False, True])
def test_a_deep_watch_around_or_within_changes_nothing(gradients: bool, outer: bool) -> None:
    model, changed, edit = pair(Plain, "off")
    x = torch.full((2, T, WIDTH), 0.5).double()
    x[1] = torch.nan  # which meets no other row of the batch
    ways = [it.edit(model, edit), it.watch(model, deep=True)]
    with torch.set_grad_enabled(gradients), ways[outer], ways[not outer]:
        found = model(x)
    torch.testing.assert_close(found, changed(x), equal_nan=True)
