"""Checks of the arguments of blocks: steps, contexts, caches, and an optional batch axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from intently.core.kernels.operands import in_autocast
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import check_kind
from intently.foundation.field_names import check_names_of
from intently.nn.caches.key_value import AsBefore, FixedCache, KeyValueCache
from intently.nn.caches.window import WindowCache

if TYPE_CHECKING:
    from intently.nn.projected_attention import Projected

Cache = KeyValueCache | WindowCache | FixedCache
CACHES = (KeyValueCache, WindowCache, FixedCache, type(None))


def check_steps(x: Tensor, name: str, weight: Tensor) -> None:
    """Raise unless x is a floating-point tensor like the layer's weights."""
    if not isinstance(x, Tensor) or x.dtype is not weight.dtype or x.device != weight.device:
        fix = "embed token ids first; NumPy arrays go through torch.as_tensor"
        check_floats(x, name, "a floating-point tensor (b, steps, width)", fix)
        check_dtype(x, name, weight)


def check_dtype(x: Tensor, name: str, weight: Tensor) -> None:
    """Raise unless x has the dtype and device of the layer's weights; autocast sees to dtypes."""
    same = x.dtype == weight.dtype or in_autocast(weight.device)
    if not same or x.device != weight.device:
        raise build(
            KindError,
            name,
            f"{weight.dtype} on {weight.device}, as the layer's weights",
            f"{x.dtype} on {x.device}",
            fix="convert one of them with .to(…)",
        )


def check_tokens(layer: Projected, x: Tensor, weight: Tensor) -> None:
    """Raise unless x (b, t, c) is as wide as a layer takes it."""
    check_steps(x, "x", weight)
    if x.ndim != 3 or x.shape[-1] != layer.width:
        raise build(ArgumentError, "x", f"shape (b, t, c={layer.width}), or (t, c)", shape_of(x))


def check_call(layer: Projected, x: Tensor, context: Tensor | None, cache: Cache | None) -> None:
    """Raise unless a layer can attend to x (b, t, c), or a context (b, s, k), with this cache."""
    check_kind(cache, CACHES, "cache", "a KeyValueCache, WindowCache or FixedCache")
    weight = layer.qkv_weight if layer.fused else layer.q_weight
    check_tokens(layer, x, weight)
    if context is not None:
        _check_context(layer, x, context, cache, weight)
    elif layer.context_width != layer.width and not (
        isinstance(cache, FixedCache) and cache.kv is not None
    ):
        raise build(
            ArgumentError,
            "context",
            f"shape (b, s, {layer.context_width})",
            "None",
            "this layer was made for cross-attention (context_width)",
        )
    if isinstance(cache, FixedCache):
        _check_fixed(layer, x, context, cache, weight)


def _check_context(
    layer: Projected, x: Tensor, context: Tensor, cache: Cache | None, weight: Tensor
) -> None:
    check_steps(context, "context", weight)
    want = (x.shape[0], layer.context_width)
    if context.ndim != 3 or (context.shape[0], context.shape[-1]) != want:
        raise build(
            ArgumentError, "context", f"shape (b={want[0]}, s, {want[1]})", shape_of(context)
        )
    if layer.attention.positions is not None:
        raise build(
            ArgumentError,
            "context",
            "none: positions rotate only the steps of x",
            shape_of(context),
            "the steps of x and of a context have no positions in common",
            "make the layer for cross-attention without positions",
        )
    if cache is not None and not isinstance(cache, FixedCache):
        got = f"a {type(cache).__name__}"
        raise build(
            ArgumentError, "cache", "a FixedCache beside a context", got, "a context does not grow"
        )


def _check_fixed(
    layer: Projected, x: Tensor, context: Tensor | None, cache: FixedCache, weight: Tensor
) -> None:
    if layer.attention.positions is not None:
        raise build(
            ArgumentError,
            "cache",
            "a KeyValueCache or WindowCache",
            "a FixedCache",
            "positions rotate the steps of x, which continue",
        )
    if cache.kv is None:
        if context is None:
            raise build(
                ArgumentError,
                "context",
                f"shape (b={len(x)}, s, {layer.context_width})",
                "None",
                "a FixedCache keeps the keys and values of a context, and is empty",
                "pass the context on the first call; x itself goes into a KeyValueCache",
            )
        return
    k, v = cache.kv
    if context is not None and context.shape[1] != k.shape[-2]:
        raise build(
            ArgumentError,
            "context",
            f"{k.shape[-2]} steps, as the FixedCache holds",
            shape_of(context),
            "it keeps the keys and values of its first context",
            "make a new cache for another context",
        )
    want, found = (x.shape[0], layer.kv_heads, layer.d, layer.e), (*k.shape[:2], k.shape[3])
    if (*found, v.shape[3]) != want:
        b, g, d, e = want
        raise build(
            ArgumentError,
            "cache",
            f"keys (b={b}, g={g}, s, d={d}) and values of e={e}",
            f"{shape_of(k)} and {shape_of(v)}",
            "it belongs to another batch or module",
            "make a new cache, or reorder(…) it to the rows you continue",
        )
    check_dtype(k, "cache", weight)


F = TypeVar("F", bound=Callable[..., Any])


def forgiving(axes: int, beside: str = "context") -> Callable[[F], F]:
    """Return a decorator: a method of a batch x also takes a single item with ``axes`` axes.

    An item x, and the second argument ``beside`` it (s, k), are read as a batch of one; masks and
    caches are those of that batch. The result, a tensor, a lazy matrix or matrices by name, has no
    batch axis. The method raises ArgumentError where only one of the two has a batch axis; if it
    raises, its ``cache`` is as before, and names of other libraries are answered with ours.

    >>> class Doubled:
    ...     @forgiving(2)
    ...     def __call__(self, x):
    ...         return 2 * x.view(1, 3, 4)
    >>> import torch
    >>> Doubled()(torch.zeros(3, 4)).shape, Doubled()(torch.zeros(1, 3, 4)).shape
    (torch.Size([3, 4]), torch.Size([1, 3, 4]))
    """

    def widened(method: F) -> F:
        def careful(self: Any, *given: Any, **options: Any) -> Any:
            if options.get("cache") is None:
                return method(self, *given, **options)
            with AsBefore(options["cache"]):
                return method(self, *given, **options)

        @wraps(method)
        def either(self: Any, *given: Any, **options: Any) -> Any:
            x = given[0] if given else options.get("x")
            try:
                if not isinstance(x, Tensor) or x.ndim != axes or len(given) > 2:
                    return careful(self, *given, **options)
                named = dict(zip(("x", beside), given)) | options | {"x": x[None]}
                if named.get(beside) is not None:
                    named[beside] = _batch(named[beside], beside)
                return _item(careful(self, **named))
            except TypeError as error:
                if not isinstance(error, KindError):
                    check_names_of(method, (self, *given), options)
                raise

        return either  # pyright: ignore[reportReturnType]

    return widened


def _batch(context: Any, name: str) -> Any:
    """Add a batch axis to one context; the method itself refuses non-tensors."""
    if not isinstance(context, Tensor):
        return context
    if context.ndim != 2:
        raise build(
            ArgumentError,
            name,
            "shape (s, k), as x has no batch axis",
            shape_of(context),
            fix="give both of them a batch axis, or none",
        )
    return context[None]


def _item(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: matrix[0] for name, matrix in found.items()}
    return found[0]
