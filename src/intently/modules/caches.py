"""Key/value caches: what a decoder remembers, so that each token is computed once.

A cache changes nothing but the time: each step is the row of the whole pass, under the same mask
and bias, which keep their meaning (a key's column is its place in the whole text).
"""

from __future__ import annotations

import torch
from torch import Tensor

from intently.biases import Bias
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.masks import Mask, is_plain_causal, prefix, window
from intently.masks.geometry import integers, whole_number
from intently.modules.kept import KeptBias, KeptMask, Written, at_places, standing
from intently.modules.kept_rows import RowsBias, RowsMask, row_places


class KeyValueCache:
    """Keys (b, g, s, d) and values (b, g, s, e) of the steps so far.

    Full buffers are doubled; with ``size`` there is one, for so many steps, made on the first call.
    Rows may have different lengths: read padded prompts, `crop` to their lengths, go on.
    With ``keep_queries`` the queries and new keys of every step are kept too, as they came, so that
    the attention of the whole run can be told afterwards (see `history`).

    >>> cache = KeyValueCache()
    >>> k, v = cache.append(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4))
    >>> k, v = cache.append(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4))
    >>> cache.length, tuple(k.shape)
    (4, (1, 2, 4, 4))
    """

    def __init__(self, size: int | None = None, *, keep_queries: bool = False) -> None:
        self.size = None if size is None else whole_number(size, "size", 1)
        self.length = 0
        """Steps so far, those of the longest row."""
        self.lengths: Tensor | None = None
        """Steps of each row (b,), None while all rows have the same."""
        self.keep_queries = keep_queries
        self.history: list[tuple[Tensor, Tensor]] = []
        """One (queries, new keys) a call of the module, rows in the order of that call."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None

    @property
    def offset(self) -> int | Tensor:
        """Where the next step stands: a number, or (b,) where rows differ."""
        return self.length if self.lengths is None else self.lengths

    def columns(self, t: int) -> int:
        """How many keys a call of t new steps attends."""
        return self.length + t

    def mask(self, rule: Mask | None, t: int) -> Mask | None:
        """Return what the rule is for t new steps: their offsets in, what is not written out."""
        if self.lengths is None:
            return rule
        written = Written(self.lengths + t)
        if rule is None or (t == 1 and is_plain_causal(rule)):
            return written
        return standing(rule, self.lengths) & written

    def bias(self, rule: Bias, t: int) -> Bias:
        """Return what the bias is for t new steps."""
        return rule if self.lengths is None else standing(rule, self.lengths)

    def places(self, device: torch.device) -> None:
        """Positions of the keys handed out last: None, they are 0 … s − 1."""

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys (b, g, n, d) and values (b, g, n, e); return all of them so far.

        Raises `ArgumentError` where the batch, heads or widths differ from what the cache holds or
        where ``size`` does not suffice, and `KindError` for another dtype or device.
        """
        first, last = self.length, self.length + k.shape[-2]
        if self.size is not None and last > self.size:
            raise build(
                ArgumentError, "cache", f"at most size={self.size} steps", last,
                fix="make it larger, or leave size out: it grows then",
            )  # fmt: skip
        if self._k is None or self._v is None:
            if self.size is not None:
                k, v = (_grown(x, x.shape[-2], self.size) for x in (k, v))
            self._k, self._v, self.length = k, v, last
            return k[..., :last, :], v[..., :last, :]
        check_continues(k, v, self._k, self._v)
        if last > self._k.shape[-2]:
            room = self.size or max(2 * last, 8)
            self._k, self._v = (_grown(x, first, room) for x in (self._k, self._v))
        if self.lengths is None:
            self._k[..., first:last, :] = k
            self._v[..., first:last, :] = v
        else:
            steps = torch.arange(last - first, device=k.device)
            rows = torch.arange(len(k), device=k.device)[:, None]
            at = self.lengths[:, None] + steps
            self._k[rows, :, at] = k.transpose(1, 2)
            self._v[rows, :, at] = v.transpose(1, 2)
            self.lengths = self.lengths + (last - first)
        self.length = last
        return self._k[..., :last, :], self._v[..., :last, :]

    def crop(self, length: int | Tensor) -> None:
        """Forget the steps after the first ``length``, a number or one for each row (b,).

        Raises `ArgumentError` for more steps than there are.
        """
        here = _cropped(length, self._k, self.length, self.lengths)
        if self._k is None or self._v is None or not len(here):
            return
        self.length = int(here.max())
        self.lengths = None if int(here.min()) == self.length else here
        if self.size is None:  # so that the next step copies, and spares what was handed out
            self._k, self._v = self._k[..., : self.length, :], self._v[..., : self.length, :]
        if self.lengths is not None:
            steps = torch.arange(self._k.shape[-2], device=here.device)
            held = (steps < here[:, None])[:, None, :, None]
            self._k, self._v = (torch.where(held, x, 0) for x in (self._k, self._v))

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch, in that order, as beams do."""
        if self._k is not None and self._v is not None:
            self._k, self._v = (x.index_select(0, index) for x in (self._k, self._v))
        if self.lengths is not None:
            self.lengths = self.lengths.index_select(0, index)


class WindowCache:
    """The first ``sinks`` keys and values and the last ``window``: memory that does not grow.

    The step itself is one of the ``window``. Its steps are the rows of the whole pass under the
    mask ``causal() & (prefix(sinks) | window(window − 1, 0))``: positions and biases are those of
    the whole text. Rows may have different lengths, as in `KeyValueCache`; each then keeps its own
    first and last steps.

    Source: Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks",
    section 3.2.

    >>> cache = WindowCache(2, sinks=1)
    >>> for step in torch.arange(5.0).split(1):
    ...     k, v = cache.append(step.view(1, 1, 1, 1), step.view(1, 1, 1, 1))
    >>> cache.length, k.flatten()
    (5, tensor([0., 3., 4.]))
    """

    def __init__(self, window: int, sinks: int = 0, *, keep_queries: bool = False) -> None:
        self.window, self.sinks = whole_number(window, "window", 1), whole_number(sinks, "sinks", 0)
        self.length = 0
        """Steps so far, forgotten ones included; those of the longest row."""
        self.lengths: Tensor | None = None
        """Steps of each row (b,), None while all rows have the same."""
        self.keep_queries = keep_queries
        self.history: list[tuple[Tensor, Tensor]] = []
        """One (queries, new keys) a call of the module."""
        self._k: Tensor | None = None
        self._v: Tensor | None = None
        self._first = self._last = 0
        self._held: Tensor | None = None
        """Keys of each row (b,) in the buffer, where rows have different lengths."""

    @property
    def offset(self) -> int | Tensor:
        """Where the next step stands: a number, or (b,) where rows differ."""
        return self.length if self.lengths is None else self.lengths

    @property
    def _most(self) -> int:
        """How many keys are kept for the next step."""
        return self.sinks + self.window - 1

    def columns(self, t: int) -> int:
        """How many keys a call of t new steps attends."""
        return min(self.length, self._most) + t

    def mask(self, rule: Mask | None, t: int) -> Mask | None:
        """Return what the rule is for t new steps, each of which sees its own window."""
        if t == 1 and rule is not None and is_plain_causal(rule):
            rule = None
        if t > 1 and self.columns(t) > self.window:
            near = window(self.window - 1, 0)
            near = near if self.sinks == 0 else near | prefix(self.sinks)
            rule = near if rule is None else rule & near
        if self.lengths is not None:
            written = Written(self.lengths.clamp(max=self._most) + t)
            if rule is None:
                return written
            stands = standing(rule, self.lengths)
            return RowsMask(stands, self._rows(t), self.length + t) & written
        gap = self._gap(t)
        return rule if rule is None or not gap else KeptMask(rule, self.sinks, gap)

    def bias(self, rule: Bias, t: int) -> Bias:
        """Return what the bias is for t new steps and the keys that were kept."""
        if self.lengths is not None:
            return RowsBias(standing(rule, self.lengths), self._rows(t), self.length + t)
        gap = self._gap(t)
        return KeptBias(rule, self.sinks, gap) if gap else rule

    def _gap(self, t: int) -> int:
        return self.length + t - self.columns(t)

    def _rows(self, t: int) -> Tensor:
        """Positions (b, s) of the keys that t new steps attend in each row."""
        assert self.lengths is not None
        gap = self.lengths - self.lengths.clamp(max=self._most)
        cols = torch.arange(self.columns(t), device=gap.device)
        places = row_places(cols, self.sinks, gap)
        return places.clamp(max=self.length + t - 1)

    def places(self, device: torch.device) -> Tensor | None:
        """Positions (s,) or (b, s) of the keys handed out last, None where they are 0 … s − 1."""
        if self.lengths is not None and self._held is not None and self._k is not None:
            cols = torch.arange(self._k.shape[-2], device=device)
            places = row_places(cols, self.sinks, self.lengths - self._held)
            return places.clamp(max=self.length - 1)
        held = self._last - self._first
        if held == self.length:
            return None
        return at_places(torch.arange(held, device=device), self.sinks, self.length - held)

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add new keys (b, g, n, d) and values (b, g, n, e); return those that they attend.

        Raises as `KeyValueCache.append` does.
        """
        n = k.shape[-2]
        if self._k is None or self._v is None:
            self._k, self._v, self._last = k, v, n
            self.length = n
            return k, v
        check_continues(k, v, self._k, self._v)
        if self.lengths is not None:
            return self._append_rows(k, v, self.lengths)
        most = self._most
        drop = max(0, self._last - self._first - most)
        if self._last + n > self._k.shape[-2]:
            room = 2 * (most + 1) + n
            self._k, self._v = (self._moved(x, drop, room) for x in (self._k, self._v))
            self._first, self._last = 0, self._last - self._first - drop
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
        """Add new keys and values behind those that each row keeps."""
        self._keep(lengths)
        assert self._k is not None and self._v is not None and self._held is not None
        n, kept = k.shape[-2], self._k.shape[-2]
        self._k, self._v = (_grown(x, kept, kept + n) for x in (self._k, self._v))
        rows = torch.arange(len(k), device=k.device)[:, None]
        at = self._held[:, None] + torch.arange(n, device=k.device)
        self._k[rows, :, at] = k.transpose(1, 2)
        self._v[rows, :, at] = v.transpose(1, 2)
        self._held, self.lengths = self._held + n, lengths + n
        self.length += n
        return self._k, self._v

    def _keep(self, lengths: Tensor) -> None:
        """Keep what the steps after the first ``lengths`` (b,) of each row need, zeros behind."""
        assert self._k is not None and self._v is not None
        total, held = self._counts(lengths)
        kept = lengths.clamp(max=self._most)
        cols = torch.arange(int(kept.max()), device=kept.device)
        shift = (lengths - kept) - (total - held)
        together = (kept == max(len(cols), self.sinks)) & (shift == shift[0])
        if self._held is not None and bool(together.all()):
            drop = self.sinks + int(shift[0])  # full windows move on together
            ends = slice(None, self.sinks), slice(drop, drop + len(cols) - self.sinks)
            buffers = self._k, self._v
            self._k, self._v = (torch.cat([x[..., e, :] for e in ends], -2) for x in buffers)
            self._held = kept
            return
        at = row_places(cols, self.sinks, shift).clamp(0, max(0, int(held.max()) - 1))
        inside = (cols < kept[:, None])[:, None, :, None]
        buffers = (x[..., self._first :, :] for x in (self._k, self._v))
        self._k, self._v = (
            torch.where(inside, x.take_along_dim(at[:, None, :, None], -2), 0) for x in buffers
        )
        self._first, self._last, self._held = 0, len(cols), kept

    def _counts(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Steps so far, and keys in the buffer, of each row (b,)."""
        if self.lengths is not None and self._held is not None:
            return self.lengths, self._held
        held = self._last - self._first
        return torch.full_like(like, self.length), torch.full_like(like, held)

    def crop(self, length: int | Tensor) -> None:
        """Forget the steps after the first ``length``, a number or one for each row (b,).

        Raises `ArgumentError` for more steps than there are, and for so few that their window has
        left the cache.
        """
        here = _cropped(length, self._k, self.length, self.lengths)
        if not len(here):
            return
        total, held = self._counts(here)
        need = here - here.clamp(max=self._most)
        if bool(((need < total - held) & (here > self.sinks)).any()):
            least = (total - held + self._most).tolist()
            raise build(
                ArgumentError, "length", f"at least {least} steps, or at most sinks={self.sinks}",
                here.tolist(), "the keys of the window before them are forgotten",
                "crop before the text goes on, or make the window larger",
            )  # fmt: skip
        self._keep(here)
        self.length = int(here.max())
        self.lengths = here
        if int(here.min()) == self.length:
            self.lengths = self._held = None

    def _moved(self, x: Tensor, drop: int, room: int) -> Tensor:
        """A new buffer that begins with the keys that are kept."""
        x = x[..., self._first : self._last, :]
        if drop:
            x = torch.cat([x[..., : self.sinks, :], x[..., self.sinks + drop :, :]], -2)
        return _grown(x, x.shape[-2], room)

    def _slide(self, drop: int) -> None:
        """Move the sinks up to the window, over the keys that left it."""
        assert self._k is not None and self._v is not None
        first, self._first = self._first, self._first + drop
        if self.sinks:
            for x in (self._k, self._v):
                sinks = x[..., first : first + self.sinks, :].clone()
                x[..., self._first : self._first + self.sinks, :] = sinks

    def reorder(self, index: Tensor) -> None:
        """Continue with rows ``index`` (n,) of the batch, in that order, as beams do."""
        if self._k is not None and self._v is not None:
            self._k, self._v = (x.index_select(0, index) for x in (self._k, self._v))
        if self.lengths is not None and self._held is not None:
            self.lengths = self.lengths.index_select(0, index)
            self._held = self._held.index_select(0, index)


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


def check_continues(k: Tensor, v: Tensor, old_k: Tensor, old_v: Tensor) -> None:
    """Raise unless new keys and values fit those that a cache holds."""
    for name, x, old in (("k", k, old_k), ("v", v, old_v)):
        if x.shape[:-2] != old.shape[:-2] or x.shape[-1] != old.shape[-1]:
            what = "keys (b, g, n, d)" if name == "k" else "values (b, g, n, e)"
            raise build(
                ArgumentError, name, f"{what} that continue {tuple(old.shape)}",
                shape_of(x), "the cache belongs to another batch or module",
                "make a new cache, or reorder(…) it to the rows you continue",
            )  # fmt: skip
        if x.dtype != old.dtype or x.device != old.device:
            raise build(
                KindError, name, f"{old.dtype} on {old.device}, as the cache holds",
                f"{x.dtype} on {x.device}", fix="make a new cache after .to(…)",
            )  # fmt: skip


def _cropped(length: int | Tensor, k: Tensor | None, steps: int, lengths: Tensor | None) -> Tensor:
    """Return the length of each row (b,), at most ``lengths``, or the ``steps`` of all."""
    rows = 0 if k is None else k.shape[0]
    each = torch.tensor([length] * rows) if isinstance(length, int) else length
    each = integers(each, "length")
    if tuple(each.shape) != (rows,):
        raise build(ArgumentError, "length", f"an int, or shape (b={rows},)", shape_of(each))
    here = each if k is None else each.to(k.device)
    held = torch.full_like(here, steps) if lengths is None else lengths
    if bool(((here > held) | (here < 0)).any()):
        raise build(
            ArgumentError, "length", f"at most the steps there are, {held.tolist()}", here.tolist()
        )
    return here


def _grown(x: Tensor, length: int, room: int) -> Tensor:
    grown = x.new_zeros((*x.shape[:-2], room, x.shape[-1]))
    grown[..., :length, :] = x[..., :length, :]
    return grown
