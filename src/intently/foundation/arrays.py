"""Lists, NumPy arrays and integers as tensors: `as_tensor` for one, `as_tensors` for operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from intently.errors import KindError, build

Numbers: TypeAlias = np.ndarray | np.generic | Sequence[Any] | float | Int[Tensor, "..."]
"""What `as_tensor` takes beside a floating-point tensor."""

INTEGERS = (
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)


@runtime_checkable
class Kind(Protocol):
    """Anything with a dtype and a device: a tensor, a lazy matrix."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that plain numbers take."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that plain numbers go to."""
        ...


def as_tensor(value: Tensor | Numbers, name: str, like: Kind | None = None) -> Tensor:
    """Return the numbers of the argument ``name`` as a floating-point tensor of the same shape.

    A floating-point tensor is returned unchanged. Anything else is copied, so that later changes of
    the original do not show: a floating-point NumPy array keeps its dtype; lists, tuples, Python
    numbers and integers, tensors of integers included, take the dtype of ``like``, or PyTorch's
    default. Anything but a tensor goes to the device of ``like``.

    Raises `KindError` for booleans, complex numbers, ragged lists, lists of tensors and anything
    else without real numbers.

    >>> as_tensor([[1, 2], [3, 4]], "q")
    tensor([[1., 2.],
            [3., 4.]])
    >>> as_tensor(np.ones(2), "q").dtype
    torch.float64
    """
    if isinstance(value, Tensor):
        if not plain(value):
            raise hidden(value, name)
        if value.is_floating_point():
            return value
        if value.dtype not in INTEGERS:
            raise _refusal(name, f"dtype {value.dtype}", value.dtype is torch.bool)
        return value.to(torch.get_default_dtype() if like is None else like.dtype)
    array = _array(value, name)
    x = torch.from_numpy(array)
    if not _keeps_dtype(value):
        x = x.to(torch.get_default_dtype() if like is None else like.dtype)
    return x if like is None else x.to(like.device)


def plain(x: Tensor) -> bool:
    """Whether a tensor is one array of numbers: not sparse, nested, MKLDNN's, or of a class that
    gives PyTorch's functions another meaning, such as `torch.masked.MaskedTensor`.
    """
    if x.layout is not torch.strided or x.is_nested:
        return False
    kind = type(x)
    if kind is Tensor:
        return True
    own = kind.__torch_function__
    return getattr(own, "__func__", own) in _USUAL


_USUAL = (
    Tensor.__torch_function__.__func__,
    torch._C._disabled_torch_function_impl,  # pyright: ignore[reportAttributeAccessIssue]
)


def valued(x: Tensor) -> bool:
    """Whether a tensor has numbers to look at now: it is not in a graph that is being recorded,
    fake, on the meta device, or one of many in `torch.func`.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing() or x.is_meta:
        return False
    if _functorch.is_functorch_wrapped_tensor(x) or _functorch.is_legacy_batchedtensor(x):
        return False
    return type(x) in _PLAIN or getattr(type(x), "__torch_dispatch__", None) is _NO_DISPATCH


_PLAIN = (Tensor, torch.nn.Parameter)
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl  # pyright: ignore


def hidden(x: Tensor, name: str) -> KindError:
    """The error for a tensor that is not one array of numbers."""
    kind = type(x).__name__
    if x.is_nested:
        got, fix = "a nested tensor", "pad it, and pass mask=it.padding(lengths)"
    elif x.layout is not torch.strided:
        got, fix = f"a tensor with layout {x.layout}", "pass x.to_dense()"
    elif kind == "MaskedTensor":
        got, fix = "a MaskedTensor", "pass x.get_data(), and who may attend as mask="
    elif kind == "CausalBias":
        got, fix = "a CausalBias", "pass mask=it.causal()"
    else:
        got, fix = f"a {kind}", "pass x.as_subclass(torch.Tensor)"
    return build(KindError, name, "one array of numbers", got, fix=fix)


def as_tensors(**operands: Tensor | Numbers) -> tuple[Tensor, ...]:
    """Return `as_tensor` of each operand of one product, by name.

    Operands without a dtype, lists and integers, take the dtype of the first operand that has one,
    tensors before arrays.

    >>> [x.dtype for x in as_tensors(q=[[1, 2]], k=np.ones((3, 2)))]
    [torch.float64, torch.float64]
    """
    kept = {name: x for name, x in operands.items() if _keeps_dtype(x)}
    first = sorted(kept, key=lambda name: not isinstance(kept[name], Tensor))[:1]
    like = as_tensor(kept[first[0]], first[0]) if first else None
    return tuple(as_tensor(x, name, like) for name, x in operands.items())


def check_floats(x: object, name: str, expected: str, fix: str | None = None) -> None:
    """Raise `KindError` unless x is a floating-point tensor."""
    if not (isinstance(x, Tensor) and x.is_floating_point()):
        got = f"dtype {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise build(KindError, name, expected, got, fix=fix)


def _keeps_dtype(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f"


def _array(value: Any, name: str) -> np.ndarray:
    """A copy in a floating-point dtype that PyTorch knows."""
    if isinstance(value, list | tuple | range):
        kinds = {type(x) for x in _leaves(value)}
        if any(issubclass(kind, Tensor) for kind in kinds):
            raise build(KindError, name, "numbers", "a list of tensors", fix="use torch.stack(…)")
        arrays = (x for x in _leaves(value) if isinstance(x, np.ndarray))
        if kinds & {bool, np.bool_} or any(x.dtype.kind == "b" for x in arrays):
            raise _refusal(name, "booleans", True)
    elif isinstance(value, bool | np.bool_ | np.ma.MaskedArray) or not isinstance(
        value, int | float | np.ndarray | np.generic
    ):
        raise _refusal(name, type(value).__name__, isinstance(value, bool | np.bool_))
    try:
        array = np.array(value, order="C")
    except ValueError:
        raise build(
            KindError,
            name,
            "numbers in rows of one length",
            "a ragged list",
            fix="fill short rows up, and hide what was added: mask=it.padding(lengths)",
        ) from None
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise _refusal(name, f"dtype {array.dtype}", array.dtype.kind == "b")
    return array.astype(np.float64 if array.dtype.kind != "f" else array.dtype.newbyteorder("="))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for x in value:
            yield from _leaves(x)
    else:
        yield value


def _refusal(name: str, got: str, booleans: bool = False) -> KindError:
    return build(
        KindError,
        name,
        "real numbers: a tensor, a NumPy array or a list of them",
        got,
        fix="booleans say who may attend: mask=" if booleans else None,
    )
