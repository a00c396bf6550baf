"""The plain formula in PyTorch, in any dtype, with gradients; and masks written out by hand.

Nothing here uses Intently's own arithmetic, so that both can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import intently as it

EPS = {
    dtype: torch.finfo(dtype).eps
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
}


def plain_weights(
    q: Tensor,
    k: Tensor,
    allow: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Weights as the papers write them, every step in the dtype of q."""
    z = q @ heads_of(k, q).mT * (1 / math.sqrt(max(1, q.shape[-1])) if scale is None else scale)
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    if bias is not None:
        z = z + bias
    if allow is not None:
        z = z.masked_fill(~allow, -math.inf)
    if sinks is not None:
        z = torch.cat([z, sinks[..., None, None].expand(*z.shape[:-1], 1)], -1)
    empty = (z == -math.inf).all(-1, keepdim=True)
    w = torch.softmax(z.masked_fill(empty, 0), -1).masked_fill(empty, 0)
    return w if sinks is None else w[..., :-1]


def plain(q: Tensor, k: Tensor, v: Tensor, allow: Tensor | None = None, **options: Any) -> Tensor:
    """Y = weights @ v, every step in the dtype of q."""
    return plain_weights(q, k, allow, **options) @ heads_of(v, q)


class _FirstTerm(torch.autograd.Function):
    """A softmax whose gradient is p∘dp, the first term of p∘(dp − Σ p·dp)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        w = torch._softmax(z, -1, False)
        ctx.save_for_backward(w)
        return w

    @staticmethod
    def backward(ctx: Any, dw: Tensor) -> Tensor:  # pyright: ignore
        (w,) = ctx.saved_tensors
        return w * dw


def first_terms() -> Any:
    """Within, gradients are those without the second term of the softmax's."""
    return mock.patch.object(torch, "softmax", lambda z, axis: _FirstTerm.apply(z))


def score_of(A: it.Attention) -> float:
    """The largest score in size, before the softcap and after the bias."""
    raw = it.attend(A.q.double(), A.k.double(), scale=A.problem.scale, score=A.problem.score)
    found = [x[...].detach().double() for x in (raw.scores, A.scores)]
    return max(float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 0.0 for x in found)


def limit(exact: Tensor, rough: Tensor, score: float, first: Tensor | None = None) -> float:
    """Contract 7: how far a result may be from ``exact``; ``rough`` is that of the plain formula.

    ``first`` is the first term of a gradient that passes the softmax.
    """
    if not exact.numel():
        return 0.0
    dtype = torch.finfo(rough.dtype)
    rms = float((rough.double() - exact).square().mean().sqrt())
    largest = max(float(x.abs().max()) for x in (exact, exact if first is None else first))
    return 2 * rms + 8 * dtype.eps * (1 + score) * largest + dtype.smallest_normal


