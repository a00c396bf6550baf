"""`attend`: queries and keys in, a lazy matrix of weights out.

z = softcap(scale · score(q, k)) + bias; z = −∞ where masked;
weights = exp z / (Σ exp z + exp sink).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from intently import kernels
from intently.biases import Bias, as_bias
from intently.errors import ArgumentError, KindError, StaleError, build, shape_of
from intently.foundation.arrays import Numbers, as_tensor, as_tensors
from intently.foundation.checks import probability
from intently.kernels import differentiated, eager, streamed
from intently.kernels.problem import Problem
from intently.kernels.streamed import Block
from intently.masks import Mask, as_mask, check_broadcast
from intently.matrix import LazyMatrix, lazy
from intently.matrix.indexing import split, take
from intently.matrix.lazy import check_product, in_autocast, no_autocast
from intently.scores import DOT, Score


def attend(
    q: Float[Tensor, "*lead t d"] | Numbers,
    k: Float[Tensor, "*lead_k s d_k"] | Numbers,
    *,
    score: Score | None = None,
    mask: Mask | Tensor | Numbers | None = None,
    bias: Bias | Tensor | Numbers | None = None,
    scale: float | Tensor | Numbers | None = None,
    softcap: float | None = None,
    sinks: Tensor | Numbers | None = None,
    dropout: float = 0.0,
) -> Attention:
    """Return the attention of queries q (…, h, t, d) to keys k (…, g, s, d), lazily: (…, h, t, s).

    With four or more axes, h may be a multiple of g (consecutive query heads share a key head).
    ``score`` is the scaled dot product unless given; ``mask`` a mask or a boolean tensor, True
    means attend; ``bias`` a tensor added to the scores; ``scale`` multiplies the scores (1/√d
    unless given; a tensor has shape () or (…, 1, 1)); ``softcap`` bounds them as c·tanh(z/c);
    ``sinks`` () or (…, h) are logits that take weight and give nothing; ``dropout`` in [0, 1) acts
    in ``A @ v`` only.

    Nothing is computed until asked for. Tensors are used as they are, and must not change in place
    before the matrix answered. Lists, NumPy arrays and integers are copied: floating-point arrays
    keep their dtype; lists and integers take that of the other operand where it has one, else
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
    if not (_usual(q) and _usual(k)):
        q, k = _tensors(q=q, k=k)
    problem, autocast = _problem(q, k, score, mask, bias, scale, softcap, sinks, dropout)
    return Attention(problem, cast=autocast)


