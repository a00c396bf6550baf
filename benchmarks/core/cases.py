"""What is computed: each case builds its inputs and gives the calls of both sides.

A case is plain data, so that a fresh process can build it again to measure its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import measure
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

import intently as it

DOCUMENT = 512
WINDOW = 256


@dataclass(frozen=True)
class Product:
    """y = A @ v, forward or forward and backward, against scaled_dot_product_attention.

    ``kind`` says what is passed beside q (b, h, t, d), k and v (b, h, t, e): see `_extras`.
    """

    kind: str
    b: int
    h: int
    t: int
    d: int
    e: int
    backward: bool = False

    def warm(self) -> Product:
        """Return the same at a size that costs little, yet runs the same code on every core."""
        return replace(self, t=min(self.t, 1024))

    def calls(self) -> dict[str, measure.Call]:
        """Build the inputs; "torch" and "ours" return y, and with ``backward`` the gradients.

        torch has no call where the dense mask it needs would be too large to build.
        """
        torch.manual_seed(measure.SEED)
        lead = (self.h,) if self.kind == "q, k, v 3-D" else (self.b, self.h)
        widths = (self.d, self.d, self.e)
        q, k, v = (torch.randn(*lead, self.t, n, requires_grad=self.backward) for n in widths)
        for_torch, for_us, bias = _extras(self.kind, self.h, self.t)
        inputs = [q, k, v, *bias] if self.backward else []
        dy = torch.randn_like(v) if self.backward else None

        def whole(forward: Callable[[], Tensor]) -> measure.Call:
            def call() -> tuple[Tensor, ...]:
                y = forward()
                return (y, *torch.autograd.grad(y, inputs, dy)) if inputs else (y,)

            return call

        calls = {"ours": whole(lambda: it.attention(q, k, v, **for_us()))}
        if for_torch is not None:
            calls["torch"] = whole(lambda: F.scaled_dot_product_attention(q, k, v, **for_torch))
        return calls

    def torch_runs(self) -> str:
        """Name the way that PyTorch takes for this call, as PyTorch itself chooses it."""
        small = self.warm()
        lead = (self.h,) if self.kind == "q, k, v 3-D" else (self.b, self.h)
        q, v = torch.randn(*lead, small.t, self.d), torch.randn(*lead, small.t, self.e)
        extras, _, _ = _extras(self.kind, self.h, small.t)
        choice = SDPBackend(torch.ops.aten._fused_sdp_choice(q, q, v, **(extras or {})))
        return {"FLASH_ATTENTION": "fused", "MATH": "formula"}.get(choice.name, choice.name.lower())

    @property
    def random(self) -> bool:
        """Whether two calls differ."""
        return self.kind == "dropout 0.1"

    @property
    def way(self) -> str:
        """The way in words."""
        return "with backward" if self.backward else "forward"

    def mask_bytes(self) -> int:
        """Bytes of the dense mask that torch needs and we do not."""
        return self.t**2 if self.kind in DENSE else 0


@dataclass(frozen=True)
class Statistic:
    """One statistic of a fresh causal matrix of one head, against one fused forward."""

    name: str
    t: int
    d: int

    def warm(self) -> Statistic:
        """Return the same at a size that costs little, yet runs the same code on every core."""
        return replace(self, t=min(self.t, 1024))

    def calls(self) -> dict[str, measure.Call]:
        """Build the inputs; "torch" is the fused forward, "ours" the statistic."""
        torch.manual_seed(measure.SEED)
        q, k, v = (torch.randn(1, 1, self.t, self.d) for _ in range(3))
        read = STATISTICS[self.name]

        def ours() -> tuple[Tensor, ...]:
            found = read(it.attend(q, k, mask=it.causal()))
            return found if isinstance(found, tuple) else (found,)

        return {
            "torch": lambda: (F.scaled_dot_product_attention(q, k, v, is_causal=True),),
            "ours": ours,
        }


STATISTICS: dict[str, Callable[[it.LazyMatrix], Any]] = {
    "entropy()": lambda A: A.entropy(),
    "received()": lambda A: A.received(),
    "pool(256, 256)": lambda A: A.pool(256, 256),
    "top(8)": lambda A: A.top(8),
    "argmax()": lambda A: A.argmax(),
    "distance()": lambda A: A.distance(),
    "mass(16 keys)": lambda A: A.mass(range(16)),
}


def peak(case: Product | Statistic, side: str, threads: int) -> measure.Peak:
    """Peak memory of one side of a case; to be run in a fresh process."""
    torch.set_num_threads(threads)
    case.warm().calls()[side]()
    return measure.peak(case.calls()[side])


def dense_mask(kind: str, t: int) -> Tensor:
    """Build the boolean (t, t) that torch needs, True means attend."""
    i, j = torch.arange(t)[:, None], torch.arange(t)
    if kind == "window(255, 0)":
        return (j <= i) & (j > i - WINDOW)
    same = i // DOCUMENT == j // DOCUMENT
    return same if kind == "segments(ids)" else same & (j <= i)


DENSE: dict[str, Callable[[int], it.Mask]] = {
    "window(255, 0)": lambda t: it.window(WINDOW - 1, 0),
    "segments(ids) & causal()": lambda t: it.segments(torch.arange(t) // DOCUMENT) & it.causal(),
    "segments(ids)": lambda t: it.segments(torch.arange(t) // DOCUMENT),
}


def _extras(
    kind: str, h: int, t: int
) -> tuple[dict[str, Any] | None, Callable[[], dict[str, Any]], list[Tensor]]:
    """Further arguments for torch, for us (masks are made anew in every call), and the bias."""
    if kind in DENSE:
        return {"attn_mask": dense_mask(kind, t)}, lambda: {"mask": DENSE[kind](t)}, []
    match kind:
        case "plain" | "q, k, v 3-D" | "e < d" | "e > d":
            return {}, dict, []
        case "causal":
            return {"is_causal": True}, lambda: {"mask": it.causal()}, []
        case "dropout 0.1":
            return {"dropout_p": 0.1}, lambda: {"dropout": 0.1}, []
        case "mask (h, t, s)":
            mask = (torch.rand(h, t, t) < 0.7) | torch.eye(t, dtype=torch.bool)
            return {"attn_mask": mask}, lambda: {"mask": it.allowed(mask)}, []
        case "bias (t, s)" | "bias (h, t, s)":
            lead = (1, h) if "h" in kind else ()
            bias = torch.randn(*lead, t, t, requires_grad=True)
            return {"attn_mask": bias}, lambda: {"bias": bias}, [bias]
        case "window(1023, 0)":
            return None, lambda: {"mask": it.window(1023, 0)}, []
    raise ValueError(kind)
