"""Small models that attend, for the tests of watching."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import intently as it
from intently.core.matrix import LazyMatrix
from intently.observe import Recording
from intently.observe.recording.recording import Entry

PLAIN = (F.scaled_dot_product_attention, nn.Module.__call__, nn.Module._call_impl)
"""In a tuple, because names bound to them are replaced, those of this file too."""


class SelfAttention(nn.Module):
    """Heads of one fused projection, so that q, k and v share a storage; x (b, t, c)."""

    def __init__(self, width: int = 32, heads: int = 4, **options: object) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.options = heads, {"is_causal": True, **options}

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(F.scaled_dot_product_attention(*self.split(x), **self.options))

    def merge(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).flatten(2))

    def weights(self, x: Tensor) -> Tensor:
        """The plain formula."""
        q, k, _ = self.split(x)
        t = q.shape[-2]
        z = q @ k.mT / q.shape[-1] ** 0.5
        mask = self.options.get("attn_mask")
        if self.options["is_causal"]:
            mask = torch.ones(t, t, dtype=torch.bool).tril()
        if isinstance(mask, Tensor):
            z = z.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else z + mask
        return z.softmax(-1)


class FromImport(SelfAttention):
    """Calls the name that this file imported."""

    def forward(self, x: Tensor) -> Tensor:
        return self.merge(scaled_dot_product_attention(*self.split(x), is_causal=True))


class HoldsFunction(SelfAttention):
    """Calls the function that its class holds, and another that it holds itself."""

    static = staticmethod(F.scaled_dot_product_attention)

    def __init__(self) -> None:
        super().__init__()
        self.own = F.scaled_dot_product_attention

    def forward(self, x: Tensor) -> Tensor:
        y = self.static(*self.split(x), is_causal=True)
        return self.merge(y + self.own(*self.split(x), is_causal=True))


class HoldsPartial(SelfAttention):
    """Calls the function through partials and containers, its own and those of its class."""

    static = partial(F.scaled_dot_product_attention, is_causal=True)
    table = {"sdpa": F.scaled_dot_product_attention}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.own = partial(F.scaled_dot_product_attention, is_causal=True)
        self.several = [F.scaled_dot_product_attention, self.own]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        y = self.static(q, k, v) + self.own(q, k, v) + self.several[1](q, k, v)
        y = y + self.table["sdpa"](q, k, v, is_causal=True)
        return self.merge(y + self.several[0](q, k, v, is_causal=True))


class Attend(nn.Module):
    """Attention alone; the keys are the values."""

    def forward(self, q: Tensor, k: Tensor, **options: Any) -> Tensor:
        return F.scaled_dot_product_attention(q, k, k, enable_gqa=True, **options)


class Decoder(nn.Module):
    """Self-attention, causal where it reads several steps, and cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attend(), Attend()

    def forward(self, q: Tensor, k: Tensor, states: Tensor) -> None:
        past = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        self.own(q, k, attn_mask=past.tril(k.shape[-2] - q.shape[-2]) if len(past) > 1 else None)
        self.cross(q + 1, states)


class Stack(nn.Module):
    """Layers with a residual."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def stack(count: int = 3) -> Stack:
    return Stack(*[SelfAttention() for _ in range(count)])


class Unnormalised(nn.Module):
    """Scores that nothing makes a whole meet values."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).sigmoid() @ v


class Softmaxes(TorchDispatchMode):
    """Writes down what every softmax of PyTorch returns."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        if func.__name__.split(".")[0] in ("_softmax", "_safe_softmax", "_log_softmax"):
            self.found.append(result.exp() if "log" in func.__name__ else result.clone())
        return result


def watched(
    model: nn.Module, *args: Any, deep: bool = False, verified: bool = True, **given: Any
) -> Recording:
    """The recording of a call, whose output is the same, bit for bit, with and without it."""
    plain = model(*args, **given)
    with it.watch(model, deep=deep) as seen:
        found = model(*args, **given)
    for a, b in zip(tree_leaves(found), tree_leaves(plain), strict=True):
        assert not isinstance(b, Tensor) or torch.equal(a, b)
    assert not verified or all(entry.verified for entry in seen.calls), str(seen.coverage())
    return seen


def close(
    found: LazyMatrix | Entry, expected: Tensor, rows: Tensor | None = None, gap: float = 1e-5
) -> None:
    """Weights are close to the expected ones, in the rows (b, t) that are True."""
    matrix = found.matrix() if isinstance(found, Entry) else found
    real = torch.tensor(True) if rows is None else rows.bool()[:, None, :, None]
    torch.testing.assert_close(matrix.dense() * real, expected * real, atol=gap, rtol=gap)


def attended(q: Tensor, k: Tensor, *mask: Tensor, **options: Any) -> Recording:
    """What a watch with these options sees of one call of PyTorch's function."""
    with it.watch(**options) as seen:
        F.scaled_dot_product_attention(q, k, k, *mask)
    return seen


def in_a_thread(function: Callable[..., object], *args: object) -> None:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def seen_by(model: nn.Module, *args: Any, **options: Any) -> Recording:
    """What a watch with these options sees of one call of a model."""
    with it.watch(model, **options) as seen:
        model(*args)
    return seen
