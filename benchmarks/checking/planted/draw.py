"""What is drawn for a subject: its shapes, weights and spelling, all from one seed and a name."""

from __future__ import annotations

import hashlib
from random import Random
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Draw:
    """Everything random about one subject; the same seed and name give the same.

    ``b`` is the batch size, ``h`` the query heads (two key heads can be shared in two different
    ways), ``g`` the key heads of grouped attention, ``d`` the width of a head, ``c`` of the model,
    ``t`` the queries, ``s`` the keys where there are more of them, ``window`` the keys in reach.
    """

    def __init__(self, seed: int, name: str) -> None:
        self.seed, self.name = seed, name
        self.b, self.h, self.g = self.one_of("b", 2, 3), self.one_of("h", 4, 6), 2
        self.d, self.t = self.one_of("d", 6, 8), self.one_of("t", 7, 8, 9)
        self.c, self.s = self.h * self.d, self.t + self.one_of("s", 2, 3, 4)
        self.window = self.one_of("window", 2, 3, 4)

    def number(self, about: str) -> int:
        """A number below 2⁶⁰ that depends on the seed, the name and the word."""
        text = f"{self.seed}:{self.name}:{about}"
        return int(hashlib.sha256(text.encode()).hexdigest()[:15], 16)

    def random(self, about: str) -> Random:
        """A generator of its own for each word."""
        return Random(self.number(about))

    def one_of(self, about: str, *choices: int) -> int:
        """One of the choices."""
        return self.random(about).choice(choices)

    def tensor(self, about: str, *shape: int) -> Tensor:
        """Normal numbers, float32."""
        return torch.randn(*shape, generator=self._generator(f"{about}{shape}"))

    def ids(self, about: str, vocabulary: int, *shape: int) -> Tensor:
        """Token ids from 1 (0 pads)."""
        return torch.randint(1, vocabulary, shape, generator=self._generator(f"{about}{shape}"))

    def lengths(self, b: int, most: int) -> Tensor:
        """Lengths of b sequences: the first is whole, the others are shorter."""
        random = self.random(f"lengths {b} {most}")
        return torch.tensor([most] + [random.randint(2, most - 2) for _ in range(b - 1)])

    def padding(self, b: int, s: int) -> Tensor:
        """(b, s), True where a key pads; the first sequence is whole."""
        return torch.arange(s) >= self.lengths(b, s)[:, None]

    def trained(self, module: M) -> M:
        """Give the module weights as large as those of trained models, and hand it back in eval.

        Fresh layers attend almost evenly, which hides what a mistake would do in use.
        """
        generator = self._generator("weights")
        gain = self.random("gain").uniform(1.0, 1.6)
        with torch.no_grad():
            for name, p in module.named_parameters():
                noise = torch.randn(p.shape, generator=generator)
                if p.ndim > 1:
                    p.copy_(noise * gain / p.shape[1:].numel() ** 0.5)
                else:
                    p.copy_(1 + 0.2 * noise if name.endswith("weight") else 0.3 * noise)
        return module.eval()

    def _generator(self, about: str) -> torch.Generator:
        return torch.Generator().manual_seed(self.number(about))
