"""Run a JAX function on torch tensors: its program is traced once, and interpreted with torch.

All floats are float64. A softmax stays a maximum, an exponential and a sum, and a product of
matrices becomes one of torch, so what follows torch operations can follow them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial, reduce
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

CALLS = ("jit", "pjit", "closed_call", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call")
"""Primitives that run a program of their own."""
NAMED = {
    **{"logistic": "sigmoid", "is_finite": "isfinite", "add_any": "add", "stop_gradient": "detach"},
    **{"max": "maximum", "min": "minimum", "rem": "fmod", "xor": "bitwise_xor"},
    **{"and": "bitwise_and", "or": "bitwise_or", "not": "bitwise_not", "erf_inv": "erfinv"},
}
"""Functions of each number that torch names otherwise."""


def is_jax(call: Callable[..., Any], inputs: Any) -> bool:
    """Whether there are JAX arrays among inputs, or the function is one that JAX has made."""
    jax = sys.modules.get("jax")
    if jax is None or not hasattr(jax, "tree_util"):
        return False
    arrays = any(isinstance(x, jax.Array) for x in jax.tree_util.tree_leaves(inputs))
    return arrays or type(call).__module__.split(".")[0] in ("jax", "jaxlib")


def tensor_of(x: Any) -> Tensor:
    """A JAX array as a tensor: of its dtype, but of int64 where it has no sign."""
    values = np.asarray(x)
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.astype(np.float32)).bfloat16()
    return torch.from_numpy(values.astype(np.int64) if values.dtype.kind == "u" else values.copy())


class Program:
    """A function of tensors that computes what a JAX function does, in float64.

    It is called as the function is with ``example``; ints, bools and the like stay as they are.
    It is traced for each kind of inputs.
    """

    def __init__(self, call: Callable[..., Any], example: dict[str, Any]) -> None:
        self.call, self.names = call, tuple(example)
        self.traced: dict[Any, tuple[Any, Any, list[bool]]] = {}
        self.known: dict[int, tuple[Any, Any]] = {}
        self.__wrapped__ = call

    @property
    def constants(self) -> list[Tensor]:
        """The tensors of the arrays that the function holds, always the same, once traced."""
        return [t for _, t in self.known.values() if isinstance(t, Tensor) and t.ndim]

    def __call__(self, *args: Any, **given: Any) -> Any:
        import jax

        leaves, tree = jax.tree_util.tree_flatten({**dict(zip(self.names, args)), **given})
        leaves = [_widened(tensor_of(x) if _is_array(x) else x) for x in leaves]
        program, out, seen = self._trace(leaves, tree)
        made = self._closed(program, [x for x, s in zip(leaves, seen) if s])
        return jax.tree_util.tree_unflatten(out, made)

    def _trace(self, leaves: list[Any], tree: Any) -> tuple[Any, Any, list[bool]]:
        """The program for inputs of such shapes, what it returns, and which inputs it has.

        It is traced in float64 if it can be, so that its constants are exact; whole numbers and
        masks are inputs of it, if they can be.
        """
        import jax.experimental

        errors: list[Exception] = []
        for concrete, wide in product((False, True), (True, False)):
            seen = [
                isinstance(x, Tensor) and (x.is_floating_point() or not concrete) for x in leaves
            ]
            key = (tree, concrete, *map(_described, leaves, seen))
            if key in self.traced:
                return self.traced[key]
            holder = jax if hasattr(jax, "enable_x64") else jax.experimental
            with holder.enable_x64(wide):  # pyright: ignore
                shown = [_shown(jax, x, s, wide) for x, s in zip(leaves, seen)]

                def traced(*arrays: Any, shown: Any = shown, seen: Any = seen) -> Any:
                    rest = iter(arrays)
                    filled = [next(rest) if s else x for x, s in zip(shown, seen)]
                    return self.call(**jax.tree_util.tree_unflatten(tree, filled))

                try:
                    make = jax.make_jaxpr(traced, return_shape=True)
                    program, out = make(*(x for x, s in zip(shown, seen) if s))
                    out = jax.tree_util.tree_structure(out)
                    return self.traced.setdefault(key, (program, out, seen))
                except Exception as raised:  # whatever the code does with it
                    errors.append(raised)
        raise errors[0]

    def _closed(self, program: Any, args: Sequence[Tensor]) -> list[Tensor]:
        """What a program returns; it may be one without constants of its own."""
        inner = getattr(program, "jaxpr", program)
        known = dict(zip(inner.constvars, map(self._constant, getattr(program, "consts", ()))))
        known.update(zip(inner.invars, args))

        def values(given: Any) -> list[Tensor]:
            return [self._constant(v.val) if hasattr(v, "val") else known[v] for v in given]

        for eqn in inner.eqns:
            made = self._step(eqn, values(eqn.invars), eqn.params)
            known.update(zip(eqn.outvars, made if isinstance(made, (list, tuple)) else [made]))
        return values(inner.outvars)

    def _constant(self, x: Any) -> Tensor:
        if id(x) not in self.known:
            self.known[id(x)] = x, _kept(x)
        return self.known[id(x)][1]

    def _step(self, eqn: Any, xs: list[Tensor], p: dict[str, Any]) -> Any:
        """What one operation of a program makes; JAX computes what torch has not, of constants."""
        name: str = eqn.primitive.name
        if name.removesuffix("_jaxpr") in CALLS:
            inner = next(p[n] for n in ("jaxpr", "call_jaxpr", "fun_jaxpr") if n in p)
            return self._closed(inner, xs)
        if name == "scan":
            return self._scan(xs, p)
        if name == "while":
            m, n = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
            state = xs[n:]
            while bool(self._closed(p["cond_jaxpr"], [*xs[:m], *state])[0]):
                state = self._closed(p["body_jaxpr"], [*xs[m:n], *state])
            return state
        if name == "cond":
            branch = min(max(int(xs[0]), 0), len(p["branches"]) - 1)
            return self._closed(p["branches"][branch], xs[1:])
        if not all(isinstance(x, Tensor) for x in xs):  # keys of random numbers
            return self._bound(eqn, xs, p)
        if name in RULES:
            return RULES[name](*xs, **p)
        by = getattr(torch, NAMED.get(name, name), None)
        plain = p.keys() <= {"accuracy", "rounding_method", "out_sharding", "out_dtype"}
        return by(*xs) if by and plain else self._bound(eqn, xs, p)

    def _bound(self, eqn: Any, xs: Sequence[Any], p: dict[str, Any]) -> Any:
        """What JAX itself computes."""
        if any(isinstance(x, Tensor) and x.requires_grad for x in xs):
            raise NotImplementedError(f"the operation {eqn.primitive.name!r} of JAX")
        kinds = (v.aval.dtype for v in eqn.invars)
        given = (x.numpy().astype(n) if isinstance(x, Tensor) else x for x, n in zip(xs, kinds))
        made = eqn.primitive.bind(*given, **p)
        return [*map(_kept, made)] if isinstance(made, (list, tuple)) else _kept(made)

    def _scan(self, xs: list[Tensor], p: dict[str, Any]) -> list[Tensor]:
        m, n = p["num_consts"], p["num_consts"] + p["num_carry"]
        carry, rows, way = xs[m:n], list[list[Tensor]](), -1 if p["reverse"] else 1
        for step in range(p["length"])[::way]:
            made = self._closed(p["jaxpr"], [*xs[:m], *carry, *(x[step] for x in xs[n:])])
            carry = made[: n - m]
            rows.append(made[n - m :])
        return [*carry, *map(torch.stack, zip(*rows[::way]))]


def _kept(x: Any) -> Any:
    """A constant as a tensor; a key of random numbers as it is."""
    return x if str(getattr(x, "dtype", "")).startswith("key<") else _widened(tensor_of(x))


def _is_array(x: Any) -> bool:
    """Whether something is an array of numbers of JAX or NumPy."""
    dtype = None if isinstance(x, (Tensor, np.generic)) else getattr(x, "dtype", None)
    return isinstance(dtype, np.dtype)


def _described(x: Any, traced: bool) -> Any:
    return (x.dtype, *x.shape) if traced else repr(x.tolist() if isinstance(x, Tensor) else x)


def _shown(jax: Any, x: Any, traced: bool, wide: bool) -> Any:
    """What a function is traced with: shapes, masks and whole numbers, settings."""
    if not traced:
        return jax.numpy.asarray(x.numpy()) if isinstance(x, Tensor) else x
    name = str(x.dtype).removeprefix("torch.")
    return jax.ShapeDtypeStruct(tuple(x.shape), name if wide else name.replace("64", "32"))


def _kind(dtype: Any) -> torch.dtype:
    kind = np.dtype(dtype).kind
    return torch.bool if kind == "b" else torch.long if kind in "iu" else torch.double


def _widened(x: Any) -> Any:
    if not isinstance(x, Tensor) or x.dtype is torch.bool:
        return x
    return x.double() if x.is_floating_point() else x.long()


def _broadcast(x: Tensor, *, shape: Any, broadcast_dimensions: Any, **_: Any) -> Tensor:
    sizes = dict(zip(broadcast_dimensions, x.shape))
    return x.reshape([sizes.get(n, 1) for n in range(len(shape))]).expand(shape)


def _dot(x: Tensor, y: Tensor, *, dimension_numbers: Any, **_: Any) -> Tensor:
    """A sum over products, as a product of matrices for each place of a batch."""
    (xc, yc), (xb, yb) = dimension_numbers
    along = dict(zip((*yc, *yb), (*xc, *xb)))
    names = [along.get(n, x.ndim + n) for n in range(y.ndim)]
    free = [n for n in range(x.ndim) if n not in (*xc, *xb)] + [n for n in names if n >= x.ndim]
    x, y = (t.long() if t.dtype is torch.bool else t for t in (x, y))
    return torch.einsum(x, [*range(x.ndim)], y, names, [*xb, *free])


def _pad(x: Tensor, value: Tensor, *, padding_config: Any) -> Tensor:
    """With a value between the numbers of an axis, and around them; less of it where negative."""
    apart = [max(n + (n - 1) * inner, 0) for n, (*_, inner) in zip(x.shape, padding_config)]
    y = value.expand(apart).clone()
    y[tuple(slice(None, None, inner + 1) for *_, inner in padding_config)] = x
    around = [n for before, after, _ in padding_config[::-1] for n in (before, after)]
    return torch.constant_pad_nd(y, around, value.item())


def _part(shape: Any, sizes: Any, starts: Any) -> tuple[slice, ...]:
    """Where a block of a size starts, moved to be inside of what it is a block of."""
    at = [min(max(int(s), 0), n - m) for n, m, s in zip(shape, sizes, starts)]
    return tuple(slice(a, a + m) for a, m in zip(at, sizes))


def _put(x: Tensor, update: Tensor, *starts: Tensor, **_: Any) -> Tensor:
    y = x.clone()
    y[_part(x.shape, update.shape, starts)] = update
    return y


def _iota(*_: Any, dtype: Any, shape: Any, dimension: int, **__: Any) -> Tensor:
    along = [-1 if n == dimension else 1 for n in range(len(shape))]
    return torch.arange(shape[dimension], dtype=_kind(dtype)).view(along).expand(shape)


def _running(x: Tensor, *, by: Any, axis: int, reverse: bool = False) -> Tensor:
    y = by(x.flip(axis) if reverse else x, axis)
    y = y if isinstance(y, Tensor) else y[0]  # with the places of maxima
    return y.flip(axis) if reverse else y


def _chosen(which: Tensor, *cases: Tensor) -> Tensor:
    if which.dtype is torch.bool:
        return torch.where(which, cases[1], cases[0])
    return reduce(lambda y, n: torch.where(which == n, cases[n], y), range(len(cases)), cases[0])


def _sorted(*xs: Tensor, dimension: int, num_keys: int, **_: Any) -> list[Tensor]:
    for key in reversed(range(num_keys)):
        at = xs[key].argsort(dim=dimension, stable=True)
        xs = tuple(x.take_along_dim(at, dimension) for x in xs)
    return list(xs)


def _at(places: Any, shape: Sequence[int]) -> tuple[Tensor, ...]:
    """Where numbers are that were counted, along each axis."""
    return tuple(map(torch.from_numpy, np.unravel_index(np.asarray(places), shape)))


def _gather(x: Tensor, at: Tensor, *, dimension_numbers: Any, slice_sizes: Any, **p: Any) -> Tensor:
    """What JAX chooses, which is asked for the places."""
    from jax import lax

    d, rows = dimension_numbers, (1, *x.shape[1:])
    last = d.offset_dims == (*range(at.ndim - 1, at.ndim + x.ndim - 2),)
    whole = last and d.collapsed_slice_dims == d.start_index_map == (0,) and slice_sizes == rows
    if whole and ((at >= 0) & (at < len(x))).all():
        return x[at[..., 0]]
    counted, mode = np.arange(x.numel(), dtype=np.int32).reshape(x.shape), p["mode"]
    found = lax.gather(counted, at.numpy(), d, slice_sizes, mode=mode, fill_value=-1)
    y, fill = x[_at(np.maximum(found, 0), x.shape)], p.get("fill_value")
    fill = fill if fill is not None else math.nan if y.is_floating_point() else -(2**31)
    outside = torch.from_numpy(np.asarray(found) < 0)
    return torch.where(outside, torch.tensor(fill, dtype=y.dtype), y) if outside.any() else y


def into_rows(x: Tensor, rows: Tensor, new: Tensor, by: str) -> Tensor:
    """Rows added to others, or the larger or smaller numbers of both."""
    if by == "add":
        return x.index_add(0, rows, new.to(x.dtype))
    at = rows.view(-1, *[1] * (x.ndim - 1)).expand_as(new)
    return x.scatter_reduce(0, at, new.to(x.dtype), f"a{by}")


def _scatter(
    x: Tensor, at: Tensor, new: Tensor, *, dimension_numbers: Any, mode: Any, by: str = "", **_: Any
) -> Tensor:
    """What JAX puts somewhere: the places are the gradient of a sum, of numbers that count."""
    import jax

    d, inside = dimension_numbers, bool(((at >= 0) & (at < len(x))).all())
    rows = d.inserted_window_dims == d.scatter_dims_to_operand_dims == (0,) and at.ndim == 2
    if by in ("add", "max", "min") and inside and rows:  # as the sums of segments are
        return into_rows(x, at[:, 0], new, by)

    def put(y: Any) -> Any:
        zeros = np.zeros(x.shape, np.float32)
        return jax.lax.scatter_add(zeros, at.numpy(), y, dimension_numbers, mode=mode)

    counted = np.arange(1, x.numel() + 1, dtype=np.float32).reshape(x.shape)
    (found,) = jax.vjp(put, np.zeros(new.shape, np.float32))[1](counted)
    places = np.asarray(found).astype(np.int64) - 1
    kept = torch.from_numpy(places >= 0)
    new, places = (new, places) if kept.all() else (new[kept], places[places >= 0])
    found = _at(places, x.shape)
    return x.index_put(found, x[found] * new if by == "mul" else new, accumulate=by == "add")


def _convolved(x: Tensor, w: Tensor, *, dimension_numbers: Any, **p: Any) -> Tensor:
    d = dimension_numbers
    if any(n != 1 for n in p["lhs_dilation"]) or p["batch_group_count"] != 1:
        raise NotImplementedError("a transposed or grouped convolution of JAX")
    x = torch.constant_pad_nd(x.permute(*d.lhs_spec), sum(map(tuple, p["padding"][::-1]), ()))
    stride, dilation, groups = p["window_strides"], p["rhs_dilation"], p["feature_group_count"]
    none = [0] * len(stride)
    y = torch.convolution(
        x, w.permute(*d.rhs_spec), None, stride, none, dilation, False, none, groups
    )
    return y.permute(*np.argsort(d.out_spec).tolist())


def _reduced(x: Tensor, *, axes: Any, by: Any, **_: Any) -> Tensor:
    return by(x, axes) if axes else x


SAME = ("copy", "copy_p", "reduce_precision", "sharding_constraint", "mesh_cast", "pvary")
RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(SAME, lambda x, **_: x),
    "cumlogsumexp": partial(_running, by=torch.logcumsumexp),
    **{n: partial(_running, by=getattr(torch, n)) for n in ("cumsum", "cumprod")},
    **{n: partial(_running, by=getattr(torch, n)) for n in ("cummax", "cummin")},
    "reduce_sum": partial(_reduced, by=torch.sum),
    **{f"reduce_{n}": partial(_reduced, by=getattr(torch, f"a{n}")) for n in ("max", "min")},
    **{"reduce_or": partial(_reduced, by=torch.any), "reduce_and": partial(_reduced, by=torch.all)},
    "reduce_prod": lambda x, axes, **_: reduce(torch.prod, sorted(axes, reverse=True), x),
    **{"broadcast_in_dim": _broadcast, "pad": _pad, "dot_general": _dot, "iota": _iota},
    **{"select_n": _chosen, "sort": _sorted, "gather": _gather, "conv_general_dilated": _convolved},
    "scatter": _scatter,
    **{f"scatter-{n}": partial(_scatter, by=n) for n in ("add", "mul", "max", "min")},
    "convert_element_type": lambda x, new_dtype, **_: x.to(_kind(new_dtype)),
    "div": lambda x, y: x / y if x.is_floating_point() else torch.div(x, y, rounding_mode="trunc"),
    "integer_pow": lambda x, y: x**y,
    "optimization_barrier": lambda *xs: list(xs),
    "clamp": lambda low, x, high: torch.minimum(torch.maximum(x, low), high),
    "argmax": lambda x, axes, **_: x.argmax(axes[0]),
    "argmin": lambda x, axes, **_: x.argmin(axes[0]),
    "top_k": lambda x, k, axis=-1, **_: list(x.topk(k, axis)),
    "reshape": lambda x, new_sizes, dimensions=None, **_: x.permute(
        dimensions or [*range(x.ndim)]
    ).reshape(new_sizes),
    "transpose": lambda x, permutation: x.permute(permutation),
    "squeeze": lambda x, dimensions: x.squeeze(dimensions),
    "rev": lambda x, dimensions: x.flip(dimensions),
    "concatenate": lambda *xs, dimension: torch.cat(xs, dimension),
    "stack": lambda *xs, axis: torch.stack(xs, axis),
    "tile": lambda x, reps: x.tile(tuple(reps)),
    "split": lambda x, sizes, axis: list(x.split(sizes, axis)),
    "slice": lambda x, start_indices, limit_indices, strides: x[
        tuple(map(slice, start_indices, limit_indices, strides or [1] * x.ndim))
    ],
    "dynamic_slice": lambda x, *starts, slice_sizes: x[_part(x.shape, slice_sizes, starts)],
    "dynamic_update_slice": _put,
}
