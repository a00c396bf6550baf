"""What is drawn for a subject: its shapes, weights and spelling, all from one seed and a name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Draw:
    """Everything random about one subject; the same seed and name give the same."""

    seed: int
    name: str

    def number(self, about: str) -> int:
        """A number below 2⁶³ that depends on the seed, the name and the word."""
        text = f"{self.seed}:{self.name}:{about}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1

    def random(self, about: str) -> Random:
        """A generator of its own for each word."""
        return Random(self.number(about))

    def one_of(self, about: str, *choices: int) -> int:
        """One of the choices."""
        return self.random(about).choice(choices)

    @cached_property
    def b(self) -> int:
        """Batch size, at least 2."""
        return self.one_of("b", 2, 3)

    @cached_property
    def h(self) -> int:
        """Query heads: 4 or 6, so that two key heads can be shared in two different ways."""
        return self.one_of("h", 4, 6)

    @cached_property
    def g(self) -> int:
        """Key heads of grouped attention."""
        return 2

    @cached_property
    def d(self) -> int:
        """Head width."""
        return self.one_of("d", 6, 8)

    @property
    def c(self) -> int:
        """Model width."""
        return self.h * self.d

    @cached_property
    def t(self) -> int:
        """Query steps."""
        return self.one_of("t", 7, 8, 9)

    @cached_property
    def s(self) -> int:
        """Key steps where they are others than queries'."""
        return self.t + self.one_of("s", 2, 3, 4)

    @cached_property
    def window(self) -> int:
        """Keys within reach of a query."""
        return self.one_of("window", 2, 3, 4)

    def tensor(self, about: str, *shape: int) -> Tensor:
        """Normal numbers, float32."""
        return torch.randn(*shape, generator=self._generator(about))

    def ids(self, about: str, vocabulary: int, *shape: int) -> Tensor:
        """Token ids from 1 (0 pads)."""
        return torch.randint(1, vocabulary, shape, generator=self._generator(about))

    def lengths(self, b: int, most: int) -> Tensor:
        """Lengths of b sequences: the first is whole, the others are shorter."""
        random = self.random(f"lengths {b} {most}")
        return torch.tensor([most] + [random.randint(2, most - 2) for _ in range(b - 1)])

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
                elif name.endswith("weight"):
                    p.copy_(1 + 0.2 * noise)
                else:
                    p.copy_(0.3 * noise)
        return module.eval()

    def _generator(self, about: str) -> torch.Generator:
        return torch.Generator().manual_seed(self.number(about))
