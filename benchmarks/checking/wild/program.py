"""What the cases share: an adapter, stand-ins for what is not installed, and small measures."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class Adapter(nn.Module):
    """A subject that is called with keywords: ``fn(subject, **keywords)`` gives the tensor.

    ``m`` is the library's own module, None for functions.
    """

    def __init__(self, subject: Any, fn: Callable[..., Tensor]) -> None:
        super().__init__()
        self.m = subject if isinstance(subject, nn.Module) else None
        self._held = (subject,)
        self.fn = fn

    @property
    def subject(self) -> Any:
        """What ``fn`` is called with."""
        return self._held[0]

    def forward(self, **given: Any) -> Tensor:
        return self.fn(self.subject, **given)


def mended() -> bool:
    """Whether a case that corrects itself should."""
    return os.environ.get("WILD_VARIANT") == "mended"


# --- imports ------------------------------------------------------------------------------------


def release(inside: str) -> Path:
    """The folder on the path in which a file or a folder of a package stands."""
    return next(Path(p) for p in sys.path if (Path(p) / inside).exists())


def loaded(file: str) -> Any:
    """A module from its file alone, without the package around it."""
    name = "wild_" + Path(file).stem
    spec = importlib.util.spec_from_file_location(name, release(file) / file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def hollow(*packages: str) -> None:
    """Packages whose modules can be imported, while their own ``__init__`` does not run."""
    root = release(packages[0])
    for name in packages:
        module = sys.modules[name] = ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]


class _StandIn(ModuleType):
    """A module in which every name is a class that takes anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


def stand_in(*names: str, **attributes: Any) -> None:
    """Stand-ins for modules that are not installed and do not matter here."""
    for name in names:
        module = sys.modules.get(name)
        if module is None:
            module = sys.modules[name] = _StandIn(name)
            module.__path__ = []
        for attribute, value in attributes.items():
            setattr(module, attribute, value)


def old_transformers() -> None:
    """Let old releases import beside newer ones of what they check the version of."""
    import numpy as np
    import torch.utils._pytree as pytree

    unchecked: Any = ModuleType("transformers.dependency_versions_check")
    unchecked.dep_version_check = lambda *args, **kwargs: None
    sys.modules[unchecked.__name__] = unchecked
    if not hasattr(pytree, "_register_pytree_node"):
        pytree._register_pytree_node = pytree.register_pytree_node  # type: ignore[attr-defined]
    for kind in (bool, int, float, object):
        if kind.__name__ not in np.__dict__:
            setattr(np, kind.__name__, kind)


# --- tensors ------------------------------------------------------------------------------------


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Normal random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tokens(b: int, n: int, vocabulary: int = 50) -> Tensor:
    """Random token ids (b, n)."""
    draw = torch.Generator().manual_seed(1)
    return torch.randint(3, vocabulary, (b, n), generator=draw)


def flipped(ids: Tensor, j: int, vocabulary: int = 50) -> Tensor:
    """The same tokens with another at position j."""
    out = ids.clone()
    out[:, j] = (out[:, j] + 7) % vocabulary
    return out


def apart(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / (b.abs().max() + 1e-12))


def leak(model: Callable[..., Tensor], ids: Tensor, j: int = 6) -> float:
    """How much outputs before token j change with it."""
    return apart(model(input_ids=flipped(ids, j))[:, :j], model(input_ids=ids)[:, :j])


def randomised(module: nn.Module) -> nn.Module:
    """Matrices drawn anew, large enough to see a difference, and in evaluation mode."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in module.parameters():
            if p.ndim >= 2:
                p.copy_(torch.randn(p.shape, generator=draw) * 1.3 / p.shape[-1] ** 0.5)
    return module.eval()
