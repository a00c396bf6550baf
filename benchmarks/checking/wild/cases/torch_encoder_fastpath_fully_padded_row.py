"""A row that is all padding is NaN on one path, and finite on the other."""

import torch
from torch import Tensor, nn

from wild.program import Adapter, normal

meta = {
    "package": "torch",
    "url": "https://github.com/pytorch/pytorch/issues/24816",
    "kind": "hazard",
    "name": ("nan-without-keys",),
    "intent": {"arguments": {"mask": "ignore"}},
    "needs": {"affected": ()},
}


def make() -> Adapter:
    """A layer whose fused path runs without gradients."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    return Adapter(layer, lambda m, x, mask: m(x, src_key_padding_mask=mask))


def inputs() -> dict[str, Tensor]:
    """Two rows; the second is all padding."""
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[1] = True
    return {"x": normal(2, 6, 16), "mask": mask}


def wrong() -> tuple[bool, float]:
    """One of the paths gives NaN."""
    attend, given = make(), inputs()
    fused = attend(**given).isnan()
    with torch.enable_grad():
        plain = attend(**given).isnan()
    return bool(fused.any() | plain.any()), float(fused.sum() + plain.sum())
