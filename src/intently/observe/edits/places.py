"""Batch rows, heads, rows and keys by name: indices, slices, token texts, boolean tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from intently.errors import ArgumentError, KindError, build
from intently.foundation.tokens import bare
from intently.observe.edits.pictures import grid, region, resized

Steps: TypeAlias = "int | str | slice | Sequence[int | str] | Tensor | region | None"
"""Positions in a text, negative ones from its end; texts of tokens; booleans; None for all.

Of an image: a region, or a picture (H, W) of booleans.
"""


class Axis:
    """The steps of an axis: ``at`` (n,) are their positions in the whole text, of ``total`` steps.

    ``tokens`` are the texts of the whole text, as far as they are known.
    """

    def __init__(self, name: str, at: Tensor, total: int, tokens: Sequence[str] | None) -> None:
        self.name, self.at, self.total, self.tokens = name, at, total, tokens

    def chosen(self, steps: Steps) -> Tensor:
        """Which of the axis' steps are meant, as booleans (n,).

        A position beyond the text chooses nothing: a generation may not have reached it yet.
        Raises `ArgumentError` for a text that no token has, and `KindError` for anything that
        names no steps.
        """
        if steps is None:
            return torch.ones_like(self.at, dtype=torch.bool)
        if isinstance(steps, slice):
            places = range(*steps.indices(self.total))
            return torch.isin(self.at, torch.tensor(places, device=self.at.device))
        if isinstance(steps, region):
            return self._where(steps.picture(*self._grid(steps.aspect)).flatten())
        if isinstance(steps, Tensor) and steps.dtype is torch.bool:
            return self._where(steps)
        if isinstance(steps, Tensor) and not steps.is_floating_point() and steps.ndim < 2:
            steps = steps.reshape(-1).tolist()
        listed = [steps] if isinstance(steps, (int, str)) else steps
        if not isinstance(listed, Sequence) or not all(map(_names, listed)):
            expected = "positions, texts of tokens, a slice, or booleans (n,)"
            raise build(KindError, self.name, expected, repr(steps))
        places = [place for step in listed for place in self._places(step)]
        return torch.isin(self.at, torch.tensor(places, dtype=torch.long, device=self.at.device))

    def _where(self, steps: Tensor) -> Tensor:
        if steps.ndim == 2 and steps.numel():
            height, width = steps.shape
            steps = resized(steps, *self._grid(width / height)).flatten()
        if steps.ndim != 1:
            expected = "booleans (n,), or a picture (H, W) of them"
            raise build(ArgumentError, self.name, expected, f"shape {tuple(steps.shape)}")
        steps = steps.to(self.at.device)
        known = self.at < len(steps)
        return known & steps[self.at.clamp(max=max(0, len(steps) - 1))] if len(steps) else known

    def _grid(self, aspect: float) -> tuple[int, int]:
        """The height and width of the image whose pixels the steps are."""
        found = grid(self.total, aspect)
        if found is None:
            expected = f"the pixels of an image, {aspect:g} times as wide as it is high"
            fix = "edits.region(…, aspect=width / height); the keys of a prompt are words"
            raise build(ArgumentError, self.name, expected, f"{self.total} steps", fix=fix)
        return found

    def _places(self, step: int | str) -> list[int]:
        if isinstance(step, int):
            return [step if step >= 0 else self.total + step]
        if self.tokens is None:
            expected, got = "positions, since the tokens are not known here", repr(step)
            fix = (
                "pass it.edit(model, edits, tokens=texts), (source, target) for two texts, and "
                'name the layers that read them, as {"*.attn2": edit}'
            )
            raise build(ArgumentError, self.name, expected, got, fix=fix)
        found = [n for n, text in enumerate(self.tokens) if step in (text, bare(text))]
        if found:
            return found
        expected = "the text of a token"
        raise build(ArgumentError, self.name, expected, repr(step), f"they are {self.tokens}")


class Whole(Axis):
    """An axis whose n steps are all in the call: heads, or batch rows."""

    def __init__(self, name: str, n: int, device: torch.device) -> None:
        super().__init__(name, torch.arange(n, device=device), n, None)

    def _places(self, step: int | str) -> list[int]:
        if isinstance(step, str) or not -self.total <= step < self.total:
            raise build(ArgumentError, self.name, f"numbers below {self.total}", repr(step))
        return super()._places(step)

    def _grid(self, aspect: float) -> tuple[int, int]:
        expected = f"numbers, a slice, or booleans ({self.total},)"
        raise build(KindError, self.name, expected, "a region of an image")

    def _where(self, steps: Tensor) -> Tensor:
        if tuple(steps.shape) != (self.total,):
            got = f"shape {tuple(steps.shape)}"
            raise build(ArgumentError, self.name, f"booleans ({self.total},)", got)
        return super()._where(steps)


def _names(step: object) -> bool:
    return isinstance(step, (int, str)) and not isinstance(step, bool)
