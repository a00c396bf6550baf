"""`deep=True`: attention written by hand, as matmul, softmax and matmul, wherever it is.

A dispatch mode sees every operation of PyTorch. It follows products to their softmax, and the
weights to the product with the values; a fused operator that was called by another way than
`F.scaled_dot_product_attention` it sees whole. The results are the same. Every operation of the
model costs some ten microseconds more: measured on a processor, Bloom 512 wide took 1.1 to 1.2
times as long at 512 tokens, 256 wide 1.6 times as long at 128 tokens, and a toy 16 wide more than
ten times.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from intently.observe.call import Call
from intently.observe.sources.followed import Lost, Scores
from intently.observe.sources.functional import how_of
from intently.observe.sources.telling import tell
from intently.observe.watch import current

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
BACKENDS = ("CPU", "CUDA", "MPS", "XPU")
NO_PRODUCT = "the scores of its softmax are no product of queries and keys"


def mode() -> TorchDispatchMode:
    """Return what sees hand-written attention while it is entered."""
    return _Follow()


class _Follow(TorchDispatchMode):
    """Follows scores from operation to operation, by the memory they lie in."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, Scores | Lost]] = {}
        self._room = 64
        self._thread = threading.get_ident()

    def __exit__(self, *error: Any) -> None:
        if threading.get_ident() == self._thread:  # the stack of another thread is out of reach
            super().__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not current():
            return func(*args, **kwargs)
        name, changes, composite = _kind(func)
        if composite:  # comes here whole in inference mode
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if name.startswith(_FUSED) and not name.endswith("_backward"):
            result = func(*args, **kwargs)
            tell(current(), "deep", None, partial(_fused_call, func, args, kwargs, result[0]))
            return result
        held = [self._find(x) for x in args[:3]]
        result = func(*args, **kwargs)
        if changes and args and isinstance(args[0], Tensor):
            self._forget(args[0])
        if name in _PRODUCTS or name in _SOFTMAX or any(held):
            out = result[0] if isinstance(result, (tuple, list)) and result else result
            if isinstance(out, Tensor):
                self._follow(name, args, kwargs, held, out)
        return result

    def _follow(
        self, name: str, args: Any, kwargs: Any, held: list[Scores | Lost | None], out: Tensor
    ) -> None:
        if name in _PRODUCTS:
            self._mixed(name, args, kwargs, held, out)
            return
        at = next((i for i, x in enumerate(held) if x is not None), None)
        if at is None:
            self._keep(out, Lost(NO_PRODUCT, weights=True))
            return
        found = held[at]
        if isinstance(found, Scores):
            try:
                found = _step(name, found, at, args, kwargs, out)
            except Lost as lost:
                found = Lost(lost.why, found.weights or name in _SOFTMAX)
            except Exception as error:  # whatever a model does to its scores
                found = Lost(f"{type(error).__name__} in aten.{name}: {error}")
            self._keep(out, found)
        elif found is not None and name in _SOFTMAX:
            self._keep(out, Lost(found.why, weights=True))
        elif found is not None and name in (*_SAME, *_VIEWS, *_MOVES, *_CHANGES):
            self._keep(out, found)

    def _mixed(
        self, name: str, args: Any, kwargs: Any, held: list[Scores | Lost | None], out: Tensor
    ) -> None:
        first = 1 if name == "baddbmm" else 0
        a, b = args[first : first + 2]
        for side, found in enumerate(held[first : first + 2]):
            if found is None or not found.weights:
                continue
            tell(current(), "deep", None, partial(_call, found, a, b, out, side))
            return
        self._keep(out, _product(name, a, b, args, kwargs))

    def _find(self, x: Any) -> Scores | Lost | None:
        if not isinstance(x, Tensor) or x.is_sparse or x.is_nested:
            return None
        alive, found = self._known.get(_place(x), (None, None))
        return None if alive is None or alive.expired() else found

    def _keep(self, x: Tensor, found: Scores | Lost) -> None:
        if len(self._known) >= self._room:
            self._known = {k: pair for k, pair in self._known.items() if not pair[0].expired()}
            self._room = 2 * len(self._known) + 64
        self._known[_place(x)] = StorageWeakRef(x.untyped_storage()), found

    def _forget(self, x: Tensor) -> None:
        """What lies in the memory of x is no longer what it was."""
        storage = x.untyped_storage()._cdata
        for key in [key for key in self._known if key[0] == storage]:
            del self._known[key]


