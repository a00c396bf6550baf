"""Whether attention can be edited is decided by what ran, not by what its code names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import intently as it
from intently import edits
from intently.errors import KernelError

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(0))


class Plain(nn.Module):
    """Two heads of width 8, by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [y.unflatten(-1, (2, 8)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)]

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = (q @ k.mT * 8**-0.5).softmax(-1)
        return self.out((w @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, option: Any = None) -> Tensor:
        return self.mix(*self.heads(x))


class PadsAMask(Plain):
    def forward(self, x: Tensor, option: Any = None) -> Tensor:
        if option is not None:
            option = F.pad(option, (1, 0), value=True)
        return self.mix(*self.heads(x))


class AddsAZeroKey(Plain):
    def forward(self, x: Tensor, option: Any = None) -> Tensor:
        q, k, v = self.heads(x)
        if option is not None:
            k, v = (torch.cat([y, torch.zeros(len(y), 2, 1, 8)], 2) for y in (k, v))
        return self.mix(q, k, v)


class Shifts(Plain):
    def forward(self, x: Tensor, option: Any = None) -> Tensor:
        q, k, v = self.heads(x)
        if option is not None:
            q, k, v = (torch.roll(y, option, 2) for y in (q, k, v))
        return self.mix(q, k, v)


@pytest.mark.parametrize("kind", [PadsAMask, AddsAZeroKey, Shifts])
@pytest.mark.parametrize("edit", [edits.off(heads=[0]), edits.off(rows=[0])])
@pytest.mark.parametrize("inside", [False, True])
def test_a_branch_that_did_not_run_refuses_nothing(
    kind: type[Plain], edit: Any, inside: bool
) -> None:
    module, plain = kind().eval(), Plain().eval()
    model = nn.Sequential(module, nn.Linear(16, 16)) if inside else module
    with torch.no_grad():
        with it.edit(module, edit):
            got = module(X)
        with it.edit(plain, edit):
            expected = plain(X)
        assert not torch.equal(got, plain(X))
        torch.testing.assert_close(got, expected)
        with it.edit(model, edit):
            model(X)


def test_a_mask_that_was_padded_and_a_key_of_zeros_refuse_nothing() -> None:
    with torch.no_grad():
        module = PadsAMask().eval()
        with it.edit(module, edits.off(heads=[0])):
            got = module(X, torch.ones(2, 5, dtype=torch.bool))
        with it.edit(module, edits.off(heads=[0])):
            torch.testing.assert_close(got, module(X))
        module = AddsAZeroKey().eval()
        q, k, v = module.heads(X)
        with it.edit(module, edits.off(heads=[0])):
            got = module(X, 1)
        k, v = (F.pad(y, (0, 0, 0, 1)) for y in (k, v))
        y = (q @ k.mT * 8**-0.5).softmax(-1) @ v
        y[:, 0] = 0
        torch.testing.assert_close(got, module.out(y.transpose(1, 2).flatten(2)))


def test_rows_that_were_shifted_are_edited_where_they_are() -> None:
    module = Shifts().eval()
    with torch.no_grad():
        q, k, v = (torch.roll(y, 2, 2) for y in module.heads(X))
        y = (q @ k.mT * 8**-0.5).softmax(-1) @ v
        y[:, :, 0] = 0
        with it.edit(module, edits.off(rows=[0])):
            got = module(X, 2)
        torch.testing.assert_close(got, module.out(y.transpose(1, 2).flatten(2)))


class Halves(Plain):
    """Weights of some keys meet values in one product, the others in another."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w = (q @ k.mT * 8**-0.5).softmax(-1)
        y = w[..., :3] @ v[..., :3, :] + w[..., 3:] @ v[..., 3:, :]
        return self.out(y.transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    """A layer that can be edited beside one that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.halves = Plain(), Halves()

    def forward(self, x: Tensor) -> Tensor:
        return self.halves(self.plain(x))


def test_effects_leave_out_the_layer_that_cannot_be_edited() -> None:
    model = Mixed().eval()

    def score(y: Tensor) -> Tensor:
        return y.square().sum()

    table = it.effects(model, lambda: model(X), score)
    assert table["layer"] == ["plain", "plain"] and table["head"] == [0, 1]
    assert list(table.left_out) == ["halves"] and "_softmax" in table.left_out["halves"]
    assert "left out: halves: " in str(table) and "left out: halves" in repr(table.strongest())
    with torch.no_grad(), it.edit(model, {"plain": edits.off(heads=[1])}):
        assert table["after"][1] == pytest.approx(float(score(model(X))), rel=1e-5)
    with pytest.raises(KernelError, match="_softmax"):
        it.effects(model.halves, lambda: model.halves(X), score)
    with pytest.raises(KernelError, match="_softmax"):
        it.effects(model, lambda: model(X), score, edits=[{"halves": edits.off(heads=[0])}])
