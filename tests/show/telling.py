"""Numbers for stories, and what a story says of them."""

from __future__ import annotations

import torch

from intently.core.matrix import Dense
from intently.show import animate


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shapes(story: animate.Animation, scene: int = -1) -> dict:
    """The shapes of a scene by key; 0 is the first after the opening."""
    return {shape.key: shape for shape in story.scenes[1:][scene].shapes}


def written(story: animate.Animation, prefix: str, scene: int = -1) -> list[str]:
    found = shapes(story, scene)
    count = sum(key.startswith(f"{prefix}.") for key in found)
    return [found[f"{prefix}.{n}"].text for n in range(count)]


TEXT = ("because", "it", "was", "tired")


def empty() -> Dense:
    return Dense(torch.zeros(3, 3), labels=(("a", "b", "c"), ("a", "b", "c")))
