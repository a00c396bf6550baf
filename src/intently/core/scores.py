"""Score functions measure how well a query matches a key, before scale, softcap, bias and mask.

A score is a value passed to ``attend(q, k, score=…)``: it turns queries (…, t, d) and keys
(…, s, d) into raw scores (…, t, s). Queries and keys arrive in the accumulation dtype; a score
casts its own tensors to this dtype. Tensors of a score may have leading axes, such as (h, …), which
broadcast with those of the matrix.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd import Function

from intently.core.masks.geometry import Geometry, broadcasts, check_device
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.values import Value

SLICE = 2**20
"""Numbers that one slice of the additive score's (…, t, s, a) holds at most."""


class Score(Value):
    """The interface of scores; a subclass defines ``operands``, or else ``__call__``."""

    axes: ClassVar[tuple[int, ...]] = ()
    """For each part, how many of its last axes are its own; those before them are leading."""

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Raw scores (…, t, s) of queries (…, t, d) against keys (…, s, d)."""
        made = self.operands(q, k)
        if made is None:
            raise NotImplementedError(f"{type(self).__name__} gives neither operands nor __call__")
        return made[0] @ made[1].mT

    def operands(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor] | None:
        """Queries and keys whose dot products are the scores; None if there are none.

        With ``operands``, kernels for dot products also support the score.
        """
        return None

    def default_scale(self, d: int) -> float:
        """Return the default scale."""
        return 1.0

    def check(self, q: Tensor, k: Tensor) -> None:
        """Raise if the widths of q and k, the leading axes or the device do not fit."""
        if q.shape[-1] != k.shape[-1]:
            got, cause = shape_of(k), "queries and keys of a dot product have the same width"
            raise build(ArgumentError, "k", f"shape (…, s, d={q.shape[-1]}) like q", got, cause)

    def part(self, index: tuple[Any, ...], g: Geometry) -> Score:
        """Return the same score for the part of the matrix that ``index`` picks by leading axes."""
        if all(x.ndim == n for x, n in self._own()):
            return self
        own = [x.expand(*g.lead, *x.shape[x.ndim - n :])[index] for x, n in self._own()]
        left = iter(own)
        return type(self)(*[next(left) if isinstance(p, Tensor) else p for p in self.parts])

    def _own(self) -> list[tuple[Tensor, int]]:
        return [(p, n) for p, n in zip(self.parts, self.axes) if isinstance(p, Tensor)]

    def _check_tensors(self, q: Tensor, k: Tensor) -> None:
        """Raise unless the score's tensors broadcast with the leading axes of q and k."""
        lead = _joined_lead(q, k)
        for x, n in self._own():
            check_device(x, "score", q.device)
            own = tuple(x.shape[: x.ndim - n])
            if not broadcasts(own, lead):
                raise build(
                    ArgumentError,
                    "score",
                    f"leading axes that broadcast to {lead}",
                    f"{own} in a tensor of {shape_of(x)}",
                    "a tensor for each head begins with (h, …), heads being axis −3 of q",
                )

    def __repr__(self) -> str:
        shapes = ["×".join(map(str, x.shape)) + " tensor" for x, _ in self._own()]
        return f"{type(self).__name__}({', '.join(shapes)})"


