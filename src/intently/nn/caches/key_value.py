"""Key/value caches, so that a decoder computes each token once.

A cache only saves time: each step equals its row of a full pass, under the same mask and bias,
which keep their meaning (a key's column is its position in the whole text). Gradients pass through
it as through the whole pass; with gradients enabled, every step copies the cache, so generate under
``torch.no_grad()``.
"""

from __future__ import annotations

import copy as copies
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.masks import Mask, is_plain_causal
from intently.core.masks.geometry import integers
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import whole_number
from intently.nn.caches.masks import Written, standing
from intently.nn.caches.rows import check_index, picked


class Cache:
    """Base of all caches. A copy, shallow or deep, shares no mutable state."""

    def __init__(self, keep_queries: bool) -> None:
        self.keep_queries = keep_queries
        self.history: list[Any] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        vars(twin).update({name: _copied(x, memo) for name, x in vars(self).items()})
        return twin

    def __copy__(self) -> Cache:
        return copies.deepcopy(self)

    def _state(self) -> tuple[dict[str, Any], int]:
        return vars(self).copy(), len(self.history)

    def _put_back(self, state: tuple[dict[str, Any], int]) -> None:
        """Restore ``state`` after a call that may have written."""
        before, told = state
        vars(self).update(before)
        del self.history[told:]


def _copied(x: Any, memo: dict[int, Any]) -> Any:
    if isinstance(x, Tensor):
        return x.clone()
    if type(x) in (list, tuple):
        return type(x)(_copied(part, memo) for part in x)
    return copies.deepcopy(x, memo)


class AsBefore:
    """Context manager that restores a cache, or those of all layers, if its block raises.

    >>> from intently.nn import KeyValueCache
    >>> cache = KeyValueCache()
    >>> try:
    ...     with AsBefore(cache):
    ...         k, v = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    ...         raise ValueError
    ... except ValueError:
    ...     cache.length
    0
    """

    def __init__(self, cache: Any) -> None:
        self._states = [(each, each._state()) for each in _parts(cache)]

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for cache, state in self._states:
                cache._put_back(state)


def _parts(cache: Any) -> Sequence[Cache]:
    """The caches in a cache, in several of them, or in the ``layers`` of a model's cache."""
    if isinstance(cache, Cache):
        return (cache,)
    if isinstance(cache, list | tuple):
        return [each for part in cache for each in _parts(part)]
    return _parts(getattr(cache, "layers", ()))


