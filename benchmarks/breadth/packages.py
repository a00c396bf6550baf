"""What the cases of other packages on PyPI stand on: their inputs, and how a class is found.

A case is the path of a class, the options it is built with (or a function of the class that builds
it), and its arguments. `packages_of_images` and `packages_of_text` hold them.

Install the packages of ``packages.txt`` with ``pip install --no-deps``. A family whose package is
absent is not built, and its row names the package. Not tried, because they are not on PyPI, or not
without other releases of libraries that are here: set_transformer, nanoGPT, minGPT and
Time-Series-Library (repositories only), torchscale (timm), memorizing-transformers and RETRO
(faiss), adjacent-attention-network, enformer and long-short-transformer (older releases), adapters,
OpenNMT-py, nnsight, torchao, optimum-quanto, bitsandbytes, imagen, and the whole model of NUWA.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from benchmarks.breadth.run import Way, stirred

Build = dict[str, Any] | Callable[[Any], nn.Module]
Case = tuple[Build, Any]


def floats(*shape: int) -> Tensor:
    """Draw a tensor, the same for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def whole(*shape: int, most: int = 18) -> Tensor:
    """Draw numbers from 1 to ``most``, the same for the same shape."""
    draw = torch.Generator().manual_seed(sum(shape))
    return torch.randint(1, most + 1, shape, generator=draw)


X, IDS, IMAGE = floats(2, 16, 32), whole(2, 16), floats(2, 3, 32, 32)
MAP = floats(2, 32, 8, 8)

HEADS: dict[str, Any] = {"heads": 4, "dim_head": 8}
PLAIN: dict[str, Any] = {"dim": 32, **HEADS}
DEEP: dict[str, Any] = {**PLAIN, "depth": 2}


def found(path: str) -> Any:
    """The class at a path, ``package.module.Class``."""
    module, name = path.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)


UNUSED = (
    "torchvision", "torchvision.transforms", "torchvision.transforms.functional",
    "torchvision.models", "torchvision.ops", "torchvision.ops.boxes", "torchvision.utils",
    "torchvision.datasets", "torchaudio", "torchaudio.transforms", "numba", "faiss",
)  # fmt: skip
"""What packages import for training and data, and no model here uses."""


def ways(cases: Mapping[str, Case], family: str) -> Iterator[Way]:
    """The one way to run a family of some cases."""
    build, given = cases[family]
    kind = imported(family.split(",")[0])
    torch.manual_seed(0)
    model = stirred(build(kind) if callable(build) else kind(**build))
    given = given() if callable(given) else given
    if isinstance(given, dict):
        yield Way("call", model, partial(model, **given))
    else:
        yield Way("call", model, partial(model, *(given if isinstance(given, tuple) else [given])))


def imported(path: str) -> Any:
    """The class at a path, where what its package does not use here need not be installed."""
    for name in UNUSED:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except ImportError:
                sys.modules[name] = MagicMock(name=name, __spec__=ModuleSpec(name, None))
    return found(path)
