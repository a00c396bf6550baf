"""Attention with relative positions divides its scores by √c of the model, not √d of a head."""

import torch
from torch import Tensor

from wild.program import Adapter, hollow, normal

meta = {
    "package": "openspeech-core",
    "url": "https://github.com/openspeech-team/openspeech/issues/176",
    "kind": "mistake",
    "name": ("scale-model-width",),
    "intent": {},
    "needs": {"affected": ("openspeech-0.4.0",)},
}


def make() -> Adapter:
    """Four heads of 8."""
    hollow("openspeech", "openspeech.modules")
    from openspeech.modules.relative_multi_head_attention import RelativeMultiHeadAttention

    torch.manual_seed(0)
    module = RelativeMultiHeadAttention(32, num_heads=4, dropout_p=0.0)
    return Adapter(module.eval(), lambda m, x, positions: m(x, x, x, positions))


def inputs() -> dict[str, Tensor]:
    """Frames, and an embedding of each position."""
    return {"x": normal(2, 6, 32), "positions": normal(2, 6, 32, seed=2)}


def wrong() -> tuple[bool, float]:
    """The divisor of the scores, over that of a head."""
    module = make().subject
    off = module.sqrt_dim / module.d_head**0.5
    return off > 1.001, off
