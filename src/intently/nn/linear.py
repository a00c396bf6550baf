"""Linear maps, y = x Wᵀ + b, by the faster of the two libraries inside PyTorch.

On the CPU PyTorch multiplies float32 matrices with MKL, which takes about twice as long on
processors that are not Intel's. oneDNN, also part of PyTorch, has kernels for all processors, and
is used there. The results agree up to rounding. Everywhere else, and for other dtypes, few rows,
autocast, compiled graphs and the transforms of `torch.func`, it is `F.linear`; within
``torch.backends.mkldnn.flags(enabled=False)`` always.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.core.kernels.operands import forward_mode, in_autocast, transformed

SIZE, WEIGHT = 2**21, 2**18
"""Multiplications, or numbers in a weight, from which on oneDNN makes up for its longer start."""

PLAIN = (Tensor, nn.Parameter)
"""Subclasses may define their own products."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return y (…, o) = x Wᵀ + b for x (…, i), weight (o, i) and bias (o,), as `F.linear` does.

    >>> linear(torch.ones(2, 3), torch.ones(4, 3)).shape
    torch.Size([2, 4])
    """
    if torch.compiler.is_compiling() or not _serves(x, weight):  # graphs serve any size
        return F.linear(x, weight, bias)
    learned = x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    if learned and torch.is_grad_enabled():
        return _LinearProduct.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return product(x, weight, bias)


def xavier(*linears: nn.Linear) -> None:
    """Draw new weights, Xavier uniform (Glorot & Bengio 2010); biases are 0."""
    for each in linears:
        nn.init.xavier_uniform_(each.weight)
        if each.bias is not None:
            nn.init.zeros_(each.bias)


class Linear(nn.Linear):
    """`nn.Linear` by the faster library: the same parameters, checkpoints and hooks."""

    def forward(self, input: Tensor) -> Tensor:
        """Return y (…, o) of x (…, i)."""
        return linear(input, self.weight, self.bias)


class _LinearProduct(torch.autograd.Function):
    """The product and its gradients, which are also such products, and differentiable."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        y = product(x, weight, bias)
        return torch.ops.aten._unsafe_view(y, y.shape)  # not a view: it may be changed in place

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy, (needs_x, needs_weight, needs_bias) = grads[0], ctx.needs_input_grad
        dx = linear(dy, weight.t()) if needs_x else None
        dy = dy.flatten(0, -2)
        dw = _outer(x.flatten(0, -2), dy) if needs_weight else None
        return dx, dw, dy.sum(0) if needs_bias else None


def _outer(x: Tensor, dy: Tensor) -> Tensor:
    """Return dW (o, i) = dyᵀ x for x (n, i), dy (n, o); the narrower operand is transposed."""
    if x.shape[1] <= dy.shape[1]:
        return linear(x.t().contiguous(), dy.t()).t()
    return linear(dy.t().contiguous(), x.t())


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return y (…, o) by oneDNN."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def _serves(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN supports a product and is faster."""
    if weight.numel() < WEIGHT and x.numel() * weight.shape[0] < SIZE:
        return False
    if x.dtype is not torch.float32 or x.device.type != "cpu" or x.ndim < 2 or not x.numel():
        return False
    if type(x) not in PLAIN or type(weight) not in PLAIN or weight.dtype is not torch.float32:
        return False
    if not (prefers_onednn() and torch._C._get_mkldnn_enabled()):  # pyright: ignore[reportAttributeAccessIssue]
        return False
    return not (in_autocast(x.device) or transformed() or forward_mode((x, weight)))


@cache
def prefers_onednn() -> bool:
    """Whether PyTorch would use MKL on a processor that is not Intel's, and oneDNN is available."""
    has = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return has and vendor() not in (None, "GenuineIntel") and known()


def known() -> bool:
    """Whether this PyTorch was built with oneDNN's product."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise")


def vendor() -> str | None:
    """The vendor of the processor, None if the system does not tell."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        with info.open() as lines:
            for line in lines:
                if line.startswith("vendor_id"):
                    return line.split(":", 1)[1].strip()
    return next((x for x in ("GenuineIntel", "AuthenticAMD") if x in platform.processor()), None)
