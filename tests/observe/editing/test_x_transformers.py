"""Edits of x-transformers, fused and written out, equal hooks and another softmax in its code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import intently as it
from intently import edits

x_transformers = pytest.importorskip(
    "x_transformers", reason="x-transformers is not installed: pip install x-transformers"
)
IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
NAME = "attn_layers.layers.2.1.attend"
HEADS, WIDTH = 4, 4


def model(kind: str, flash: bool, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    stack = getattr(x_transformers, kind)(
        dim=16, depth=2, heads=HEADS, attn_dim_head=WIDTH, attn_flash=flash, **options
    )
    made = x_transformers.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=stack)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return made.eval()


CASES: list[tuple[str, bool, dict[str, Any]]] = [
    (kind, flash, options)
    for kind in ("Encoder", "Decoder")
    for flash in (True, False)
    for options in ({}, {"attn_kv_heads": 2}, {"alibi_pos_bias": True})
]


@pytest.mark.parametrize(("kind", "flash", "options"), CASES)
@torch.no_grad()
def test_keys_that_are_forbidden(kind: str, flash: bool, options: dict[str, Any]) -> None:
    net, written = model(kind, flash, options), model(kind, False, options)
    attend = written.get_submodule(NAME)
    for head in range(HEADS):
        with it.edit(net, {NAME: edits.forbid([0, 2], rows=[3, 5], heads=[head])}):
            found = net(IDS)

        def softmax(z: Tensor, head: int = head) -> Tensor:
            z = z.clone()
            for row in (3, 5):
                z[:, head, row, [0, 2]] = -torch.inf
            return F.softmax(z, -1)

        attend.attn_fn = softmax
        torch.testing.assert_close(found, written(IDS), atol=1e-5, rtol=1e-5)
        assert (found - net(IDS)).abs().max() > 1e-4
