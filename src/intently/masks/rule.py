"""What every mask can do: be asked, checked, cut, drawn and joined with others."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.foundation.arrays import Numbers
from intently.foundation.values import Value
from intently.masks.blocks import reduced, step_within
from intently.masks.geometry import Cut, Geometry, cut_left
from intently.masks.queries import Rows, any_of, unless_all


class Mask(Value):
    """A rule that says which keys each query may attend. True means attend.

    A new rule needs ``allow`` (and ``at`` for FlexAttention); everything else follows, and may be
    written in closed form where that is faster.
    """

    per_key = False
    """Whether the rule looks at the key alone (padding): such rules join cheaply."""

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        """Boolean tensor that broadcasts to (…, len(rows), len(cols)) of the matrix ``g``."""
        raise NotImplementedError

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        """The rule at single entries: index tensors, one for each axis of (…, t, s).

        They broadcast together; arithmetic, comparisons and indexing are all that is used, so that
        FlexAttention can trace it.
        """
        raise NotImplementedError

    def check(self, g: Geometry) -> None:
        """Raise `ArgumentError` if the rule cannot be laid over the matrix ``g``."""

    def allows_all(self, g: Geometry) -> bool:
        """Whether the rule is known to forbid nothing in ``g`` (False where it is not known)."""
        return False

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        """State of each block of rows × cols entries: EMPTY, PARTIAL or FULL.

        The result is int8 (⌈t/rows⌉, ⌈s/cols⌉). EMPTY (0) and FULL (2) are certain and hold for
        every leading index; PARTIAL (1) stands where the rule is mixed, or not known.
        """
        keys = torch.arange(g.s, device=g.device)
        queries = torch.arange(g.t, device=g.device)
        size = self.allow(g, queries[:0], keys).shape[:-2].numel() * g.s * rows
        found = [
            reduced(self._rows(g, some, keys), rows, cols)
            for some in queries.split(rows * step_within(size, 2**22))
        ]
        return torch.cat(found)

    def seen(self, g: Geometry) -> Tensor | None:
        """Keys (…, s) that at least one query may attend; None when that is every key."""
        rows = self.queries(g)
        return seen_exactly(self, g) if rows is None else unless_all(any_of(rows))

    def queries(self, g: Geometry) -> Rows:
        """The queries that may attend each key in closed form; None where none is known."""
        return None

    def part(self, cut: Cut, g: Geometry) -> Mask:
        """The same rule for the matrix whose leading axes were cut.

        ``cut`` has one slice, or one int which drops its axis, for each leading axis of ``g``. The
        tensors of the rule are aligned with the leftmost leading axes unless it says otherwise.
        """
        return self.replaced(lambda x: cut_left(x, cut))

    def dense(self, g: Geometry) -> Tensor:
        """The whole rule, broadcastable to (…, t, s)."""
        rows = torch.arange(g.t, device=g.device)
        return self.allow(g, rows, torch.arange(g.s, device=g.device))

    def lead(self) -> tuple[int, ...]:
        """The leading axes in which the rule may differ: those that its tensors have."""
        shapes = [tuple(x.shape) for x in self.parts if isinstance(x, Tensor)]
        return max(shapes, key=len, default=())

    def size(self) -> tuple[int, int] | None:
        """The t and s the rule is made for; None where it fits every matrix."""
        return None

    def extent(self) -> int:
        """How many steps a drawing should have to show the rule."""
        return 16

    def draw(self, t: int, s: int | None = None) -> str:
        """Draw the rule for t queries and s keys: ``█`` attends, ``·`` does not.

        Where the rule differs between batch rows or heads, the first is drawn.
        """
        s = t if s is None else s
        g = Geometry(self.lead(), t, s, torch.device("cpu"))
        self.check(g)
        grid = self.dense(g)
        grid = grid[(0,) * (grid.ndim - 2)].expand(t, s)
        return "\n".join(" ".join("█" if on else "·" for on in row) for row in grid.tolist())

    def _repr_html_(self) -> str:
        from intently.masks.picture import picture

        return picture(self)

    def __and__(self, other: Mask | Tensor | Numbers) -> Mask:
        """Keys that both allow."""
        from intently.masks.by_tensor import as_mask
        from intently.masks.joined import Both

        return Both(self, as_mask(other))

    def __or__(self, other: Mask | Tensor | Numbers) -> Mask:
        """Keys that at least one allows."""
        from intently.masks.by_tensor import as_mask
        from intently.masks.joined import Either

        return Either(self, as_mask(other))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Mask:
        """Keys that this does not allow."""
        return self.inverted()

    def inverted(self) -> Mask:
        """Return ``~mask``: in what torch.compile traces, which knows no ``~`` of objects.

        >>> from intently.masks import causal
        >>> causal().inverted()
        ~causal()
        """
        from intently.masks.joined import Not

        return Not(self)

    def _rows(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        found = self.allow(g, rows, cols)
        return found.expand(*found.shape[:-2], len(rows), len(cols))


def seen_exactly(mask: Mask, g: Geometry) -> Tensor | None:
    """Ask for every query, some at a time."""
    queries = torch.arange(g.t, device=g.device)
    cols = torch.arange(g.s, device=g.device)
    lead = mask.allow(g, queries[:0], cols).shape[:-2]
    seen = torch.zeros(*lead, g.s, dtype=torch.bool, device=g.device)
    for rows in queries.split(step_within(lead.numel() * g.s, 2**22)):
        seen = seen | mask._rows(g, rows, cols).any(-2)
    return unless_all(seen)


def seen_by_any(mask: Mask, g: Geometry) -> Tensor:
    """Ask for one query, where the rule is the same for all."""
    first = torch.arange(min(1, g.t), device=g.device)
    return mask.allow(g, first, torch.arange(g.s, device=g.device)).any(-2)
