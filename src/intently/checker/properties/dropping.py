"""Run somebody's code in training mode without dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = frozenset(f"aten::{x}" for x in ("rand", "rand_like", "uniform_", "randn", "randn_like"))


class _WithoutDropout(TorchDispatchMode):
    """Runs dropout as the identity, inside of fused functions too."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in DRAWS:
            raise RuntimeError("it draws random numbers beside dropout, to drop whole layers, say")
        if name == "aten::native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "aten::bernoulli_":  # kept with p (0.5 if not given), then divided by p
            return args[0].fill_(args[1] if len(args) > 1 else 0.5)
        return func(*args, **(kwargs or {}))


@contextmanager
def without_dropout() -> Iterator[None]:
    """Code within runs without dropout, in training mode too."""
    with _WithoutDropout():
        yield
