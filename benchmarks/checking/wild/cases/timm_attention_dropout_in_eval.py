"""Fused attention hands its dropout to scaled_dot_product_attention in evaluation mode too."""

import torch
from torch import Tensor

from wild.program import Adapter, apart, hollow, normal, stand_in

meta = {
    "package": "timm",
    "url": "https://github.com/huggingface/pytorch-image-models/pull/1978",
    "kind": "mistake",
    "name": ("dropout-in-eval",),
    "intent": {},
    "needs": {"affected": ("timm-0.9.7",), "mended": ("timm-0.9.8",)},
}


def make() -> Adapter:
    """The attention of a vision transformer."""
    hollow("timm", "timm.models")
    stand_in("timm.data", "timm.data.constants", "torchvision", "torchvision.ops")
    stand_in("torchvision.ops.misc")
    stand_in(*(f"timm.models.{x}" for x in ("_builder", "_manipulate", "_registry", "_features")))
    stand_in(
        "timm.models._registry",
        generate_default_cfgs=lambda cfgs: cfgs,
        register_model=lambda f: f,
        register_model_deprecations=lambda *args, **kwargs: None,
    )
    from timm.models.vision_transformer import Attention

    torch.manual_seed(0)
    module = Attention(32, num_heads=4, qkv_bias=True, attn_drop=0.3)
    return Adapter(module.eval(), lambda m, x: m(x))


def inputs() -> dict[str, Tensor]:
    """Two sequences of patches."""
    return {"x": normal(2, 6, 32)}


def wrong() -> tuple[bool, float]:
    """Two equal calls differ."""
    attend, given = make(), inputs()
    off = apart(attend(**given), attend(**given))
    return off > 1e-6, off
