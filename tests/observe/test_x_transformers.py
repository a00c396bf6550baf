"""x-transformers, fused and plain, against the maps that it returns itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently import edits

from .attending import Softmaxes, close, watched

x_transformers = pytest.importorskip(
    "x_transformers", reason="x-transformers is not installed: pip install x-transformers"
)

IDS = torch.randint(0, 50, (2, 7), generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[True] * 5 + [False] * 2, [True] * 7])
NAMES = ("attn_layers.layers.0.1.attend", "attn_layers.layers.2.1.attend")


def model(kind: str, flash: bool, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    stack = getattr(x_transformers, kind)(
        dim=16, depth=2, heads=4, attn_dim_head=4, attn_flash=flash, **options
    )
    made = x_transformers.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=stack)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return made.eval()


FUSED: list[dict[str, Any]] = [{}, {"attn_kv_heads": 2}, {"alibi_pos_bias": True}]
PLAIN: list[dict[str, Any]] = [
    *FUSED,
    {"rel_pos_bias": True},
    {"attn_softclamp_logits": True},
    {"attn_qk_norm": True},
]


@pytest.mark.parametrize("kind", ["Encoder", "Decoder"])
@pytest.mark.parametrize(
    ("flash", "options"), [(True, x) for x in FUSED] + [(False, x) for x in PLAIN]
)
def test_every_layer(kind: str, flash: bool, options: dict[str, Any]) -> None:
    """The fused path is seen as it is, the formula written out with ``deep=True``."""
    with torch.no_grad():
        seen = watched(model(kind, flash, options), IDS, mask=MASK, deep=not flash)
        _, maps = model(kind, False, options)(IDS, mask=MASK, return_attn=True)
    assert seen.layers == NAMES
    for entry, weights in zip(seen.calls, maps):
        assert entry.source == ("functional" if flash else "by hand")
        close(entry, weights, MASK)


@torch.no_grad()
def test_talking_heads_and_views_of_layers_are_seen_by_default() -> None:
    """Heads are mixed by a layer; the weights of layers are made by a Softmax in a Sequential."""
    seen = watched(model("Encoder", False, {"attn_post_talking_heads": True}), IDS, mask=MASK)
    assert seen.layers == NAMES
    layered = model("Encoder", True, {"integrate_layers": True})
    with Softmaxes() as real:
        layered(IDS, mask=MASK)
    seen = watched(layered, IDS, mask=MASK)
    by_hand = [entry for entry in seen.calls if entry.source == "by hand"]
    for entry, weights in zip(by_hand, real.found, strict=True):
        rows = weights.movedim(0, 2).flatten(0, -2)  # each step reads values of its own
        torch.testing.assert_close(entry.matrix().dense().flatten(0, -2), rows)
    assert not any("layers" in name for name in seen.coverage().unseen)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("options", [{"attn_kv_heads": 2}, {"alibi_pos_bias": True}])
@torch.no_grad()
def test_keys_that_an_edit_forbids(flash: bool, options: dict[str, Any]) -> None:
    """Another softmax in its code gives the same."""
    net, written = model("Decoder", flash, options), model("Decoder", False, options)
    attend = written.get_submodule(NAMES[1])
    for head in range(4):
        with it.edit(net, {NAMES[1]: edits.forbid([0, 2], rows=[3, 5], heads=[head])}):
            found = net(IDS)

        def softmax(z: Tensor, head: int = head) -> Tensor:
            z = z.clone()
            for row in (3, 5):
                z[:, head, row, [0, 2]] = -torch.inf
            return z.softmax(-1)

        attend.attn_fn = softmax
        torch.testing.assert_close(found, written(IDS), atol=1e-5, rtol=1e-5)
        assert (found - net(IDS)).abs().max() > 1e-4
