"""The figures of this package; matplotlib is imported with them, and not before."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class Drawing(Figure):
    """A figure that a notebook shows, with or without matplotlib's own backend for notebooks."""

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()