def heads_of(x: Tensor, q: Tensor) -> Tensor:
    """Keys or values repeated to the heads of q."""
    if q.ndim < 4 or x.ndim < 3 or not 1 < x.shape[-3] < q.shape[-3]:
        return x
    return x.repeat_interleave(q.shape[-3] // x.shape[-3], -3)


Rule = Callable[[int, int, int, int], bool]
"""Whether batch row b, head h, query i may attend key j."""


def written_out(rule: Rule, b: int, h: int, t: int, s: int) -> Tensor:
    """A rule asked for every entry of a matrix (b, h, t, s)."""
    every = np.ndindex(b, h, t, s)
    return torch.tensor([rule(*at) for at in every]).reshape(b, h, t, s)


def families(b: int, h: int, t: int, s: int) -> dict[str, tuple[it.Mask | None, Rule]]:
    """Masks for a matrix (b=2, h, t, s), each with the same rule in plain Python."""
    rng = np.random.default_rng(t * 1000 + s)
    lengths = [s - 2, max(0, s - 4)]
    offsets = [s - t, 1]
    q_ids, k_ids = rng.integers(0, 3, (b, t)), rng.integers(0, 3, (b, s))
    free = rng.random((b, h, t, s)) < 0.6
    free[:, :, 0] = False
    shared = rng.random((t, s)) < 0.6
    end = s - t
    found: dict[str, tuple[it.Mask | None, Rule]] = {
        "none": (None, lambda b, h, i, j: True),
        "causal": (it.causal(), lambda b, h, i, j: j <= end + i),
        "causal, offset": (it.causal(1), lambda b, h, i, j: j <= 1 + i),
        "causal, first rows empty": (it.causal(-2), lambda b, h, i, j: j <= i - 2),
        "causal, offset of each row": (
            it.causal(torch.tensor(offsets)),
            lambda b, h, i, j: j <= offsets[b] + i,
        ),
        "padding": (it.padding(torch.tensor(lengths)), lambda b, h, i, j: j < lengths[b]),
        "padding, one row empty": (it.padding(torch.tensor([0, s])), lambda b, h, i, j: b == 1),
        "window": (it.window(2, 1), lambda b, h, i, j: -2 <= j - (end + i) <= 1),
        "window, offset": (it.window(1, 0, 2), lambda b, h, i, j: -1 <= j - (2 + i) <= 0),
        "prefix": (it.causal() | it.prefix(2), lambda b, h, i, j: j <= end + i or j < 2),
        "prefix of each row": (it.prefix(torch.tensor([1, 3])), lambda b, h, i, j: j < (1, 3)[b]),
        "segments": (
            it.segments(torch.tensor(q_ids), torch.tensor(k_ids)),
            lambda b, h, i, j: bool(q_ids[b, i] == k_ids[b, j]),
        ),
        "dilated": (it.dilated(2), lambda b, h, i, j: (j - end - i) % 2 == 0),
        "allowed": (it.allowed(torch.tensor(free)), lambda b, h, i, j: bool(free[b, h, i, j])),
        "allowed, 2-D": (it.allowed(torch.tensor(shared)), lambda b, h, i, j: bool(shared[i, j])),
        "causal & padding": (
            it.causal() & it.padding(torch.tensor(lengths)),
            lambda b, h, i, j: j <= end + i and j < lengths[b],
        ),
        "~window": (~it.window(1, 1), lambda b, h, i, j: not -1 <= j - (end + i) <= 1),
        "a tensor | ~causal": (
            it.allowed(torch.tensor(shared)) | ~it.causal(),
            lambda b, h, i, j: bool(shared[i, j]) or j > end + i,
        ),
    }
    if t == s and t % 2 == 0:
        found["grid"] = (
            it.grid(2, t // 2, 1),
            lambda b, h, i, j: (
                abs(i // (t // 2) - j // (t // 2)) <= 1 and abs(i % (t // 2) - j % (t // 2)) <= 1
            ),
        )
    return found


IN_FLOAT64 = tuple(name for name in it.kernels.available() if name != "native")
"""The kernels that compute in float64; test_native.py has the tests of the other one."""


def others(refused: dict[str, str]) -> dict[str, str]:
    """Why faster kernels were passed over, the native one aside, which may not be there."""
    return {name: reason for name, reason in refused.items() if name != "native"}


def multiply(A: it.LazyMatrix, v: Tensor, kernel: str) -> Tensor:
    """``A @ v`` by one kernel; skips float64 for the native one, whose tests are in test_native."""
    if kernel == "native" and A.dtype is torch.float64:
        pytest.skip("the native kernel computes in float32")
    with it.kernels.use(kernel):
        return A @ v


@contextmanager
def serving(kernel: str) -> Iterator[None]:
    """Use one kernel; skip what it cannot serve. The eager kernel serves every call."""
    try:
        with it.kernels.use(kernel):
            yield
    except it.errors.KernelError as reason:
        assert kernel != "eager"
        pytest.skip(str(reason))


def knows_its_entries(mask: it.Mask, g: it.core.masks.Geometry, allow: Tensor) -> None:
    """Check a mask against its rule written out (*g.shape): entries, seen keys, single entries."""
    assert torch.equal(mask.dense(g).expand(g.shape), allow), "dense"
    seen = mask.seen(g)
    seen = torch.ones(g.s, dtype=torch.bool) if seen is None else seen
    assert torch.equal(seen.expand(*g.lead, g.s), allow.any(-2)), "seen"
    assert not mask.allows_all(g) or bool(allow.all()), "allows all"
    every = torch.meshgrid(*[torch.arange(n) for n in g.shape], indexing="ij")
    assert torch.equal(mask.at(g, every[:-2], *every[-2:]).expand(g.shape), allow), "at"


class Largest(TorchDispatchMode):
    """Remembers the most numbers that any tensor made under it holds."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(x, Tensor):
                self.numbers = max(self.numbers, x.untyped_storage().nbytes() // x.itemsize)
        return made


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """A tensor drawn in float64 and rounded, so that every dtype sees nearly the same numbers."""
    draw = np.random.default_rng([seed, *shape]).normal(size=shape)
    return torch.tensor(draw).to(dtype)