@cache
def _kind(func: Any) -> tuple[str, bool, bool]:
    """Its name, whether it changes its argument, and whether it is made of other operations.

    Where a backend has a kernel of its own, as for `silu_backward`, that is what runs.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has(func.name(), COMPOSITE) and not any(has(func.name(), key) for key in BACKENDS)
    name, changes = func._schema.name.removeprefix("aten::"), func._schema.is_mutable
    return name.rstrip("_") if changes else name, changes, composite


def _product(name: str, a: Tensor, b: Tensor, args: Any, kwargs: Any) -> Scores | Lost:
    """The scores that a product may be."""
    scores = Scores.of(a, b)
    if name != "baddbmm":
        return scores
    beta = kwargs.get("beta", 1)
    try:
        scores = scores.times(kwargs.get("alpha", 1))
        return scores.plus(args[0], beta) if beta else scores
    except Lost as lost:
        return Lost(lost.why)


def _call(found: Scores | Lost, a: Tensor, b: Tensor, out: Tensor, side: int) -> Call | str:
    """The call whose weights are the left (0) or the right (1) of the tensors that made ``out``."""
    if isinstance(found, Lost):
        return found.why
    n = len(found.sizes)
    *lead, row, column = found.layout
    ones = tuple(i for i in (*row, *column) if i < n - 2 and found.sizes[i] == 1)
    last = [tuple(i for i in axes if i not in ones) for axes in (row, column)]
    if last != ([(n - 2,), (n - 1,)] if side == 0 else [(n - 1,), (n - 2,)]):
        return "the weights are summed over another axis than the keys"
    v, y = (b, out) if side == 0 else (a.mT, out.mT)
    q, k, shaped, how = found.operands((ones, *lead))
    return Call(q, k, shaped(v), shaped(y), how, "deep")


def _fused_call(func: Any, args: Any, kwargs: Any, y: Tensor) -> Call:
    """The call of a fused operator, into which PyTorch's function was sent by another way."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    q, k, v = args[:3]
    mask = given.get("attn_mask", given.get("attn_bias"))
    how = how_of(
        q, k, mask, given.get("dropout_p", 0.0), given.get("is_causal", False), given.get("scale")
    )
    return Call(q, k, v, y, how, "deep")


_FUSED = "_scaled_dot_product_"
_PRODUCTS = ("bmm", "mm", "baddbmm")
_SOFTMAX = ("_softmax", "_safe_softmax")
_VIEWS = ("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze")
_MOVES = ("permute", "transpose", "t")
_CHANGES = ("native_dropout", "masked_fill", "where", "mul", "div", "add", "sub", "neg", "tanh")
_SAME = ("clone", "detach", "alias", "_to_copy", "lift_fresh", "nan_to_num")


def _step(name: str, found: Scores, at: int, args: Any, kwargs: Any, out: Tensor) -> Scores:
    """The scores after an operation, whose argument ``at`` they were; raises `Lost`."""
    if name in _SOFTMAX:
        return found.softmax(args[1])
    if name in _VIEWS:
        return found.viewed(tuple(out.shape))
    if name in _SAME:
        return found
    if name in _MOVES:
        return found.permuted(_order(name, args, out.ndim))
    if out.shape != args[at].shape:
        raise Lost(f"aten.{name} changes the shape of scores")
    if name == "native_dropout":
        on = args[2] is None or args[2]
        return replace(found, dropout=args[1]) if on and found.weights else found
    if name == "mul" and found.weights:
        return replace(found, dropout=_dropped(args[1 - at]))
    if name == "masked_fill":
        return found.hidden(args[1], args[2])
    if name == "where" and at > 0:
        return found.hidden(~args[0] if at == 1 else args[0], args[3 - at])
    if not found.weights:
        other: Any = args[1 - at] if len(args) > 1 else None
        if name == "mul":
            return found.times(other)
        if name == "div" and at == 0 and not kwargs.get("rounding_mode"):
            return found.times(1 / other)
        if name == "add":
            return found.plus(other, kwargs.get("alpha", 1) if at == 0 else 1)
        if name == "sub" and at == 0:
            return found.plus(other, -kwargs.get("alpha", 1))
        if name == "neg":
            return found.times(-1)
        if name == "tanh":
            return found.bounded()
    raise Lost(f"{'weights' if found.weights else 'scores'} pass through aten.{name}")


def _dropped(factor: Any) -> float:
    """The dropout that a tensor of zeros and 1 / (1 − p) stands for."""
    top = float(factor.max()) if isinstance(factor, Tensor) and factor.numel() else 0.0
    if top <= 1 or bool(((factor != 0) & (factor != factor.max())).any()):
        raise Lost("weights are multiplied with something that is not dropout")
    return 1 - 1 / top


def _order(name: str, args: Any, n: int) -> list[int]:
    """Which axis of the argument each axis of the result was."""
    if name == "permute":
        return [axis % n for axis in args[1]]
    order = list(range(n))
    i, j = args[1:3] if name == "transpose" else (0, n - 1)
    order[i], order[j] = order[j], order[i]
    return order


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.untyped_storage()._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype
