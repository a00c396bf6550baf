"""`attend`: queries and keys in, a lazy matrix of weights out.

z = softcap(scale · score(q, k)) + bias; z = −∞ where masked;
weights = exp z / (Σ exp z + exp sink).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from intently import kernels
from intently.core.biases import Bias
from intently.core.kernels import differentiated, eager, walk
from intently.core.kernels.operands import no_autocast, problem_of, tensors, usual, values_of
from intently.core.kernels.problem import Problem
from intently.core.kernels.walk import WeightBlock
from intently.core.masks import Mask
from intently.core.matrix import LazyMatrix, statistics
from intently.core.matrix.indexing import named, split, take
from intently.core.scores import DOT, Score
from intently.errors import StaleError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor, valued
from intently.foundation.field_names import check_names_of, plain_signature

if TYPE_CHECKING:
    from typing import Never as Refused  # type checkers refuse more arguments, too
else:
    Refused = object

T = TypeVar("T")


@plain_signature
def attend(
    q: Float[Tensor, "*lead t d"] | Numbers,
    k: Float[Tensor, "*lead_k s d_k"] | Numbers,
    *more: Refused,
    score: Score | None = None,
    mask: Mask | Tensor | Numbers | None = None,
    bias: Bias | Tensor | Numbers | None = None,
    scale: float | Tensor | Numbers | None = None,
    softcap: float | None = None,
    sinks: Tensor | Numbers | None = None,
    dropout: float = 0.0,
    **other: Refused,
) -> Attention:
    """Return the attention of queries q (…, h, t, d) to keys k (…, g, s, d), lazily: (…, h, t, s).

    With four or more axes, h may be a multiple of g (consecutive query heads share a key head).
    ``score`` is the scaled dot product unless given; ``mask`` a mask or a boolean tensor, True
    means attend; ``bias`` a tensor added to the scores; ``scale`` multiplies the scores (1/√d
    unless given; a tensor has shape () or (…, 1, 1)); ``softcap`` bounds them as c·tanh(z/c);
    ``sinks`` () or (…, h) are logits that take weight and contribute no value; ``dropout`` in [0,
    1) acts in ``A @ v`` only.

    Nothing is computed until needed. Tensors are used without a copy and must not change in place
    before the matrix is read; inference tensors, whose changes PyTorch does not count, are copied.
    Lists, NumPy arrays and integers are copied: floating-point arrays
    keep their dtype; lists and integers take the dtype of the other operand if it has one, else
    PyTorch's default. Raises `ArgumentError` for shapes that do not fit and `KindError` for
    booleans, complex numbers, ragged lists, mixed dtypes and devices.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.

    >>> import torch
    >>> q = k = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    >>> A = attend(q, k, scale=1.0)
    >>> A.shape
    (2, 2)
    >>> A.dense()
    tensor([[0.9820, 0.0180],
            [0.0180, 0.9820]])
    >>> attend([[2, 0]], [[2, 0], [0, 2]], scale=1) @ [[10], [20]]
    tensor([[10.1799]])
    """
    if more or other:
        check_names_of(attend, (q, k, *more), other)
    if not (usual(q) and usual(k)):
        q, k = tensors(q=q, k=k)
    problem, autocast = problem_of(q, k, score, mask, bias, scale, softcap, sinks, dropout)
    return Attention(problem, cast=autocast).settled()


@plain_signature
def attention(
    q: Float[Tensor, "*lead t d"] | Numbers,
    k: Float[Tensor, "*lead_k s d_k"] | Numbers,
    v: Float[Tensor, "*lead_v s e"] | Numbers,
    *more: Refused,
    score: Score | None = None,
    mask: Mask | Tensor | Numbers | None = None,
    bias: Bias | Tensor | Numbers | None = None,
    scale: float | Tensor | Numbers | None = None,
    softcap: float | None = None,
    sinks: Tensor | Numbers | None = None,
    dropout: float = 0.0,
    **other: Refused,
) -> Float[Tensor, "*lead_y t e"]:
    """Return ``attend(q, k, …) @ v``: v (…, s, e) averaged by each query's weights, (…, t, e).

    Arguments and errors are those of `attend`; lists and integers take the dtype of the first of
    q, k and v that has one.

    Source: Vaswani et al. 2017, section 3.2.1, equation 1.

    >>> import torch
    >>> attention(torch.zeros(1, 2), torch.ones(3, 2), torch.tensor([[0.0], [3.0], [6.0]]))
    tensor([[3.]])
    >>> attention([[0, 0]], [[1, 1], [1, 1]], [[2.0], [4.0]])
    tensor([[3.]])
    """
    if more or other:
        check_names_of(attention, (q, k, v, *more), other)
    if (
        score is bias is softcap is sinks is None
        and dropout == 0
        and (mask is None or isinstance(mask, Mask))
        and (scale is None or type(scale) is float)
    ):
        y = kernels.quick(q, k, v, scale, mask) if _product is _OURS else None
        if y is not None:
            return y
    if not (usual(q) and usual(k) and usual(v)):
        q, k, v = tensors(q=q, k=k, v=v)
    problem, autocast = problem_of(q, k, score, mask, bias, scale, softcap, sinks, dropout)
    return _product(problem, v, autocast)


class Attention(LazyMatrix):
    """The weights of queries over keys, (…, h, t, s), made by `attend`."""

    def __init__(self, problem: Problem, cast: bool = False) -> None:
        self.problem = problem
        self._cast = cast
        self._lse: Tensor | None = None
        self._versions = tuple(_version(x) for x in problem.tensors())

    def settled(self) -> Attention:
        """Return the matrix, of copies where PyTorch counts no changes: of inference tensors."""
        if torch.compiler.is_compiling() or not any(
            x.is_inference() for x in self.problem.tensors()
        ):
            return self
        copied = self.problem.mapped(lambda x: x.clone() if x.is_inference() else x)
        return Attention(copied, self._cast)

    @property
    def q(self) -> Tensor:
        """The queries (…, h, t, d)."""
        return self.problem.q

    @property
    def k(self) -> Tensor:
        """The keys (…, g, s, d)."""
        return self.problem.k

    @property
    def mask(self) -> Mask | None:
        """The mask, None if every key is allowed."""
        return self.problem.mask

    @property
    def shape(self) -> tuple[int, ...]:
        return self.problem.geometry.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.problem.q.dtype

    @property
    def device(self) -> torch.device:
        return self.problem.q.device

    def tile(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor:
        self._check_fresh()
        n, wide = self.shape[-2] if rows is None else len(rows), self._row_size()

        def part(r: Tensor | None) -> Tensor:
            w = eager.entries(self.problem, r)
            return w if cols is None else w.index_select(-1, cols)

        with no_autocast(self.device):
            if cols is None or n * wide <= statistics.BLOCK:
                w = part(rows)
            else:
                rows = torch.arange(n, device=self.device) if rows is None else rows
                blocks = rows.split(max(1, statistics.BLOCK // wide))
                w = torch.cat([part(r) for r in blocks], -2)
        return w.expand(*self.shape[:-2], *w.shape[-2:])

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, h, t, e) = A @ v for v (…, g, s, e), by the kernel that `plan` names."""
        self._check_fresh()
        return _product(self.problem, as_tensor(v, "v", self), self._cast)

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        return self.problem.allow(rows, cols)

    def _blocks(self, size: int | None = None) -> Iterator[WeightBlock]:
        self._check_fresh()
        if differentiated(self.problem.tensors()):
            yield from super()._blocks(size)
            return
        found = walk.weight_blocks(self.problem, size or statistics.BLOCK, size is not None)
        while True:
            with no_autocast(self.device):
                block = next(found, None)
            if block is None:
                return
            yield block

    def _columns(self, cols: Tensor) -> Tensor:
        if differentiated(self.problem.tensors()):
            return super()._columns(cols)
        lse = self.lse[..., None]
        with no_autocast(self.device):
            z = self.problem.ready().masked(None, cols)
            w = z.sub_(lse.masked_fill_(lse.isneginf(), 0)).exp_()
            return self.problem.clear(w, None, cols) if bool(lse.isnan().any()) else w

    def _viewers(self) -> Tensor:
        known = all(map(valued, self.problem.tensors()))
        return walk.viewers(self.problem) if known else super()._viewers()

    def _asked(self, ask: Callable[[Problem], T]) -> T | None:
        self._check_fresh()
        with no_autocast(self.device):
            p = self.problem.as_dot()
            return ask(p) if kernels.measures(p) else None

    def plan(self, v: Tensor | Numbers | None = None) -> kernels.Plan:
        """Report which kernel ``A @ v`` runs, why not a faster one, and its memory.

        Without v, values as wide as the keys are assumed.
        """
        self._check_fresh()
        x = self.problem.k
        x = x if v is None else values_of(self.problem, as_tensor(v, "v", self), self._cast)
        with no_autocast(self.device):
            return kernels.plan(self.problem.as_dot(), x)

    @property
    def lse(self) -> Tensor:
        """log(Σ exp z + exp sink) of each query, (…, h, t); −∞ where no key may be attended to."""
        self._check_fresh()
        if self._lse is None or differentiated(self.problem.tensors()):
            with no_autocast(self.device):
                found = kernels.lse(self.problem)
            if differentiated((found,)) or found.is_inference():
                return found
            self._lse = found
        return self._lse.clone()

    @property
    def scores(self) -> LazyScores:
        """The logits z; index them, ``A.scores[..., rows, cols]``."""
        return LazyScores(self)

    def _to(self, device: torch.device) -> LazyMatrix:
        self._check_fresh()
        p = self.problem.mapped(lambda x: x.to(device))
        return Attention(p.replaced(geometry=p.geometry._replace(device=device)), self._cast)

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_fresh()
        return type(self), (self.problem, self._cast), {"labels": self.labels, "_each": self._each}

    def _lead(self, index: tuple[Any, ...]) -> Attention:
        self._check_fresh()
        return Attention(self.problem.indexed(index), self._cast)

    def _check_fresh(self) -> None:
        for tensor, version in zip(self.problem.tensors(), self._versions):
            if version is not None and tensor._version != version:
                raise build(
                    StaleError,
                    "matrix",
                    "q, k, mask and bias as they were when it was made",
                    f"a tensor of {shape_of(tensor)} changed in place since",
                    fix="ask before the change, or make it from copies: it.attend(q.clone(), …)",
                )


