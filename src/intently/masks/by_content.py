"""Masks that know what stands where: prefixes, padding, packed documents, images."""

from __future__ import annotations

from torch import Tensor

from intently.errors import ArgumentError, build, shape_of
from intently.masks.geometry import Geometry, integers, whole_number
from intently.masks.rule import Mask, seen_by_any


class _Prefix(Mask):
    per_key = True

    def __init__(self, n: int | Tensor) -> None:
        self.n = n

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        n = g.align(self.n, "n") if isinstance(self.n, Tensor) else self.n
        return cols[None, :] < n

    def seen(self, g: Geometry) -> Tensor | None:
        return seen_by_any(self, g)

    def lead(self) -> tuple[int, ...]:
        return tuple(self.n.shape) if isinstance(self.n, Tensor) else ()

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.n,) if isinstance(self.n, Tensor) else ()

    def check(self, g: Geometry) -> None:
        if isinstance(self.n, Tensor):
            g.align(self.n, "n")

    def __repr__(self) -> str:
        return f"prefix({self.n.tolist() if isinstance(self.n, Tensor) else self.n})"


class _Padding(Mask):
    per_key = True

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols < g.align(self.lengths, "lengths")

    def check(self, g: Geometry) -> None:
        g.align(self.lengths, "lengths")

    def seen(self, g: Geometry) -> Tensor | None:
        return seen_by_any(self, g)

    def lead(self) -> tuple[int, ...]:
        return tuple(self.lengths.shape)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.lengths,)

    def __repr__(self) -> str:
        return f"padding({self.lengths.tolist()})"


class _Segments(Mask):
    def __init__(self, query_ids: Tensor, key_ids: Tensor) -> None:
        self.query_ids, self.key_ids = query_ids, key_ids

    def _side(self, g: Geometry, ids: Tensor, index: Tensor, name: str) -> Tensor:
        ids = ids.to(g.device)[..., index]
        flat = g.align(ids[..., 0], name).shape if len(index) else (1,) * (len(g.lead) + 2)
        return ids.reshape(*flat[:-2], len(index))

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        q = self._side(g, self.query_ids, rows, "query_ids")
        k = self._side(g, self.key_ids, cols, "key_ids")
        return q[..., :, None] == k[..., None, :]

    def check(self, g: Geometry) -> None:
        for ids, steps, name in (
            (self.query_ids, g.t, "query_ids"),
            (self.key_ids, g.s, "key_ids"),
        ):
            if ids.shape[-1] != steps:
                letter = "t" if name == "query_ids" else "s"
                raise build(
                    ArgumentError, name, f"shape (…, {letter}={steps})", shape_of(ids),
                    fix="give one id per step, and key_ids of their own where t and s differ",
                )  # fmt: skip
            if steps:
                g.align(ids[..., 0], name)

    def lead(self) -> tuple[int, ...]:
        return max(tuple(self.query_ids.shape[:-1]), tuple(self.key_ids.shape[:-1]), key=len)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.query_ids, self.key_ids)

    def __repr__(self) -> str:
        if self.query_ids is self.key_ids:
            return f"segments({self.query_ids.tolist()})"
        return f"segments({self.query_ids.tolist()}, {self.key_ids.tolist()})"


class _Grid(Mask):
    def __init__(self, height: int, width: int, radius: int) -> None:
        self.height, self.width, self.radius = height, width, radius

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        dy = (rows[:, None] // self.width - cols // self.width).abs()
        dx = (rows[:, None] % self.width - cols % self.width).abs()
        return (dy <= self.radius) & (dx <= self.radius)

    def check(self, g: Geometry) -> None:
        pixels = self.height * self.width
        if (g.t, g.s) != (pixels, pixels):
            raise build(
                ArgumentError, "mask", f"t = s = {self.height}·{self.width} = {pixels} for {self}",
                f"t={g.t}, s={g.s}", "grid joins the pixels of one image, row after row",
            )  # fmt: skip

    def seen(self, g: Geometry) -> Tensor | None:
        return None

    def __repr__(self) -> str:
        return f"grid({self.height}, {self.width}, {self.radius})"


def prefix(n: int | Tensor) -> Mask:
    """Every query sees the first n keys; n is an int, or a tensor (b,) with one per batch row.

    ::

        causal() | prefix(2), t=s=4   █ █ · ·
                                      █ █ · ·
                                      █ █ █ ·
                                      █ █ █ █
    """
    return _Prefix(integers(n, "n") if isinstance(n, Tensor) else whole_number(n, "n", 0))


def padding(lengths: Tensor) -> Mask:
    """Every query of batch row i sees the first ``lengths[i]`` keys; lengths (b,).

    ::

        padding(tensor([2])), t=2, s=4   █ █ · ·
                                         █ █ · ·

    A row of length 0 attends to nothing, so its result is exactly zero (contract 4).
    """
    return _Padding(integers(lengths, "lengths"))


def segments(query_ids: Tensor, key_ids: Tensor | None = None) -> Mask:
    """Queries see keys of the same segment; ids (…, t) and (…, s), for packed documents.

    ::

        segments(tensor([0, 0, 1]))   █ █ ·
                                      █ █ ·
                                      · · █
    """
    query_ids = integers(query_ids, "query_ids")
    return _Segments(query_ids, query_ids if key_ids is None else integers(key_ids, "key_ids"))


def grid(height: int, width: int, radius: int) -> Mask:
    """Pixels of an image (row after row) see the square of ``radius`` pixels around them.

    ::

        grid(1, 4, 1)   █ █ · ·
                        █ █ █ ·
                        · █ █ █
                        · · █ █
    """
    sides = whole_number(height, "height", 1), whole_number(width, "width", 1)
    return _Grid(*sides, whole_number(radius, "radius", 0))
