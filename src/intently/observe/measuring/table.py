"""`Effects`: the table of what edits do to a score."""

from __future__ import annotations

from intently.observe.recording.table import Table


class Effects(Table):
    """A tidy table: one row for each edit, with the score before it, after it, and the difference.

    ``layer``, ``head``, ``key`` or ``edit`` say which edit it is; ``left_out`` are the layers that
    cannot be edited, and why. `intently.show.heatmap` draws it.

    >>> row = {"layer": "layers.0", "head": 1, "before": -1.0, "after": -3.5, "difference": -2.5}
    >>> print(Effects([row], tuple(row)))
    layer     head   before    after  difference
    layers.0     1  -1.0000  -3.5000     -2.5000
    """

    names = place = ("edit", "layer", "head", "key", "sender", "receiver")
    words = ("edit", "layer", "sender", "receiver")
    form = "z.4f"

    def strongest(self) -> Effects:
        """Return the rows by the size of their difference, the largest first."""
        return self._of(sorted(self, key=lambda row: -abs(row["difference"])))
