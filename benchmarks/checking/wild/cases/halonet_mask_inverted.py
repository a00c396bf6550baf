"""masked_fill gets the mask of real positions: border blocks attend to the padding around them."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, normal

meta = {
    "package": "halonet-pytorch",
    "url": "https://github.com/lucidrains/halonet-pytorch/issues/4",
    "kind": "mistake",
    "name": ("mask-inverted",),
    "intent": {},
    "needs": {"affected": ("halonet-0.0.4",), "mended": ("halonet-0.0.5",)},
}


def make() -> Adapter:
    """Blocks of 2 × 2 pixels that see one pixel around them."""
    from halonet_pytorch import HaloAttention

    torch.manual_seed(0)
    module = HaloAttention(dim=16, block_size=2, halo_size=1, dim_head=8, heads=2)
    return Adapter(module.eval(), lambda m, x: m(x))


def inputs() -> dict[str, Tensor]:
    """One image."""
    return {"x": normal(1, 16, 4, 4)}


def wrong() -> tuple[bool, float]:
    """A neighbour in the same block has no effect."""
    attend, x = make(), inputs()["x"]
    changed = x.clone()
    changed[:, :, 0, 1] += 1.0
    effect = apart(attend(x=changed)[:, :, 0, 0], attend(x=x)[:, :, 0, 0])
    return effect < 1e-6, effect
