"""Key/value caches: what a decoder remembers, so that each token is computed once."""

from __future__ import annotations

from torch import Tensor

from intently.errors import ArgumentError, build, shape_of


class KeyValueCache:
    """Keys (b, g, s, d) and values (b, g, s, e) of the steps so far; full buffers are doubled.

    With ``keep_queries`` the queries and new keys of every step are kept too, as they came, so that
    the attention of the whole run can be told afterwards (see `history`).

    >>> import torch
    >>> cache = KeyValueCache()
    >>> k, v = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> k, v = cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    >>> cache.length, tuple(k.shape)
    (4, (1, 2, 4, 4))
    """

    def __init__(self, *, keep_queries: bool = False) -> None:
        self.length = 0
        self.keep_queries = keep_queries
        self.history: list[tuple[Tensor, Tensor]] = []
        """One (queries, new keys) a call of the module, rows in the order of that call."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys (b, g, n, d) and values (b, g, n, e); return all of them so far.

        Raises `ArgumentError` where the batch, heads or widths differ from what the cache holds.
        """
        first, last = self.length, self.length + k.shape[-2]
        if self._k is None or self._v is None:
            self._k, self._v = k, v
            self.length = last
            return k, v
        if k.shape[:-2] != self._k.shape[:-2] or k.shape[-1] != self._k.shape[-1]:
            raise build(
                ArgumentError, "k", f"keys (b, g, n, d) that continue {tuple(self._k.shape)}",
                shape_of(k), "the cache belongs to another batch or module",
                "make a new cache, or reorder(…) it to the rows you continue",
            )  # fmt: skip
        if last > self._k.shape[-2]:
            room = max(2 * last, 8)
            self._k, self._v = (_grown(x, first, room) for x in (self._k, self._v))
        self._k[..., first:last, :] = k
        self._v[..., first:last, :] = v
        self.length = last
        return self._k[..., :last, :], self._v[..., :last, :]

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch, in that order, as beams do."""
        if self._k is not None and self._v is not None:
            self._k, self._v = (x.index_select(0, index) for x in (self._k, self._v))


def _grown(x: Tensor, length: int, room: int) -> Tensor:
    grown = x.new_empty((*x.shape[:-2], room, x.shape[-1]))
    grown[..., :length, :] = x[..., :length, :]
    return grown


class FixedCache:
    """Keys and values computed once, for cross-attention: a decoder's context does not grow."""

    def __init__(self, *, keep_queries: bool = False) -> None:
        self.keep_queries = keep_queries
        self.history: list[Tensor] = []
        """The queries of every call."""
        self.kv: tuple[Tensor, Tensor] | None = None

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch."""
        if self.kv is not None:
            self.kv = (self.kv[0].index_select(0, index), self.kv[1].index_select(0, index))
