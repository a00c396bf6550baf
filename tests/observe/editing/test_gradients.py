"""Edited models are trained, run in half precision and in every mode, and undone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently import edits

from ...combinations import each

H, T, D = 4, 6, 4
X = torch.randn(2, T, H * D, generator=torch.Generator().manual_seed(1))
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()


class Attend(nn.Module):
    """Causal attention to q, k and v (b, h, t, d)."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.attend = Attend()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


def drawn(heads: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(2, heads, T, D, dtype=dtype, requires_grad=True)


EVERY: dict[str, edits.Edit] = {
    "off": edits.off(heads=[1]),
    "off in rows": edits.off(heads=[1], rows=[2, 5]),
    "forbid": edits.forbid([1], rows=slice(2, None), heads=[0, 2]),
    "only": edits.look_only_at([0, 1, 3], heads=[3]),
    "favour": edits.favour([0, 2], 3.0, rows=[1, 4]),
    "sharpen": edits.sharpen(1.7, heads=[2]),
    "uniform": edits.uniform(rows=[3, 4]),
    "previous": edits.previous(heads=[0, 1]),
    "weights": edits.weights(lambda w: w**2, heads=[1], rows=[0, 3]),
    "several": edits.sharpen(0.5) & edits.forbid([0], rows=[3]) & edits.uniform(heads=[3]),
    "rows without keys": edits.look_only_at([5], rows=[1, 2]),
}


@each({"groups": [H, 2], "name": EVERY})
def test_gradients_of_queries_keys_and_values(name: str, groups: int) -> None:
    attend = Attend()

    def edited(*given: Tensor) -> Tensor:
        with it.edit(attend, EVERY[name]):
            return attend(*given)

    given = drawn(H), drawn(groups), drawn(groups)
    assert torch.autograd.gradcheck(edited, given, fast_mode=True)
    edited(*given).square().sum().backward()
    for x in given:
        assert x.grad is not None and bool(x.grad.isfinite().all())


@pytest.mark.parametrize("name", EVERY)
def test_what_is_not_named_stays_the_same_bit_for_bit(name: str) -> None:
    """The rows and heads that an edit does not touch, and their gradients from their own rows."""
    attend, given = Attend(), [drawn(H, torch.float32) for _ in range(3)]
    touched = torch.zeros(H, T, dtype=torch.bool)
    expected = attend(*given)
    with it.edit(attend, EVERY[name]), it.watch(attend, gradients=True) as seen:
        found = attend(*given)
    edit = EVERY[name]
    for one in [edit.left.left, edit.left.right, edit.right] if name == "several" else [edit]:
        heads = one.heads if one.heads is not None else range(H)
        rows = range(T)[one.rows] if isinstance(one.rows, slice) else one.rows or range(T)
        touched[torch.tensor([*heads])[:, None], [*rows]] = True
    assert torch.equal(found[:, ~touched], expected[:, ~touched])
    assert bool((found != expected)[:, touched].any())
    own = torch.autograd.grad(found[:, ~touched].sum(), given, allow_unused=True)
    plain = torch.autograd.grad(expected[:, ~touched].sum(), given)
    for x, y in zip(own, plain):
        torch.testing.assert_close(torch.zeros_like(y) if x is None else x, y)
    A = seen.calls[0].matrix()
    torch.testing.assert_close(A.dense() @ given[2], found)
    assert "weights after" in str(seen.coverage())


@each({"name": EVERY, "mode": [torch.no_grad, torch.inference_mode, torch.enable_grad]}, times=2)
def test_modes(name: str, mode: Any) -> None:
    block = Block().eval()
    with it.edit(block, EVERY[name]):
        expected = block(X)
    with mode(), it.edit(block, EVERY[name]):
        found = block(X)
    torch.testing.assert_close(found, expected)
    assert found.requires_grad == (mode is torch.enable_grad)
    with mode():
        assert torch.equal(block(X), Block.forward(block, X))


@each({"name": EVERY, "dtype": [torch.bfloat16, torch.float16]})
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    attend = Attend()
    given = [drawn(H, torch.float32).detach().to(dtype) for _ in range(3)]
    with it.edit(attend, EVERY[name]):
        found, exact = attend(*given), attend(*(x.double() for x in given))
    plain = (attend(*given).double() - attend(*(x.double() for x in given))).abs().max()
    assert found.dtype is dtype
    limit = 2 * plain + 8 * torch.finfo(dtype).eps * exact.abs().max()
    assert (found.double() - exact).abs().max() <= limit


@pytest.mark.parametrize("name", EVERY)
def test_autocast(name: str) -> None:
    block = Block().eval()
    with it.edit(block, EVERY[name]):
        exact = block(X)
        with torch.autocast("cpu", torch.bfloat16):
            found = block(X)
    assert found.dtype is torch.bfloat16
    assert (found - exact).abs().max() < 0.05 * exact.abs().max()


def test_training_steps_with_an_edit_lower_the_loss_of_the_edited_model() -> None:
    block = Block()
    optimiser = torch.optim.Adam(block.parameters(), 0.02)
    losses = []
    for _ in range(20):
        with it.edit(block, edits.forbid([0], rows=slice(1, None))):
            loss = (block(X) - X).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.6 * losses[0]
    assert all(p.grad is not None for p in block.parameters())
