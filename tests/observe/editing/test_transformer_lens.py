"""Edits of GPT-2 equal the hooks of TransformerLens."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently import edits

from ...observe.decoders import drawn

bridge = pytest.importorskip(
    "transformer_lens.model_bridge.sources._bridge_builder",
    reason="TransformerLens 4 is not installed: pip install transformer_lens",
    exc_type=ImportError,
)
IDS = torch.randint(2, 64, (2, 7), generator=torch.Generator().manual_seed(1))
OTHERS = torch.randint(2, 64, (2, 7), generator=torch.Generator().manual_seed(2))
HEADS, LAYERS = 4, 2


@pytest.fixture(scope="module")
def both() -> tuple[Any, Any]:
    """A tiny GPT-2 and the same in TransformerLens."""
    model, other = drawn("gpt2", "sdpa"), drawn("gpt2", "eager")
    hooked = bridge.build_bridge_from_module(other, "GPT2LMHeadModel", hf_config=other.config)
    return model, hooked


@torch.no_grad()
def same(both: tuple[Any, Any], layer: int, edit: Any, hook: str, change: Any) -> None:
    model, hooked = both
    with it.edit(model, {f"transformer.h.{layer}.attn": edit}):
        found = model(IDS).logits.log_softmax(-1)
    name = f"blocks.{layer}.attn.{hook}"
    expected = hooked.run_with_hooks(IDS, fwd_hooks=[(name, change)]).log_softmax(-1)
    size = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * size)
    assert (found - model(IDS).logits.log_softmax(-1)).abs().max() > 1e-4 * size


def off(x: Tensor, hook: Any, head: int) -> Tensor:
    x[:, :, head] = 0
    return x


def hide(z: Tensor, hook: Any, head: int) -> Tensor:
    for row in (3, 5):
        z[:, head, row, [0, 2]] = -torch.inf
    return z


def patch(x: Tensor, hook: Any, head: int, other: Tensor) -> Tensor:
    x[:, 2:5, head] = other[:, 2:5, head]
    return x


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("head", range(HEADS))
def test_every_head(both: tuple[Any, Any], layer: int, head: int) -> None:
    model, hooked = both
    same(both, layer, edits.off(heads=[head]), "hook_z", partial(off, head=head))
    edit = edits.forbid([0, 2], rows=[3, 5], heads=[head])
    same(both, layer, edit, "hook_attn_scores", partial(hide, head=head))
    with torch.no_grad(), it.watch(model, gradients=True) as seen:
        model(OTHERS)
    _, cache = hooked.run_with_cache(OTHERS)
    for part, hook in (("outputs", "hook_z"), ("queries", "hook_q"), ("values", "hook_v")):
        edit = edits.replace(seen, part, heads=[head], rows=slice(2, 5))  # type: ignore[arg-type]
        other = cache[f"blocks.{layer}.attn.{hook}"]
        same(both, layer, edit, hook, partial(patch, head=head, other=other))