class GrowingCache(Cache):
    """A growing cache: keys (b, g, s, d) and values (b, g, s, e)."""

    def __init__(self, keep_queries: bool) -> None:
        super().__init__(keep_queries)
        self.length = 0
        """Steps so far of the longest row, dropped ones included."""
        self.lengths: Tensor | None = None
        """Steps of each row (b,), None while all rows have the same."""
        self.history: list[tuple[Tensor, Tensor]] = []
        """One (queries, new keys) a call of the module, rows in the order of that call.

        `crop` takes from its end as many steps as every row forgets.
        """
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def offset(self) -> int | Tensor:
        """Position of the next step: a number, or (b,) where rows differ."""
        return self.length if self.lengths is None else self.lengths

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch, in that order, as beams do.

        Raises `ArgumentError` for rows out of range and `KindError` for anything but integers.
        """
        if self._k is None or self._v is None:
            check_index(index)
            return
        k, v = picked(self._k, index), self._v.index_select(0, index)
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, index)
        self._k, self._v = k, v

    def _totals(self, like: Tensor) -> Tensor:
        """Steps so far of each row (b,)."""
        return torch.full_like(like, self.length) if self.lengths is None else self.lengths

    def _lengths(self, length: int | Tensor) -> Tensor:
        """Return ``length`` for each row (b,), at most the steps there are."""
        here = integers(length, "length")
        if self._k is None:
            if bool(here.any()):
                raise build(ArgumentError, "length", "0", str(here.tolist()), "the cache is empty")
            return here.new_zeros(0)
        rows = len(self._k)
        if isinstance(length, int):
            here = here.expand(rows)
        if tuple(here.shape) != (rows,):
            raise build(ArgumentError, "length", f"an int, or shape (b={rows},)", shape_of(here))
        here = here.to(self._k.device)
        held = self._totals(here)
        if bool(((here > held) | (here < 0)).any()):
            expected = f"at most the steps there are, {held.tolist()}"
            raise build(ArgumentError, "length", expected, here.tolist())
        return here

    def _forget(self, here: Tensor) -> None:
        """Drop history steps that no row has after its first ``here`` (b,) steps."""
        steps = int((self._totals(here) - here).min())
        if not bool(here.any()):
            self.history = []
        while steps > 0 and self.history:
            q, k = self.history.pop()
            left = q.shape[-2] - steps
            if left > 0:
                self.history.append((q[..., :left, :], k[..., :left, :]))
            steps = -left


def must_copy(x: Tensor) -> bool:
    """Whether a buffer must not be written: gradients may need it, or it is an inference tensor."""
    return torch.is_grad_enabled() or (x.is_inference() and not torch.is_inference_mode_enabled())


def grown(x: Tensor, length: int, room: int) -> Tensor:
    """Return the first steps of x in a new buffer with room for more, which are zeros."""
    found = x.new_zeros((*x.shape[:-2], room, x.shape[-1]))
    found[..., :length, :] = x[..., :length, :]
    return found


def put(buffer: Tensor, x: Tensor, at: Tensor) -> None:
    """Write x (b, g, n, d) at the steps ``at`` (b,) … ``at`` + n − 1 of each row of a buffer."""
    rows = torch.arange(len(x), device=x.device)[:, None]
    buffer[rows, :, at[:, None] + torch.arange(x.shape[-2], device=x.device)] = x.transpose(1, 2)


WHAT = {"k": "keys (b, g, n, d)", "v": "values (b, g, n, e)"}


def check_first(k: Tensor, v: Tensor) -> None:
    """Raise unless k and v are keys and values of matching shapes."""
    for name, x in (("k", k), ("v", v)):
        check_floats(x, name, f"{WHAT[name]}, a floating-point tensor")
        if x.ndim != 4:
            raise build(ArgumentError, name, WHAT[name], shape_of(x))
    _check_together(k, v)


def check_continues(k: Tensor, v: Tensor, old_k: Tensor, old_v: Tensor) -> None:
    """Raise unless new keys and values match each other and the cached ones."""
    for name, x, old in (("k", k, old_k), ("v", v, old_v)):
        if not isinstance(x, Tensor) or x.dtype is not old.dtype:
            check_floats(x, name, f"{WHAT[name]}, a floating-point tensor")
        new, held = x.shape, old.shape
        if len(new) != 4 or new[0] != held[0] or new[1] != held[1] or new[3] != held[3]:
            raise build(
                ArgumentError,
                name,
                f"{WHAT[name]} that continue {tuple(held)}",
                shape_of(x),
                "the cache belongs to another batch or module",
                "make a new cache, or reorder(…) it to the rows you continue",
            )
        if x.dtype is not old.dtype or x.device != old.device:
            raise build(
                KindError,
                name,
                f"{old.dtype} on {old.device}, as the cache holds",
                f"{x.dtype} on {x.device}",
                fix="make a new cache after .to(…)",
            )
    if k.shape[2] != v.shape[2]:
        _check_together(k, v)


def _check_together(k: Tensor, v: Tensor) -> None:
    if v.shape[:3] != k.shape[:3]:
        b, g, n, _ = k.shape
        raise build(
            ArgumentError,
            "v",
            f"values (b={b}, g={g}, n={n}, e)",
            shape_of(v),
            "each key has a value",
        )


class KeyValueCache(GrowingCache):
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
            self.kv = picked(self.kv[0], index), self.kv[1].index_select(0, index)
