"""Key/value caches, so that a decoder computes each token once.

A cache only saves time: each step equals its row of a full pass, under the same mask and bias,
which keep their meaning (a key's column is its position in the whole text). Gradients pass through
it as through the whole pass; with gradients enabled, every step copies the cache, so generate under
``torch.no_grad()``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.masks import Mask, is_plain_causal
from intently.errors import ArgumentError, build
from intently.foundation.checks import whole_number
from intently.nn.caches.cache import (
    Cache,
    Steps,
    check_continues,
    check_first,
    grown,
    must_copy,
    put,
)
from intently.nn.caches.masks import Written, standing
from intently.nn.caches.rows import check_index, picked
from intently.nn.caches.window import WindowCache

__all__ = ["FixedCache", "KeyValueCache", "WindowCache"]


class KeyValueCache(Steps):
    """Keys (b, g, s, d) and values (b, g, s, e) of the steps so far.

    A full buffer is doubled; with ``size``, the first call allocates a buffer for that many steps.
    Rows may have different lengths: read padded prompts, `crop` to their lengths, and continue.
    With ``keep_queries`` the queries and new keys of every step are also kept, unchanged, so that
    the attention of the whole run can be rebuilt (see `history`). A copy is independent.

    >>> cache = KeyValueCache()
    >>> k, v = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> k, v = cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    >>> cache.length, tuple(k.shape)
    (4, (1, 2, 4, 4))
    """

    def __init__(self, size: int | None = None, *, keep_queries: bool = False) -> None:
        super().__init__(keep_queries)
        self.size = None if size is None else whole_number(size, "size", 1)

    def columns(self, t: int) -> int:
        """How many keys a call of t new steps attends."""
        return self.length + t

    def mask(self, rule: Mask | None, t: int) -> Mask | None:
        """Return the mask of t new steps, with their offsets and without unwritten keys."""
        if self.lengths is None:
            return rule
        written = Written(self.lengths + t)
        if rule is None or (t == 1 and is_plain_causal(rule)):
            return written
        return standing(rule, self.lengths) & written

    def bias(self, rule: Bias, t: int) -> Bias:
        """Return the bias of t new steps."""
        return rule if self.lengths is None else standing(rule, self.lengths)

    def places(self, device: torch.device) -> None:
        """Positions of the keys returned last: None, as they are 0 … s − 1."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys (b, g, n, d) and values (b, g, n, e); return all of them so far.

        Raises `ArgumentError` where the batch, heads or widths differ from what the cache holds,
        if keys and values do not match or ``size`` is too small, and `KindError`
        for another dtype or device.
        """
        if self._k is None or self._v is None:
            check_first(k, v)
        else:
            check_continues(k, v, self._k, self._v)
        first, last = self.length, self.length + k.shape[-2]
        fresh = self._k is not None and must_copy(self._k)
        if self.size is not None and last > self.size:
            raise build(
                ArgumentError,
                "cache",
                f"at most size={self.size} steps",
                last,
                fix="make it larger, or leave size out: it grows then",
            )
        if self._k is None or self._v is None:
            if self.size is not None and not torch.is_grad_enabled():
                k, v = (grown(x, last, self.size) for x in (k, v))
            self._k, self._v = k, v
        elif fresh and self.lengths is None:
            pairs = (self._k, k), (self._v, v)
            self._k, self._v = (torch.cat([old[..., :first, :], x], -2) for old, x in pairs)
        else:
            if fresh or last > self._k.shape[-2]:
                room = self.size or max(2 * last, 8)
                self._k, self._v = (grown(x, first, room) for x in (self._k, self._v))
            if self.lengths is None:
                self._k[..., first:last, :] = k
                self._v[..., first:last, :] = v
            else:
                put(self._k, k, self.lengths)
                put(self._v, v, self.lengths)
        if self.lengths is not None:
            self.lengths = self.lengths + (last - first)
        self.length = last
        return self._k[..., :last, :], self._v[..., :last, :]

    def crop(self, length: int | Tensor) -> None:
        """Forget the steps after the first ``length``, a number or one for each row (b,).

        Raises `ArgumentError` for more steps than there are and `KindError` for non-integers.
        """
        here = self._lengths(length)
        if self._k is None or self._v is None or not len(here):
            return
        self._forget(here)
        self.length = int(here.max())
        self.lengths = None if int(here.min()) == self.length else here
        if self._k.shape[-2] != self.size or self._k.requires_grad:
            # so that the next step copies and leaves returned tensors intact
            self._k, self._v = self._k[..., : self.length, :], self._v[..., : self.length, :]
        self._clear()

    def _clear(self) -> None:
        """Fill zeros after the steps of each row, if rows differ."""
        if self.lengths is None or self._k is None or self._v is None:
            return
        steps = torch.arange(self._k.shape[-2], device=self._k.device)
        held = (steps < self.lengths[:, None])[:, None, :, None]
        self._k, self._v = (torch.where(held, x, 0) for x in (self._k, self._v))

    def _put_back(self, state: tuple[dict[str, object], int]) -> None:
        super()._put_back(state)
        self._clear()


class FixedCache(Cache):
    """Keys and values computed once, for cross-attention: a decoder's context does not grow.

    The first call computes them from the context it is given. Later calls may omit the context; a
    context with the same number of steps is assumed to be the same and not read again.
    """

    def __init__(self, *, keep_queries: bool = False) -> None:
        super().__init__(keep_queries)
        self.history: list[Tensor] = []
        """The queries of every call."""
        self.kv: tuple[Tensor, Tensor] | None = None

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch; raises as `KeyValueCache.reorder`."""
        check_index(index)
        if self.kv is not None:
            self.kv = (picked(self.kv[0], index), picked(self.kv[1], index))
