"""A UNet of diffusers: its pixels attending to each other and to the prompt, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from torch import Tensor

from intently.observe import Recording, watch

from .attending import close, watched
from .diffusion import image, processor, tiny

WORDS = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(1))
REAL = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
BLOCKS = tuple(
    f"{name}.transformer_blocks.0"
    for name in (
        "down_blocks.1.attentions.0",
        "mid_block.attentions.0",
        "up_blocks.0.attentions.0",
        "up_blocks.0.attentions.1",
    )
)


@pytest.fixture
def unet() -> Any:
    return tiny()


@contextmanager
def weights_of(unet: Any) -> Iterator[dict[str, list[Tensor]]]:
    """What the plain processor computes, (b, h, t, s)."""
    found: dict[str, list[Tensor]] = {}

    def kept(name: str, number: int, weights: Tensor) -> Tensor:
        found.setdefault(name, []).append(weights)
        return weights

    with processor(unet, kept):
        yield found


def close_call(seen: Recording, name: str, index: int, weights: Tensor) -> None:
    close(seen[name, index], weights.view(seen[name, index].shape))


@torch.no_grad()
@pytest.mark.parametrize("padded", [False, True])
def test_self_and_cross(unet: Any, padded: bool) -> None:
    given = {"encoder_attention_mask": REAL} if padded else {}
    seen = watched(unet, image(), 10, WORDS, **given)
    with weights_of(unet) as weights:
        unet(image(), 10, WORDS, **given)
    names = {f"{block}.{name}" for block in BLOCKS for name in ("attn1", "attn2")}
    assert set(seen.layers) == set(weights) == names
    assert seen[f"{BLOCKS[0]}.attn1"].shape == (2, 4, 16, 16)
    assert seen[f"{BLOCKS[0]}.attn2"].shape == (2, 4, 16, 5)
    for name, (expected,) in weights.items():
        close_call(seen, name, 0, expected)


def denoised(unet: Any, chosen: tuple[int, ...], layers: str) -> tuple[Tensor, list[Recording]]:
    """An image after six steps, and the recordings of the chosen ones."""
    scheduler: Any = DDIMScheduler()
    scheduler.set_timesteps(6)
    x, recordings = image(), []
    for n, t in enumerate(scheduler.timesteps):
        with watch(unet, layers=layers) if n in chosen else nullcontext() as seen:
            noise = unet(x, t, WORDS).sample
        recordings.append(seen)
        x = scheduler.step(noise, t, x).prev_sample
    return x, [recordings[n] for n in chosen]


@torch.no_grad()
def test_chosen_denoising_steps(unet: Any) -> None:
    y, none = denoised(unet, (), "*.attn2")
    found, some = denoised(unet, (1, 4), "*.attn2")
    assert not none and torch.equal(found, y)
    with weights_of(unet) as weights:
        denoised(unet, (), "*.attn2")
    for n, seen in zip((1, 4), some):
        assert seen.layers == tuple(f"{block}.attn2" for block in BLOCKS)
        for name in seen.layers:
            close_call(seen, name, 0, weights[name][n])


@torch.no_grad()
def test_a_whole_loop_keeps_each_step_by_its_number(unet: Any) -> None:
    with watch(unet, layers="mid_block") as seen:
        y, _ = denoised(unet, (), "")
    assert torch.equal(y, denoised(unet, (), "")[0])
    with weights_of(unet) as weights:
        denoised(unet, (), "")
    assert all(entry.verified for entry in seen.calls), seen.coverage()
    for name in seen.layers:
        assert name.startswith("mid_block.") and len(seen.entries(name)) == 6
        for n in range(6):
            close_call(seen, name, n, weights[name][n])


@torch.no_grad()
def test_the_plain_processor_is_seen_on_request(unet: Any) -> None:
    unet.set_attn_processor(AttnProcessor())
    with weights_of(unet) as weights:
        unet(image(), 10, WORDS)
    seen = watched(unet, image(), 10, WORDS, deep=True)
    assert set(seen.layers) == set(weights)
    for name, (expected,) in weights.items():
        close_call(seen, name, 0, expected)
