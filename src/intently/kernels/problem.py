"""What a kernel is asked: the operands of one attention matrix, checked once.

z = softcap(scale · score(q, k)) + bias, −∞ where masked; weights = exp z / (Σ exp z + exp sink).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from intently.masks import Geometry, Mask, is_plain_causal
from intently.scores import Score


class Problem:
    """q (…, h, t, d), k (…, g, s, d) and everything that turns them into weights."""

    __slots__ = (
        "bias", "dropout", "geometry", "k", "mask", "q", "scale", "score", "sinks", "softcap",
    )  # fmt: skip

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        score: Score,
        mask: Mask | None,
        bias: Tensor | None,
        scale: float | Tensor,
        softcap: float | None,
        sinks: Tensor | None,
        dropout: float,
        lead: tuple[int, ...],
    ) -> None:
        self.q, self.k, self.score = q, k, score
        self.bias, self.scale, self.softcap, self.sinks = bias, scale, softcap, sinks
        self.dropout = dropout
        self.geometry = Geometry(lead, q.shape[-2], k.shape[-2], q.device)
        self.mask = None if mask is None or mask.allows_all(self.geometry) else mask

    @property
    def compute_dtype(self) -> torch.dtype:
        """float32 for the half types, else the dtype of q (contract 7)."""
        return torch.float32 if self.q.dtype in (torch.float16, torch.bfloat16) else self.q.dtype

    @property
    def groups(self) -> int:
        """How many query heads share one key head."""
        if self.q.ndim < 4 or self.k.ndim < 3 or self.k.shape[-3] < 2:
            return 1
        return max(1, self.q.shape[-3] // self.k.shape[-3])

    def is_causal(self) -> bool:
        """Whether the mask is plain `causal()` on a square matrix."""
        g = self.geometry
        return self.mask is not None and g.t == g.s and is_plain_causal(self.mask)

    def per_query_head(self, x: Tensor) -> Tensor:
        """Keys or values (…, g, s, d) repeated to the query heads (…, h, s, d)."""
        n = self.groups
        return x if n == 1 else x.repeat_interleave(n, -3)

    def without_unseen(self, x: Tensor) -> Tensor:
        """Keys or values with zeros where no query may look, so that NaN in padding is harmless."""
        if self.mask is None or x.shape[-2] == 0:
            return x
        seen = self.mask.seen(self.geometry)
        if seen is None:
            return x
        return torch.where(self._fit(seen, x)[..., None], x, 0)

    def _fit(self, seen: Tensor, x: Tensor) -> Tensor:
        """Reduce ``seen`` (…, s) over the axes that x (…, s, d) shares between rows or heads."""
        want = tuple(x.shape[:-1])
        if self.groups > 1 and seen.ndim > 1 and seen.shape[-2] == self.q.shape[-3]:
            seen = seen.unflatten(-2, (want[-2], self.groups)).any(-2)
        while seen.ndim > len(want):
            seen = seen.any(0)
        for axis in range(-seen.ndim, -1):
            if want[axis] == 1 and seen.shape[axis] > 1:
                seen = seen.any(axis, keepdim=True)
        return seen

    def allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        """The mask for some rows and columns (all where None), None where nothing is forbidden."""
        if self.mask is None:
            return None
        g = self.geometry
        rows = torch.arange(g.t, device=g.device) if rows is None else rows
        cols = torch.arange(g.s, device=g.device) if cols is None else cols
        return self.mask.allow(g, rows, cols)

    def logits(
        self, rows: Tensor | None = None, cols: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits z (…, rows, cols) before the mask, and the mask (True means attend) or None."""
        dtype = self.compute_dtype
        q = self.q if rows is None else self.q.index_select(-2, rows)
        k = self.without_unseen(self.k)
        k = k if cols is None else k.index_select(-2, cols)
        z = self.score(q.to(dtype), self.per_query_head(k).to(dtype)) * self.scale
        if self.softcap is not None:
            z = self.softcap * torch.tanh(z / self.softcap)
        if self.bias is not None:
            z = z + _pick(self.bias, rows, cols).to(dtype)
        return z, self.allow(rows, cols)

    def matrix_bytes(self) -> int:
        """Bytes of the whole (…, t, s) matrix in the dtype it is computed in."""
        size = torch.finfo(self.compute_dtype).bits // 8
        return math.prod(self.geometry.shape) * size

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor the matrix depends on."""
        found = (self.q, self.k, self.bias, self.sinks, self.scale)
        own = tuple(x for x in found if isinstance(x, Tensor)) + self.score.tensors()
        return own if self.mask is None else own + self.mask.tensors()


def _pick(bias: Tensor, rows: Tensor | None, cols: Tensor | None) -> Tensor:
    if rows is not None and bias.ndim > 1 and bias.shape[-2] > 1:
        bias = bias.index_select(-2, rows)
    if cols is not None and bias.ndim > 0 and bias.shape[-1] > 1:
        bias = bias.index_select(-1, cols)
    return bias