class LazyScores:
    """The logits z of an attention matrix: softcap(scale · score) + bias, −∞ where masked."""

    def __init__(self, matrix: Attention) -> None:
        self.matrix = matrix

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.matrix.shape))
        return f"Scores(shape=({shape})) — lazy: A.scores[..., rows, cols] computes the logits"

    def __getitem__(self, index: Any) -> Tensor:
        """Return z[..., rows, cols], exact, in the dtype it is computed in; labels name steps."""
        m = self.matrix
        lead, rows, cols = split(named(index, m.ndim, m.labels), m.ndim)
        part = m._lead(lead) if lead else m
        m._check_fresh()

        def tile(r: Tensor | None, c: Tensor | None) -> Tensor:
            with no_autocast(m.device):
                z = part.problem.ready().masked(r, c)
            return z.expand(*part.shape[:-2], *z.shape[-2:])

        return take(tile, rows, cols, m.shape, m.device)


def _product(problem: Problem, v: Tensor, autocast: bool) -> Tensor:
    """Y (…, h, t, e), computed by the chosen kernel."""
    v = values_of(problem, v, autocast)
    with no_autocast(problem.q.device):
        problem = problem if problem.score is DOT else problem.as_dot()
        return kernels.choose(problem, v).multiply(problem, v)


_OURS = _product


def replaced() -> bool:
    """Whether something, such as a watch, has replaced the function that computes products."""
    return _product is not _OURS


def _version(x: Tensor) -> int | None:
    return None if torch.compiler.is_compiling() or x.is_inference() else x._version