class Dot(Score):
    """The dot product q·k; scaled by 1/√d by default.

    Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.1, equation 1.

    >>> import torch
    >>> Dot()(torch.eye(2), torch.eye(2))
    tensor([[1., 0.],
            [0., 1.]])
    """

    def operands(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def default_scale(self, d: int) -> float:
        """Return 1/√d, so that scores of random vectors keep unit variance."""
        return 1 / math.sqrt(d) if d else 1.0


class General(Score):
    """The bilinear score qᵀ W k, for queries (…, t, d) and keys (…, s, d_k); not scaled.

    ``weight`` (…, d, d_k). Raises `ArgumentError` if widths do not fit.

    Source: Luong et al. 2015, "Effective Approaches to Attention-based Neural Machine
    Translation", section 3.1, equation 8 ("general").

    >>> import torch
    >>> General(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))(torch.eye(2), torch.eye(2))
    tensor([[0., 1.],
            [1., 0.]])
    """

    axes = (2,)

    def __init__(self, weight: Tensor) -> None:
        _check_tensor(weight, "weight", "(…, d, d_k)", 2)
        super().__init__(weight)

    def operands(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q @ self.parts[0].to(q.dtype), k

    def check(self, q: Tensor, k: Tensor) -> None:
        d, d_k = self.parts[0].shape[-2:]
        _check_width(q, "q", "t", "d", d)
        _check_width(k, "k", "s", "d_k", d_k)
        self._check_tensors(q, k)


class Cosine(Score):
    """The cosine of the angle between q and k, from −1 to 1; not scaled.

    A vector of zeros has cosine 0 with everything, and gradient 0. ``scale=`` is the key strength
    β of the source.

    Source: Graves et al. 2014, "Neural Turing Machines", section 3.3.1, equation 6.

    >>> import torch
    >>> q, k = torch.tensor([[3.0, 4.0]]), torch.tensor([[6.0, 8.0], [0.0, 1.0], [0.0, 0.0]])
    >>> Cosine()(q, k)
    tensor([[1.0000, 0.8000, 0.0000]])
    """

    def operands(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return _unit(q), _unit(k)


class Additive(Score):
    """A layer of a units: vᵀ tanh(W q + U k + bias), for queries of width d, keys of width d_k.

    ``query_weight`` W (…, a, d), ``key_weight`` U (…, a, d_k), ``energy`` v (…, a) and, if there
    is one, ``bias`` (…, a). Not scaled. Raises `ArgumentError` if sizes do not fit.

    Its (…, t, s, a) numbers are computed in slices of at most 2²⁰ (4 MiB of float32) and recomputed
    for the first derivative, so that nothing of that size is stored; second derivatives store all
    of them.

    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
    Translate", appendix A.1.2.

    >>> import torch
    >>> score = Additive(torch.ones(1, 2), torch.ones(1, 3), torch.tensor([2.0]))
    >>> score(torch.zeros(1, 2), 0.5 * torch.eye(3)[:2])
    tensor([[0.9242, 0.9242]])
    """

    axes = (2, 2, 1, 1)

    def __init__(
        self, query_weight: Tensor, key_weight: Tensor, energy: Tensor, bias: Tensor | None = None
    ) -> None:
        _check_tensor(query_weight, "query_weight", "(…, a, d)", 2)
        a = query_weight.shape[-2]
        _check_tensor(key_weight, "key_weight", f"(…, a={a}, d_k)", 2, a)
        _check_tensor(energy, "energy", f"(…, a={a})", 1, a)
        if bias is not None:
            _check_tensor(bias, "bias", f"(…, a={a})", 1, a)
        super().__init__(query_weight, key_weight, energy, bias)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        """Raw scores (…, t, s), summed over the units in slices."""
        w, u, energy = (p.to(q.dtype) for p in self.parts[:3])
        x, y = q @ w.mT, k @ u.mT
        if self.parts[3] is not None:
            y = y + self.parts[3].to(q.dtype)[..., None, :]
        return energies(x, y, energy)

    def check(self, q: Tensor, k: Tensor) -> None:
        _check_width(q, "q", "t", "d", self.parts[0].shape[-1])
        _check_width(k, "k", "s", "d_k", self.parts[1].shape[-1])
        self._check_tensors(q, k)


def concat(weight: Tensor, energy: Tensor, d: int | None = None) -> Additive:
    """Return the score vᵀ tanh(W [q; k]): additive attention with W and U concatenated.

    ``weight`` (…, a, d + d_k), its first ``d`` columns for the queries (half of them unless
    given); ``energy`` v (…, a). Raises `ArgumentError` if sizes do not fit.

    Source: Luong et al. 2015, section 3.1, equation 8 ("concat").

    >>> import torch
    >>> concat(torch.ones(4, 6), torch.ones(4))
    Additive(4×3 tensor, 4×3 tensor, 4 tensor)
    """
    _check_tensor(weight, "weight", "(…, a, d + d_k)", 2)
    wide = weight.shape[-1]
    if d is None and wide % 2:
        expected = "an even number of columns, half for q and half for k"
        fix = "pass the width of the queries: concat(weight, energy, d)"
        raise build(ArgumentError, "weight", expected, shape_of(weight), fix=fix)
    d = wide // 2 if d is None else d
    if not 0 <= d <= wide:
        raise build(ArgumentError, "d", f"a number of columns from 0 to {wide}", d)
    return Additive(weight[..., :d], weight[..., d:], energy)


DOT = Dot()


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1; zeros stay zeros. Divided by the largest entry, squares stay finite."""
    if not x.shape[-1]:
        return x
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    y = x / largest.masked_fill(zero, 1)
    return torch.where(zero, 0, y / (y * y).sum(-1, keepdim=True).masked_fill(zero, 1).sqrt())


def energies(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Σₐ v tanh(x + y), (…, t, s), for x (…, t, a), y (…, s, a) and v (…, a)."""
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2], v.shape[:-1])
    n = math.prod(lead)
    x, y = (i.expand(*lead, *i.shape[-2:]).reshape(n, *i.shape[-2:]) for i in (x, y))
    v = v.expand(*lead, v.shape[-1]).reshape(n, v.shape[-1])
    return _energies(x, y, v).reshape(*lead, x.shape[-2], y.shape[-2])


def _energies(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    """Σₐ v tanh(x + y) for x (n, t, a), y (n, s, a), v (n, a): halved until a slice is small."""
    if torch.compiler.is_compiling():  # the compiler fuses the sum and builds no (n, t, s, a)
        return _plain_energies(x, y, v)
    n, t, s = x.shape[0], x.shape[1], y.shape[1]
    longest = max(n, t, s)
    if longest < 2 or n * t * s * v.shape[-1] <= SLICE:
        return _EnergySum.apply(x, y, v)  # pyright: ignore[reportReturnType]
    if n == longest:
        halves = zip(x.chunk(2), y.chunk(2), v.chunk(2))
        return torch.cat([_energies(*half) for half in halves])
    if t == longest:
        return torch.cat([_energies(half, y, v) for half in x.chunk(2, 1)], 1)
    return torch.cat([_energies(x, half, v) for half in y.chunk(2, 1)], 2)


def _plain_energies(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
    units = torch.tanh(x[:, :, None] + y[:, None])
    n, t, s, a = units.shape
    return (units.reshape(n, t * s, a) @ v[..., None]).reshape(n, t, s)


class _EnergySum(Function):
    """`_plain_energies`, keeping x, y and v for its derivatives instead of (n, t, s, a) numbers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return _plain_energies(x, y, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (grad,) = grad_outputs
        x, y, v = ctx.saved_tensors
        units = torch.tanh(x[:, :, None] + y[:, None])
        n, t, s, a = units.shape
        dv = (units.reshape(n, t * s, a).mT @ grad.reshape(n, t * s, 1))[..., 0]
        slope = (1 - units * units) * (grad[..., None] * v[:, None, None])
        return slope.sum(2), slope.sum(1), dv

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor) -> Tensor:
        dx, dy, dv = grad_inputs
        x, y, v = ctx.saved_tensors
        units = torch.tanh(x[:, :, None] + y[:, None])
        slope = (1 - units * units) * (dx[:, :, None] + dy[:, None])
        return (slope * v[:, None, None] + units * dv[:, None, None]).sum(-1)


def _joined_lead(q: Tensor, k: Tensor) -> tuple[int, ...]:
    """The leading axes of the matrix; shared key heads count as query heads."""
    lead_q, lead_k = list(q.shape[:-2]), list(k.shape[:-2])
    n = max(len(lead_q), len(lead_k))
    both = zip([1] * (n - len(lead_q)) + lead_q, [1] * (n - len(lead_k)) + lead_k)
    return tuple(b if a == 1 else a for a, b in both)


def _check_tensor(x: Any, name: str, want: str, ndim: int, a: int | None = None) -> None:
    check_floats(x, name, f"a floating-point tensor {want}")
    if x.ndim < ndim or (a is not None and x.shape[-ndim] != a):
        raise build(ArgumentError, name, f"shape {want}", shape_of(x))


def _check_width(x: Tensor, name: str, steps: str, width: str, size: int) -> None:
    if x.shape[-1] != size:
        expected = f"shape (…, {steps}, {width}={size}), as the score was made for"
        raise build(ArgumentError, name, expected, shape_of(x))
