"""Rows that come a few at a time, stored in a few large pieces.

A tensor for each step of a generation would lie between those that the model allocates and frees,
and keep its heap from shrinking: 200 steps took 24 times their bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from intently.observe.storage import mmap_pool

LEAST = 64
"""Steps that a piece has room for at least; large ones have room for a quarter of all before."""


class Growing:
    """Rows (b, …, n, d) that grow along n, the first axis in memory."""

    def __init__(self, x: Tensor, dtype: torch.dtype) -> None:
        self._dtype, self._rows, self._room = dtype, 0, 0
        self._pieces: list[Tensor] = []
        self._order = (x.shape[0], *x.shape[1:-2], x.shape[-1])
        self.append(x)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return (*self._order[:-1], self._rows, self._order[-1])

    def get(self) -> Tensor:
        """Return a copy of the rows so far."""
        return mmap_pool.joined(self.parts())

    def parts(self) -> list[Tensor]:
        """The rows so far, piece by piece, as they lie in memory."""
        found, left = [], self._rows
        for piece in self._pieces:
            found.append(piece[:left].movedim(0, -2))
            left -= min(left, len(piece))
        return found

    def fits(self, x: Tensor, parents: Tensor | None = None) -> bool:
        """Whether x (b, …, m, d) can be appended, once the rows follow ``parents``."""
        b = self._order[0] if parents is None else len(parents)
        return (*x.shape[:-2], x.shape[-1]) == (b, *self._order[1:])

    def append(self, x: Tensor, parents: Tensor | None = None) -> None:
        """Put x (b, …, m, d) below the rows; row i of x continues row ``parents[i]``."""
        if parents is not None:
            self._follow(parents)
        left = x.detach().movedim(-2, 0)
        while len(left):
            if self._room == self._rows:
                self._add(max(len(left), LEAST, self._rows // 4), x.device)
            n = min(len(left), self._room - self._rows)
            start = self._rows - self._room + len(self._pieces[-1])
            self._pieces[-1][start : start + n] = left[:n]
            self._rows, left = self._rows + n, left[n:]

    def cropped(self, last: int) -> Growing:
        """Drop the ``last`` rows, and return self."""
        self._rows -= last
        while self._room - len(self._pieces[-1]) >= self._rows:
            self._room -= len(self._pieces.pop())
        return self

    def _follow(self, parents: Tensor) -> None:
        self._order = (len(parents), *self._order[1:])
        for n, piece in enumerate(self._pieces):
            rows = piece.index_select(1, parents)
            self._pieces[n] = piece.copy_(rows) if rows.shape == piece.shape else rows

    def _add(self, rows: int, device: torch.device) -> None:
        self._pieces.append(mmap_pool.empty((rows, *self._order), self._dtype, device))
        self._room += rows
