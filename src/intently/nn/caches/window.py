"""A window over the keys and values of a text: its first and last steps."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.core.biases import Bias
from intently.core.masks import Mask, causal, is_plain_causal, prefix, window
from intently.errors import ArgumentError, build
from intently.foundation.checks import whole_number
from intently.nn.caches.key_value import (
    GrowingCache,
    check_continues,
    check_first,
    grown,
    must_copy,
    put,
)
from intently.nn.caches.masks import KeptBias, KeptMask, Written, at_places, standing


class WindowCache(GrowingCache):
    """The first ``sinks`` keys and values and the last ``window``, in constant memory.

    The current step counts as part of the ``window``. Steps equal the rows of a full pass under the
    mask ``causal() & (prefix(sinks) | window(window − 1, 0))``, combined with the layer's own mask,
    however the steps are divided into calls: a layer without a causal mask is causal here, because
    a step cannot see later calls. Positions and biases are those of the whole text. Rows may have
    different lengths, as in `KeyValueCache`; each then keeps its own first and last steps.

    Source: Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks",
    section 3.2.

    >>> cache = WindowCache(2, sinks=1)
    >>> for step in torch.arange(5.0).split(1):
    ...     k, v = cache.append(step.view(1, 1, 1, 1), step.view(1, 1, 1, 1))
    >>> cache.length, k.flatten()
    (5, tensor([0., 3., 4.]))
    """

    def __init__(self, window: int, sinks: int = 0, *, keep_queries: bool = False) -> None:
        super().__init__(keep_queries)
        self.window, self.sinks = whole_number(window, "window", 1), whole_number(sinks, "sinks", 0)
        self._first = self._last = 0
        self._held: Tensor | None = None
        """Keys of each row (b,) in the buffer, where rows have different lengths."""
        self._covered: tuple[Tensor, Tensor] | None = None
        """Contents overwritten by the last move of the sinks, to undo that move."""

    @property
    def _most(self) -> int:
        """Number of keys in the cache for the next step."""
        return self.sinks + self.window - 1

    def columns(self, t: int) -> int:
        """How many keys a call of t new steps attends."""
        return min(self.length, self._most) + t

    def mask(self, rule: Mask | None, t: int) -> Mask | None:
        """Return the mask of t new steps, each with its own window."""
        if rule is not None and is_plain_causal(rule):
            rule = None
        if t > 1:
            near = causal()
            if self.columns(t) > self.window:
                near = window(self.window - 1, 0)
                near = near if self.sinks == 0 else near | (causal() & prefix(self.sinks))
            rule = near if rule is None else rule & near
        if self.lengths is not None:
            written = Written(self.lengths.clamp(max=self._most) + t)
            if rule is None:
                return written
            stands = standing(rule, self.lengths)
            return KeptMask(stands, self.sinks, self._gaps(), self.length + t) & written
        gap = self._gap(t)
        return rule if rule is None or not gap else KeptMask(rule, self.sinks, gap)

    def bias(self, rule: Bias, t: int) -> Bias:
        """Return the bias of t new steps over the cached keys."""
        if self.lengths is not None:
            return KeptBias(standing(rule, self.lengths), self.sinks, self._gaps(), self.length + t)
        gap = self._gap(t)
        return KeptBias(rule, self.sinks, gap) if gap else rule

    def _gap(self, t: int) -> int:
        return self.length + t - self.columns(t)

    def _gaps(self) -> Tensor:
        """Number of steps (b,) of each row that the cache has dropped when a call begins."""
        assert self.lengths is not None
        return self.lengths - self.lengths.clamp(max=self._most)

    def places(self, device: torch.device) -> Tensor | None:
        """Positions (s,) or (b, s) of the keys returned last, None if they are 0 … s − 1."""
        if self.lengths is not None and self._held is not None and self._k is not None:
            cols = torch.arange(self._k.shape[-2], device=device)
            places = at_places(cols, self.sinks, (self.lengths - self._held)[:, None])
            return places.clamp(max=self.length - 1)
        held = self._last - self._first
        if held == self.length:
            return None
        return at_places(torch.arange(held, device=device), self.sinks, self.length - held)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys (b, g, n, d) and values (b, g, n, e); return the keys and values to attend
        to.

        Raises as `KeyValueCache.append` does.
        """
        if self._k is None or self._v is None:
            check_first(k, v)
            self._k, self._v = k, v
            self.length = self._last = k.shape[-2]
            return k, v
        check_continues(k, v, self._k, self._v)
        n = k.shape[-2]
        if self.lengths is not None:
            return self._append_rows(k, v, self.lengths)
        most = self._most
        drop = max(0, self._last - self._first - most)
        if must_copy(self._k):
            pairs = (self._k, k), (self._v, v)
            self._k, self._v = (torch.cat([*self._without(x, drop), new], -2) for x, new in pairs)
            self._first, self._last = 0, self._k.shape[-2]
            self.length += n
            return self._k, self._v
        if self._last + n > self._k.shape[-2]:
            kept, room = self._last - self._first - drop, 2 * (most + 1) + n
            buffers = (torch.cat(self._without(x, drop), -2) for x in (self._k, self._v))
            self._k, self._v = (grown(x, kept, room) for x in buffers)
            self._first, self._last = 0, kept
        elif drop:
            self._slide(drop)
        new = slice(self._last, self._last + n)
        self._k[..., new, :] = k
        self._v[..., new, :] = v
        self._last += n
        self.length += n
        held = slice(self._first, self._last)
        return self._k[..., held, :], self._v[..., held, :]

    def _append_rows(self, k: Tensor, v: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values to the cached ones of each row."""
        self._keep(lengths)
        assert self._k is not None and self._v is not None and self._held is not None
        n, kept = k.shape[-2], self._k.shape[-2]
        self._k, self._v = (grown(x, kept, kept + n) for x in (self._k, self._v))
        put(self._k, k, self._held)
        put(self._v, v, self._held)
        self._held, self.lengths = self._held + n, lengths + n
        self.length += n
        return self._k, self._v

    def _keep(self, lengths: Tensor) -> None:
        """Keep the keys needed after the first ``lengths`` (b,) steps of each row, zero-padded."""
        assert self._k is not None and self._v is not None
        total, held = self._counts(lengths)
        kept = lengths.clamp(max=self._most)
        cols = torch.arange(int(kept.max()), device=kept.device)
        shift = (lengths - kept) - (total - held)
        together = (kept == max(len(cols), self.sinks)) & (shift == shift[0])
        if self._held is not None and bool(together.all()):
            drop = self.sinks + int(shift[0])  # full windows advance together
            ends = slice(None, self.sinks), slice(drop, drop + len(cols) - self.sinks)
            buffers = self._k, self._v
            self._k, self._v = (torch.cat([x[..., e, :] for e in ends], -2) for x in buffers)
            self._held = kept
            return
        at = at_places(cols, self.sinks, shift[:, None]).clamp(0, max(0, int(held.max()) - 1))
        inside = (cols < kept[:, None])[:, None, :, None]
        buffers = (x[..., self._first :, :] for x in (self._k, self._v))
        self._k, self._v = (
            torch.where(inside, x.take_along_dim(at[:, None, :, None], -2), 0) for x in buffers
        )
        self._first, self._last, self._held = 0, len(cols), kept

    def _counts(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Steps so far, and keys in the buffer, of each row (b,)."""
        held = self._held
        if self.lengths is None or held is None:
            held = torch.full_like(like, self._last - self._first)
        return self._totals(like), held

    def crop(self, length: int | Tensor) -> None:
        """Forget the steps after the first ``length``, a number or one for each row (b,).

        Raises `ArgumentError` for more steps than there are, and for so few steps that their window
        has left the cache; `KindError` for non-integers.
        """
        here = self._lengths(length)
        if not len(here):
            return
        total, held = self._counts(here)
        need = here - here.clamp(max=self._most)
        if bool(((need < total - held) & (here > self.sinks)).any()):
            least = (total - held + self._most).tolist()
            raise build(
                ArgumentError,
                "length",
                f"at least {least} steps, or at most sinks={self.sinks}",
                here.tolist(),
                "the keys of the window before them are forgotten",
                "crop before the text continues, or make the window larger",
            )
        self._forget(here)
        self._keep(here)
        self.length = int(here.max())
        self.lengths = here
        if int(here.min()) == self.length:
            self.lengths = self._held = None

    def _without(self, x: Tensor, drop: int) -> list[Tensor]:
        """The cached steps without the ``drop`` steps that leave the window."""
        x = x[..., self._first : self._last, :]
        return [x[..., : self.sinks, :], x[..., self.sinks + drop :, :]] if drop else [x]

    def _slide(self, drop: int) -> None:
        """Move the sinks next to the window, over the dropped keys."""
        assert self._k is not None and self._v is not None
        first, self._first = self._first, self._first + drop
        if self.sinks:
            end = self._first + self.sinks
            k, v = (x[..., first:end, :].clone() for x in (self._k, self._v))
            self._covered = k, v
            self._k[..., self._first : end, :] = k[..., : self.sinks, :]
            self._v[..., self._first : end, :] = v[..., : self.sinks, :]

    def _put_back(self, state: tuple[dict[str, object], int]) -> None:
        k, covered, first = self._k, self._covered, self._first
        super()._put_back(state)
        moved = self._k is k and self._first != first
        if moved and covered is not None and self._k is not None and self._v is not None:
            for x, old in zip((self._k, self._v), covered):
                x[..., self._first : self._first + old.shape[-2], :] = old

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch, in that order, as beams do.

        Raises `ArgumentError` for rows out of range and `KindError` for anything but integers.
        """
        super().reorder(index)
        if self._held is not None:
            self._held = self._held.index_select(0, index)
