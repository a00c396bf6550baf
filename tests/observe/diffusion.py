"""A tiny UNet of diffusers, and what its plain processor computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor, nn

Change = Callable[[str, int, Tensor], Tensor]
"""What (name, number of the call, weights (b, h, t, s)) become."""


def tiny(first: str = "DownBlock2D", last: str = "UpBlock2D") -> Any:
    """Two blocks down and two up, of which the inner ones attend."""
    torch.manual_seed(0)
    made = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=12,
        attention_head_dim=4,
        down_block_types=(first, "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", last),
    )
    for p in made.parameters():
        nn.init.normal_(p, std=0.3)
    return made.eval()


@contextmanager
def processor(unet: Any, change: Change) -> Iterator[None]:
    """Run the plain processor, whose weights go through ``change``."""
    calls: dict[str, int] = {}

    def asked(original: Any, module: Attention, name: str, *args: Any) -> Tensor:
        number = calls[name] = calls.get(name, -1) + 1
        weights = original(*args).unflatten(0, (-1, module.heads))
        return change(name, number, weights).flatten(0, 1)

    blocks = {name: m for name, m in unet.named_modules() if isinstance(m, Attention)}
    before = unet.attn_processors
    unet.set_attn_processor(AttnProcessor())
    for name, block in blocks.items():
        original: Any = block.get_attention_scores
        vars(block)["get_attention_scores"] = partial(asked, original, block, name)
    try:
        yield
    finally:
        unet.set_attn_processor(before)
        for block in blocks.values():
            del vars(block)["get_attention_scores"]


def image(b: int = 2) -> Tensor:
    """What the UNet denoises."""
    return torch.randn(b, 4, 8, 8, generator=torch.Generator().manual_seed(2))
