"""Without the fused kernel, hidden keys are set to −∞ after the softmax: all outputs are NaN."""

import torch
from torch import Tensor

from wild.program import Adapter, hollow, normal, stand_in

meta = {
    "package": "timm",
    "url": "https://github.com/huggingface/pytorch-image-models/pull/2236",
    "kind": "mistake",
    "name": ("mask-after-softmax",),
    "intent": {"arguments": {"mask": "attend"}},
    "needs": {"affected": ("timm-1.0.7",), "mended": ("timm-1.0.8",)},
}


def make() -> Adapter:
    """The attention of EVA, with its plain formula."""
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
    from timm.models.eva import EvaAttention

    torch.manual_seed(0)
    module = EvaAttention(32, num_heads=4)
    module.fused_attn = False
    return Adapter(module.eval(), lambda m, x, mask: m(x, attn_mask=mask))


def inputs() -> dict[str, Tensor]:
    """Two rows; the second has two positions of padding."""
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = False
    return {"x": normal(2, 6, 32), "mask": mask}


def wrong() -> tuple[bool, float]:
    """The row with padding is not finite."""
    bad = ~make()(**inputs())[1].isfinite()
    return bool(bad.any()), float(bad.sum())
