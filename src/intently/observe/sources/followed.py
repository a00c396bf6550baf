"""Scores on their way from q · k to the softmax, and the operations on them.

A product of two tensors is followed through views, scales, biases and masks. Its axes have a fixed
order (…, t, s); ``layout`` says how the tensor of the model is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from intently.core.biases import as_bias
from intently.core.masks import allowed
from intently.core.matrix.labelling import HIDDEN
from intently.observe.sources.splitting import split, widened
from intently.observe.watching.call import AttentionSpec
from intently.observe.watching.unseen import Softmax

GIVEN = 2**26
"""Weights at most that are kept as they are, of one softmax."""

MOST = 6
"""Biases that are followed at most; a residual stream is an endless sum."""

Layout: TypeAlias = tuple[tuple[int, ...], ...]
"""For each axis of a tensor, the axes of (…, t, s) that it holds, one inside the other.

Queries on a grid have several axes in place of t, and keys in place of s.
"""

Stage: TypeAlias = Literal["scores", "exponentials", "logarithms", "weights"]
"""Scores become weights at once, by exp and a division, or by log_softmax and exp."""


class Lost(Exception):  # noqa: N818 - says where scores went out of sight
    """The scores, or the weights made of them, cannot be followed further; says why."""

    def __init__(self, why: str, stage: Stage = "scores", softmax: Softmax | None = None) -> None:
        super().__init__(why)
        self.why, self.softmax = why, softmax
        self.stage: Stage = stage


@dataclass(frozen=True)
class Scores:
    """outer · tanh(inner · q kᵀ) or inner · q kᵀ, + biases, −∞ where a mask is False.

    q (…, t, d) and k (…, s, d) have the same leading axes; biases and masks broadcast to
    (…, t, s). After ``softmax``, they stand for its weights, or some ``columns`` of them. Weights
    whose scores went out of sight, and ``why``, are their own logarithms, as a bias. ``grid`` are
    the sizes into which t and s are split.
    """

    q: Tensor
    k: Tensor
    layout: Layout
    inner: float | Tensor = 1.0
    outer: float | None = None
    biases: tuple[Tensor, ...] = ()
    masks: tuple[Tensor, ...] = ()
    dropout: float = 0.0
    stage: Stage = "scores"
    softmax: Softmax | None = None
    columns: slice | None = None
    why: str | None = None
    grid: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)

    @staticmethod
    def of(a: Tensor, b: Tensor) -> Scores:
        """The product of a (…, t, d) and b (…, d, s)."""
        return Scores(a, b.mT, tuple((axis,) for axis in range(a.ndim)))

    @staticmethod
    def given(weights: Tensor, *axes: int) -> Scores:
        """Weights that sum to 1 along ``axes``, as the scores log(weights); raises `Lost`."""
        n, keys = weights.ndim, sorted(axis % weights.ndim for axis in axes)
        if n <= len(keys) or weights.numel() > GIVEN:
            raise Lost(f"weights of {tuple(weights.shape)} are not kept as they are")
        order = [i for i in range(n) if i not in keys] + keys
        x = weights.detach().permute(order)
        grid = None if len(keys) == 1 else tuple(weights.shape[i] for i in keys)
        x = x.to(torch.promote_types(x.dtype, torch.float32)).flatten(-len(keys))
        none = x.new_zeros(*x.shape[:-1], 0), x.new_zeros(*x.shape[:-2], x.shape[-1], 0)
        layout = tuple((order.index(i),) for i in range(n))
        return Scores(*none, layout, biases=(x.log(),), stage="weights", grid=(None, grid))

    def pooled(self) -> Scores:
        """The same weights (…, t, s) as (…, t, 1, s), each row with values of its own."""
        found, first = self.spread(), self.keys[0]
        layout = [tuple(i + (i >= first) for i in held) for held in found.layout]
        keys = tuple(i + 1 for i in found.keys)
        row = next((i for i in (-2, -1) if not set(keys) & set(layout[i])), None)
        if row is not None:
            layout[row] = (*layout[row], first)
        return replace(
            found,
            q=found.q.unsqueeze(-2),
            k=found.k.new_zeros(*found.q.shape[:-1], found.k.shape[-2], 0),
            biases=tuple(x.unsqueeze(-2) for x in found.biases),
            layout=tuple(layout),
        )

    def spread(self) -> Scores:
        """With all parts of t but the last as leading axes, whose queries share the keys."""
        parts = self.grid[0]
        if parts is None:
            return self

        def apart(x: Tensor) -> Tensor:
            return x.unflatten(-2, parts if x.shape[-2] > 1 else (1,) * len(parts))

        *lead, s, d = self.k.shape
        k = self.k.reshape(*lead, *(1,) * (len(parts) - 1), s, d)
        return replace(
            self,
            q=apart(self.q),
            k=k.expand(*lead, *parts[:-1], s, d),
            biases=tuple(map(apart, self.biases)),
            masks=tuple(map(apart, self.masks)),
            inner=apart(self.inner) if isinstance(self.inner, Tensor) else self.inner,
            grid=(None, self.grid[1]),
        )

    @property
    def axes(self) -> tuple[int, ...]:
        """(…, t, s) in the parts of t and s; of s only the number of ``columns`` counts."""
        t, s = self.grid
        left = len(range(self.k.shape[-2])[self.columns or slice(None)])
        return (*self.q.shape[:-2], *(t or self.q.shape[-2:-1]), *(s or (left,)))

    @property
    def rows(self) -> tuple[int, ...]:
        """The ``axes`` of the queries."""
        lead = self.q.ndim - 2
        return tuple(range(lead, lead + len(self.grid[0] or (0,))))

    @property
    def keys(self) -> tuple[int, ...]:
        """The ``axes`` of the keys."""
        first = self.rows[-1] + 1
        return tuple(range(first, first + len(self.grid[1] or (0,))))

    def cut(
        self,
        axis: int,
        shape: Sequence[int],
        start: int | None = 0,
        end: int | None = None,
        step: int = 1,
    ) -> Scores:
        """The weights of some keys, ``shape`` of them; raises `Lost` for any other part."""
        if tuple(shape) == tuple(math.prod(self.axes[i] for i in held) for held in self.layout):
            return self
        if self.layout[axis] != self.keys or len(self.keys) > 1 or step != 1:
            raise Lost("a part of the weights is taken")
        left = range(self.k.shape[-2])[self.columns or slice(None)][start or 0 : end]
        return replace(self, columns=slice(left.start, left.stop))

    def how(self) -> AttentionSpec:
        """The arguments of `attend` beside q and k."""
        mask = allowed(reduce(torch.logical_and, self.masks)) if self.masks else None
        bias = reduce(add, map(as_bias, self.biases)) if self.biases else None
        cap, scale = self.outer, self.inner
        if cap is not None:
            scale = scale * cap
        return AttentionSpec(mask=mask, bias=bias, scale=scale, softcap=cap, dropout=self.dropout)

    def times(self, factor: Any) -> Scores:
        """The scores times a number, or a tensor that is constant along t and s."""
        if isinstance(factor, Tensor) and factor.ndim:
            factor = self.ordered(factor)
            if factor.shape[-2:].numel() != 1:
                raise Lost("scores are multiplied with a tensor that differs between keys")
        elif isinstance(factor, Tensor):
            factor = float(factor)
        if self.masks:
            raise Lost("scores are scaled after some were hidden")
        biases = tuple(_scaled(x, factor) for x in self.biases)
        if self.outer is None:
            return replace(self, inner=self.inner * factor, biases=biases)
        if isinstance(factor, Tensor):
            raise Lost("scores are multiplied with a tensor after tanh")
        return replace(self, outer=self.outer * factor, biases=biases)

    def plus(self, other: Any, sign: float = 1.0) -> Scores:
        """The scores and a bias."""
        if len(self.biases) == MOST:
            raise Lost(f"more than {MOST} tensors are added to scores")
        added = self.ordered(torch.as_tensor(other, device=self.q.device))
        added = added if sign == 1 else added * sign
        added = added if added.is_floating_point() else added.to(self.q.dtype)
        return replace(self, biases=(*self.biases, added))

    def bounded(self) -> Scores:
        """Tanh of the scores."""
        if self.biases or self.masks or self.outer is not None:
            raise Lost("tanh of scores to which something was added")
        return replace(self, outer=1.0)

    def powers_of_two(self) -> Scores:
        """The scores whose exponentials are two to the power of these."""
        return replace(replace(self, masks=()).times(math.log(2)), masks=self.masks)

    def weighed(self, factor: Any) -> Scores:
        """The scores whose exponentials are those of these times a factor."""
        factor = torch.as_tensor(factor, device=self.q.device)
        if bool(((factor == 0) | (factor == 1)).all()):
            return self.hidden(factor == 0, 0.0)
        if bool((factor < 0).any()):
            raise Lost("exponentials of scores are multiplied with negative numbers")
        return self.plus(factor.to(self.q.dtype).log())

    def hidden(self, where: Tensor, value: Any) -> Scores:
        """The scores with those at ``where`` set to a low value."""
        if isinstance(value, Tensor):
            if not value.numel() or bool((value != value.flatten()[0]).any()):
                raise Lost("some scores are replaced by different numbers")
            value = value.flatten()[0]
        if self.stage == "weights" and float(value) == 0:  # where nothing may be attended
            return self
        if not (float(value) == 0 if self.stage == "exponentials" else float(value) <= HIDDEN):
            raise Lost(f"some scores are replaced by {float(value)}")
        return replace(self, masks=(*self.masks, ~self.ordered(where)))

    def over_keys(self, axes: Sequence[int], stage: Stage) -> Scores:
        """The result of a softmax over ``axes``; queries and keys change places if these are t."""
        if self.stage not in ("scores", "exponentials"):
            raise Lost("they pass through a second softmax")
        held = tuple(sorted(i for axis in axes for i in self.layout[axis]))
        if held == self.keys:
            return replace(self, stage=stage)
        if len(axes) == 1:
            axis = axes[0] % len(self.layout)
            single = self.single(axis + 1 if axis == 0 else axis - 1, axis)
            if single is not self:
                return replace(single, stage=stage)
        if held != self.rows:
            raise Lost("the softmax goes over another axis than the keys")
        order = [*range(self.rows[0]), *self.keys, *self.rows]
        turned = {i: n for n, i in enumerate(order)}
        return replace(
            self,
            q=self.k,
            k=self.q,
            stage=stage,
            biases=tuple(x.mT for x in self.biases),
            masks=tuple(x.mT for x in self.masks),
            layout=tuple(tuple(turned[i] for i in held) for held in self.layout),
            grid=(self.grid[1], self.grid[0]),
        )

    def ordered(self, x: Tensor) -> Tensor:
        """A tensor that broadcasts to the model's, as one that broadcasts to (…, t, s)."""
        x = x.reshape((1,) * (len(self.layout) - x.ndim) + tuple(x.shape))
        if x.ndim > len(self.layout):
            raise Lost("scores are joined with a tensor of more axes")
        sizes: list[int] = []
        for size, held in zip(x.shape, self.layout):
            sizes += [1] * len(held) if size == 1 else [self.axes[i] for i in held]
        if math.prod(sizes) != x.numel():
            raise Lost("scores are repeated along an axis")
        order = [i for held in self.layout for i in held]
        back = sorted(range(len(order)), key=order.__getitem__)
        x = x.reshape(sizes).permute(back)
        for parts in (self.keys, self.rows):
            if len(parts) > 1 and any(x.shape[i] > 1 for i in parts):
                x = x.expand(*(self.axes[i] if i in parts else n for i, n in enumerate(x.shape)))
            x = x.flatten(min(parts), max(parts))
        return x

    def changed(self, change: Callable[[Tensor], Tensor]) -> Scores:
        """With the leading axes of all its tensors changed."""
        return replace(
            self,
            q=change(self.q),
            k=change(self.k),
            biases=tuple(map(change, self.biases)),
            masks=tuple(map(change, self.masks)),
            inner=change(self.inner) if isinstance(self.inner, Tensor) else self.inner,
        )

    def permuted(self, order: list[int]) -> Scores:
        """With the axes of the tensor in another order."""
        return replace(self, layout=tuple(self.layout[i] for i in order))

    def viewed(self, shape: tuple[int, ...]) -> Scores:
        """With the tensor seen in another shape, whose axes may be split and joined."""
        scores, held = self._keys_last() if shape and shape[-1] > 1 else (self, self._held())
        layout: list[tuple[int, ...]] = []
        for size in reversed(shape):  # the last axes matter most
            mine: list[int] = []
            left = size
            while held and (left > 1 or (scores.axes[held[-1]] == 1 and not mine)):
                n = scores.axes[held[-1]]
                if n and left % n == 0:
                    left //= n
                    mine.insert(0, held.pop())
                elif n % left == 0 and scores.columns is None:
                    scores, held, layout, mine = split(scores, held, layout, mine, left)
                else:
                    raise Lost("a part of the scores is taken")
            if left > 1:
                raise Lost("scores are repeated along an axis")
            if not mine and all(i < scores.rows[0] for i in held):
                scores, layout, mine = widened(scores, layout, len(held))
            layout.insert(0, tuple(mine))
        if any(scores.axes[i] != 1 for i in held):
            raise Lost("a part of the scores is taken")
        if held:  # axes of size 1 that the new shape does not show
            layout[0] = (*held, *layout[0])
        return replace(scores, layout=tuple(layout))

    def single(self, row: int, column: int) -> Scores:
        """One weight of one query, whose t and s are the axes ``row`` and ``column``.

        Axes of size 1 are alike, and `einsum` exchanges them.
        """
        n = len(self.axes)
        if self.grid != (None, None) or self.axes[-2:] != (1, 1) or len(self.layout) < 2:
            return self
        beside = [i for axis in (row, column) for i in self.layout[axis]]
        if any(self.axes[i] != 1 for i in beside):
            return self
        own = n > len(self.layout) and self.stage == "scores" and self.axes[n - 3] == 1
        gone = [n - 3] if own else []
        layout = [[i for i in held if i < n - 2 and i not in beside] for held in self.layout]
        layout[0] += [i for i in beside if i < n - 2]
        layout[row], layout[column] = [*layout[row], n - 2], [*layout[column], n - 1]
        return replace(self, layout=tuple(map(tuple, layout))).without(gone)

    def without(self, ones: Sequence[int]) -> Scores:
        """Without some leading axes of size 1."""
        left = {i: n for n, i in enumerate(i for i in range(len(self.axes)) if i not in ones)}
        layout = tuple(tuple(left[i] for i in held if i in left) for held in self.layout)
        return replace(self.changed(lambda x: x.squeeze(list(ones))), layout=layout)

    def _held(self) -> list[int]:
        """The axes of (…, t, s) in the order of the tensor."""
        return [i for axes in self.layout for i in axes]

    def _keys_last(self) -> tuple[Scores, list[int]]:
        """The scores, and their axes, without axes of size 1 behind the keys.

        For a single query, `einsum` puts t there, a batch of one, or an axis that it needs itself.
        """
        n, held = len(self.axes), self._held()
        if self.grid != (None, None):
            return self, held
        behind = held[held.index(n - 1) + 1 :]
        if not behind or any(self.axes[i] != 1 for i in behind):
            return self, held
        ones, row = ([i for i in behind if (i < n - 2) == lead] for lead in (True, False))
        held = [*(i for i in held if i not in behind and i != n - 1), *row, n - 1]
        if self.stage != "scores":
            return self, [*ones, *held]
        at = {i: at for at, i in enumerate(i for i in range(n) if i not in ones)}
        return self.without(ones), [at[i] for i in held]

    def operands(self, order: Sequence[int]) -> tuple[Tensor, Tensor, AttentionSpec]:
        """Q, k and the spec, with the leading axes in ``order``."""
        n = self.q.ndim
        turned = self.changed(lambda x: x.permute(*order, n - 2, n - 1))
        return turned.q, turned.k, turned.how()


def _scaled(bias: Tensor, factor: float | Tensor) -> Tensor:
    """A bias times a number; the lowest numbers of a dtype, which hide, stay the same."""
    if isinstance(factor, Tensor) or factor <= 0:
        return bias * factor
    return torch.where(bias <= torch.finfo(bias.dtype).min / 2, bias, bias * factor)