def attention(
    q: Float[Tensor, "*lead t d"] | Numbers,
    k: Float[Tensor, "*lead_k s d_k"] | Numbers,
    v: Float[Tensor, "*lead_v s e"] | Numbers,
    *,
    score: Score | None = None,
    mask: Mask | Tensor | Numbers | None = None,
    bias: Bias | Tensor | Numbers | None = None,
    scale: float | Tensor | Numbers | None = None,
    softcap: float | None = None,
    sinks: Tensor | Numbers | None = None,
    dropout: float = 0.0,
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
    if not (_usual(q) and _usual(k) and _usual(v)):
        q, k, v = _tensors(q=q, k=k, v=v)
    problem, autocast = _problem(q, k, score, mask, bias, scale, softcap, sinks, dropout)
    return _product(problem, v, autocast)


class Attention(LazyMatrix):
    """The weights of queries over keys, (…, h, t, s), made by `attend`."""

    def __init__(self, problem: Problem, cast: bool = False) -> None:
        self.problem = problem
        self._cast = cast
        self._lse: Tensor | None = None
        self._versions = tuple(_version(x) for x in problem.tensors())

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
        """The mask, None where nothing is forbidden."""
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
        if cols is None:
            return self._stream(lambda r: eager.entries(self.problem, r), rows, None)
        return self._stream(
            lambda r: eager.entries(self.problem, r).index_select(-1, cols), rows, lazy.BLOCK
        )

    def matmul(self, v: Tensor | Numbers) -> Tensor:
        """Y (…, h, t, e) = A @ v for v (…, g, s, e), by the kernel that `plan` names."""
        self._check_fresh()
        return _product(self.problem, as_tensor(v, "v", self), self._cast)

    def _allow(self, rows: Tensor | None = None, cols: Tensor | None = None) -> Tensor | None:
        return self.problem.allow(rows, cols)

    def _stream(
        self, part: Callable[[Tensor | None], Tensor], rows: Tensor | None, block: int | None
    ) -> Tensor:
        """``part`` (…, rows, n) of all the rows, at most ``block`` weights at a time."""
        self._check_fresh()
        n = self.shape[-2] if rows is None else len(rows)
        with no_autocast(self.device):
            if block is None or n * self._row_size() <= block:
                found = part(rows)
            else:
                rows = torch.arange(n, device=self.device) if rows is None else rows
                step = max(1, block // self._row_size())
                found = torch.cat([part(r) for r in rows.split(step)], -2)
        return found.expand(*self.shape[:-2], *found.shape[-2:])

    def _blocks(self) -> Iterator[Block]:
        self._check_fresh()
        if differentiated(self.problem.tensors()):
            yield from super()._blocks()
            return
        found = streamed.blocks(self.problem, lazy.BLOCK)
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
        return streamed.viewers(self.problem)

    def plan(self, v: Tensor | Numbers | None = None) -> kernels.Plan:
        """Say which kernel ``A @ v`` runs, why not a faster one, and the memory it takes.

        Without v, values as wide as the keys are assumed.
        """
        self._check_fresh()
        x = self.problem.k
        x = x if v is None else _values(self.problem, as_tensor(v, "v", self), self._cast)
        with no_autocast(self.device):
            return kernels.plan(self.problem.as_dot(), x)

    @property
    def lse(self) -> Tensor:
        """log(Σ exp z + exp sink) of each query, (…, h, t); −∞ where nothing may be attended."""
        self._check_fresh()
        if self._lse is None or differentiated(self.problem.tensors()):
            with no_autocast(self.device):
                found = kernels.lse(self.problem)
            if differentiated((found,)) or found.is_inference():
                return found
            self._lse = found
        return self._lse.clone()

    @property
    def scores(self) -> Scores:
        """The logits z; index them, ``A.scores[..., rows, cols]``."""
        return Scores(self)

    def _to(self, device: torch.device) -> LazyMatrix:
        self._check_fresh()
        p = self.problem

        def move(x: Any) -> Any:
            return x.to(device) if isinstance(x, Tensor) else x

        moved = Problem(
            p.q.to(device),
            p.k.to(device),
            p.score.replaced(move),
            p.mask,
            None if p.bias is None else p.bias.replaced(move),
            move(p.scale),
            p.softcap,
            move(p.sinks),
            p.dropout,
            p.geometry.lead,
        )
        return Attention(moved, self._cast)

    def __getstate__(self) -> dict[str, Any]:
        self._check_fresh()
        state = {name: x for name, x in self.__dict__.items() if name != "_versions"}
        return {**state, "_lse": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._versions = tuple(_version(x) for x in self.problem.tensors())

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


class Scores:
    """The logits z of an attention matrix: softcap(scale · score) + bias, −∞ where masked."""

    def __init__(self, matrix: Attention) -> None:
        self.matrix = matrix

    def __getitem__(self, index: Any) -> Tensor:
        """Return z[..., rows, cols], exact, in the dtype it is computed in."""
        m = self.matrix
        lead, rows, cols = split(index, m.ndim)
        part = m._lead(lead) if lead else m
        m._check_fresh()

        def tile(r: Tensor | None, c: Tensor | None) -> Tensor:
            with no_autocast(m.device):
                z = part.problem.ready().masked(r, c)
            return z.expand(*part.shape[:-2], *z.shape[-2:])

        return take(tile, rows, cols, m.shape, m.device)


def _problem(
    q: Tensor,
    k: Tensor,
    score: Score | None,
    mask: Mask | Tensor | Numbers | None,
    bias: Bias | Tensor | Numbers | None,
    scale: float | Tensor | Numbers | None,
    softcap: float | None,
    sinks: Tensor | Numbers | None,
    dropout: float,
) -> tuple[Problem, bool]:
    """Check what `attend` was given; and say whether autocast was on."""
    if q.ndim < 2 or k.ndim < 2:
        name, x = ("q", q) if q.ndim < 2 else ("k", k)
        raise build(ArgumentError, name, "at least two axes (…, steps, d)", shape_of(x))
    autocast = in_autocast(q.device)
    if autocast:
        to = torch.get_autocast_dtype(q.device.type)
        q, k = (x.to(to) if x.dtype is not torch.float64 else x for x in (q, k))
    if q.dtype != k.dtype or q.device != k.device:
        raise build(
            KindError,
            "k",
            f"dtype and device of q, {q.dtype} on {q.device}",
            f"{k.dtype} on {k.device}",
            fix="convert one of them with .to(…), an array with .astype(…)",
        )
    score = DOT if score is None else score
    if score is not DOT and not isinstance(score, Score):
        raise build(
            KindError, "score", "a score such as intently.scores.Dot()", type(score).__name__
        )
    if score is not DOT or q.shape[-1] != k.shape[-1]:
        score.check(q, k)
    lead = _leading(q, k)
    if dropout:
        probability(dropout, "dropout")
    if softcap is not None and (
        softcap is True or not isinstance(softcap, (int, float)) or not 0 < softcap < math.inf
    ):
        raise build(ArgumentError, "softcap", "a finite number > 0, or None", repr(softcap))
    if scale is None:
        scale = score.default_scale(q.shape[-1])
    elif not isinstance(scale, (int, float)):
        scale = as_tensor(scale, "scale", q)
    elif isinstance(scale, bool) or not math.isfinite(scale):
        raise build(
            ArgumentError,
            "scale",
            "a finite number, a tensor () or (…, 1, 1), or None",
            repr(scale),
        )
    rule = None if mask is None else as_mask(mask, q.device)
    added = None if bias is None else as_bias(bias, q)
    sinks = None if sinks is None else as_tensor(sinks, "sinks", q)
    problem = Problem(q, k, score, rule, added, scale, softcap, sinks, dropout, lead)
    if rule is not None:
        rule.check(problem.geometry)
    if added is not None:
        added.check(problem.geometry)
    if sinks is not None:
        _check_device(sinks, "sinks", q)
        own = tuple(sinks.shape)
        if own not in ((), lead[-1:]) and not _broadcasts(own, lead):
            raise build(ArgumentError, "sinks", f"shape () or (h,) = {lead[-1:]}", shape_of(sinks))
    if isinstance(scale, Tensor):
        _check_device(scale, "scale", q)
        check_broadcast(scale, problem.geometry._replace(t=1, s=1), "scale")
    return problem, autocast


def _product(problem: Problem, v: Tensor, autocast: bool) -> Tensor:
    """Y (…, h, t, e) by the kernel that is chosen for it."""
    v = _values(problem, v, autocast)
    with no_autocast(problem.q.device):
        problem = problem if problem.score is DOT else problem.as_dot()
        return kernels.choose(problem, v).multiply(problem, v)


_OURS = _product


def replaced() -> bool:
    """Whether another function stands in for the one that every product passes, to watch, say."""
    return _product is not _OURS


def _values(p: Problem, v: Tensor, autocast: bool) -> Tensor:
    """Check the values (…, g, s, e), and share them as the keys are shared where they can be."""
    if autocast and v.dtype is not torch.float64:
        v = v.to(p.q.dtype)
    check_product(p.geometry.shape, p.q.dtype, p.q.device, v)
    lead, shared = v.shape[:-2], p.k.shape[:-2]
    if lead == shared:
        return v
    if p.groups > 1 and v.ndim >= 3 and lead[-1] not in (1, p.k.shape[-3]):
        raise build(ArgumentError, "v", f"g={p.k.shape[-3]} heads like k", shape_of(v))
    try:
        if torch.broadcast_shapes(lead, shared) == shared:
            return v.expand(*shared, *v.shape[-2:])
        if p.groups > 1 and lead:
            v = v.expand(*lead[:-1], p.k.shape[-3], *v.shape[-2:])
            lead = (*lead[:-1], p.geometry.lead[-1])
        torch.broadcast_shapes(lead, p.geometry.lead)
    except RuntimeError:
        raise build(
            ArgumentError, "v", f"leading axes that broadcast with {p.geometry.lead}", shape_of(v)
        ) from None
    return v


def _version(x: Tensor) -> int | None:
    return None if torch.compiler.is_compiling() or x.is_inference() else x._version


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def _usual(x: Any) -> TypeGuard[Tensor]:
    return isinstance(x, Tensor) and x.dtype in _DTYPES


def _tensors(**operands: Any) -> tuple[Tensor, ...]:
    """`as_tensors`, in dtypes in which attention is computed."""
    found = as_tensors(**operands)
    for name, x in zip(operands, found):
        if x.dtype not in _DTYPES:
            raise build(
                KindError,
                name,
                "float32, float64, bfloat16 or float16",
                f"dtype {x.dtype}",
                fix="convert it with .to(…)",
            )
    return found


def _leading(q: Tensor, k: Tensor) -> tuple[int, ...]:
    lead_q, lead_k = q.shape[:-2], k.shape[:-2]
    if lead_q == lead_k:
        return tuple(lead_q)
    if q.ndim >= 4 and k.ndim >= 3 and lead_k[-1] and lead_q[-1] % lead_k[-1] == 0:
        lead_k = (*lead_k[:-1], lead_q[-1])
        if lead_q == lead_k:
            return lead_k
    try:
        return tuple(torch.broadcast_shapes(lead_q, lead_k))
    except RuntimeError:
        raise build(
            ArgumentError,
            "k",
            f"leading axes that broadcast with those of q {tuple(lead_q)}",
            shape_of(k),
            "heads are axis −3; with four or more axes h may be a multiple of g",
        ) from None


def _broadcasts(shape: tuple[int, ...], lead: tuple[int, ...]) -> bool:
    fits = all(a in (1, n) for a, n in zip(shape[::-1], lead[::-1]))
    return len(shape) <= len(lead) and fits


def _check_device(x: Tensor, name: str, q: Tensor) -> None:
    if x.device != q.device:
        raise build(
            KindError, name, f"numbers on the device of q, {q.device}", f"{x.dtype} on {x.device}"
        )
