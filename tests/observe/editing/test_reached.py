"""Which calls edits change, and what of them: keys that are not there, and dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import intently as it
from intently import edits
from intently.errors import KernelError


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(1))


def layer(dropout: float = 0.0) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(16, 4, dropout=dropout, batch_first=True)


@pytest.mark.parametrize("edit", [edits.forbid([6]), edits.favour([6, 99], 2.0)])
def test_keys_that_no_call_has_are_an_error(x: Tensor, edit: Any) -> None:
    with (
        pytest.raises(KernelError, match="calls that each edit changes"),
        it.edit(model := layer().eval(), edit),
    ):
        model(x, x, x)


@pytest.mark.parametrize("rows", [None, [1]], ids=["by the kernel", "by their weights"])
def test_edited_rows_have_no_dropout(x: Tensor, rows: Any) -> None:
    edit = edits.forbid([2], rows=rows, heads=[1])
    found = []
    for model in (layer(0.5).train(), layer().eval()):
        model.out_proj.weight = nn.Parameter(torch.eye(16))
        with torch.no_grad(), it.edit(model, edit), it.watch(model) as seen:
            y, _ = model(x, x, x, need_weights=False)
        found.append(y.unflatten(-1, (4, 4))[:, slice(None) if rows is None else rows])
        if model.training:
            assert seen.calls[0].verified is None and "dropout" in str(seen.calls[0].why)
    torch.testing.assert_close(found[0][..., 1, :], found[1][..., 1, :])
    assert not torch.allclose(found[0][..., 0, :], found[1][..., 0, :])
