"""Optional batch axes: a block accepts inputs with or without one and returns the same form."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor

from intently.errors import ArgumentError, build, shape_of
from intently.foundation.field_names import answered

F = TypeVar("F", bound=Callable[..., Any])


def batch_optional(axes: int, beside: str = "context") -> Callable[[F], F]:
    """Return a decorator: a method of a batch x also takes a single item with ``axes`` axes.

    An item x, and the second argument ``beside`` it (s, k), are read as a batch of one; masks and
    caches are those of that batch. The result, a tensor, a lazy matrix or matrices by name, has no
    batch axis. The method raises ArgumentError where only one of the two has a batch axis.

    >>> class Doubled:
    ...     @batch_optional(2)
    ...     def __call__(self, x):
    ...         return 2 * x.view(1, 3, 4)
    >>> import torch
    >>> Doubled()(torch.zeros(3, 4)).shape, Doubled()(torch.zeros(1, 3, 4)).shape
    (torch.Size([3, 4]), torch.Size([1, 3, 4]))
    """

    def widened(method: F) -> F:
        told = answered(method)

        @wraps(method)
        def either(self: Any, *given: Any, **options: Any) -> Any:
            named = dict(zip(("x", beside), given)) | options
            x = named.get("x")
            if not isinstance(x, Tensor) or x.ndim != axes or len(given) > 2:
                return told(self, *given, **options)
            named["x"] = x[None]
            if named.get(beside) is not None:
                named[beside] = _batch(named[beside], beside)
            return _item(told(self, **named))

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
