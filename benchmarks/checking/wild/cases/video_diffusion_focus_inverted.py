"""masked_fill gets what may be attended: frames that focus on the present see all others."""

from types import SimpleNamespace

import torch
from einops import rearrange
from torch import Tensor

from wild.program import Adapter, apart, normal, stand_in

meta = {
    "package": "video-diffusion-pytorch",
    "url": "https://github.com/lucidrains/video-diffusion-pytorch/issues/6",
    "kind": "mistake",
    "name": ("mask-inverted",),
    "intent": {"mask": "segments([[0, 1, 2, 3, 4], [0, 0, 0, 0, 0]])"},
    "needs": {
        "affected": ("video-diffusion-pytorch-0.3.12", "rotary-embedding-torch-0.2.6"),
        "mended": ("video-diffusion-pytorch-0.3.19", "rotary-embedding-torch-0.2.6"),
    },
}


def make() -> Adapter:
    """Attention over the frames of a video: the first focuses on the present."""
    stand_in("torchvision", "PIL")
    stand_in("torchvision", transforms=SimpleNamespace(ToTensor=lambda: None), utils=None)
    stand_in("einops_exts", check_shape=None)
    stand_in("einops_exts", rearrange_many=lambda xs, *a, **k: [rearrange(x, *a, **k) for x in xs])
    from video_diffusion_pytorch.video_diffusion_pytorch import Attention

    torch.manual_seed(0)
    module = Attention(16, heads=2, dim_head=8)
    return Adapter(module.eval(), lambda m, x, focus: m(x[:, None], focus_present_mask=focus)[:, 0])


def inputs() -> dict[str, Tensor]:
    """Five frames of two videos."""
    return {"x": normal(2, 5, 16), "focus": torch.tensor([True, False])}


def wrong() -> tuple[bool, float]:
    """Another frame has an effect on one that focuses on the present."""
    attend, given = make(), inputs()
    changed = given["x"].clone()
    changed[0, 3] += 1
    effect = apart(attend(**{**given, "x": changed})[0, 0], attend(**given)[0, 0])
    return effect > 1e-3, effect
