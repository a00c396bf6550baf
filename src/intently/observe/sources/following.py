"""The dispatch mode that follows scores from operation to operation, and the calls it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from intently.core.matrix import LazyMatrix
from intently.observe.sources.flex import operator_call
from intently.observe.sources.followed import GIVEN, Lost, Scores
from intently.observe.sources.functional import how_of
from intently.observe.sources.gathered import Gathered
from intently.observe.sources.mixed import BY_HAND, Mixture, Mixtures, placed
from intently.observe.sources.regraded import Waiting
from intently.observe.sources.steps import MIXES, NO_PRODUCT, after, as_they_are, leaves
from intently.observe.watching.call import Call, operand, traced
from intently.observe.watching.inputs import storage_of
from intently.observe.watching.listener import Changing
from intently.observe.watching.scope import around, current, tell
from intently.observe.watching.unseen import Softmax

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
VERSIONS = torch._C.DispatchKey.ADInplaceOrView
BACKENDS = ("CPU", "CUDA", "MPS", "XPU")
_FUSED = "_scaled_dot_product_"
_PRODUCTS = ("bmm", "mm", "baddbmm")
_BEGINS = frozenset((*_PRODUCTS, "_softmax", "_safe_softmax", "_log_softmax", "exp", "exp2"))

MAKES = {"mm": 0, "addmm": 1} | dict.fromkeys(("clone", "_to_copy", "mul", "div", "add"), 0)
"""Operations whose result is made of one argument in the main, and its place."""

Held: TypeAlias = Scores | Lost | Mixture
Made = TypeVar("Made")


class Follow(TorchDispatchMode):
    """Follows scores from operation to operation, by their memory."""

    supports_higher_order_operators = True
    waits_inside = True

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, Held]] = {}
        self._room = 64
        self.mixtures = Mixtures()
        self.lost: list[tuple[Softmax, Tensor, Callable[[], Call]]] = []
        """Softmaxes whose weights went out of sight, and how to tell of them."""
        self.waiting: list[Waiting] = []
        """Calls that edits change where gradients flow, until their function returns."""
        self.gathered: Gathered | None = None
        """What the module did so far that is running, if its code gathers blocks."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compiled code compiled, so that its output stays the same."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not current() or traced():
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            return _higher(func, args, kwargs)
        name, changes, composite = _kind(func)
        if composite and not any(isinstance(x, Tensor) and x.is_nested for x in args):
            # comes here whole in inference mode
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if name.startswith(_FUSED) and not name.endswith("_backward"):
            result = func(*args, **kwargs)
            with _counted():
                tell(current(), BY_HAND, None, partial(_fused_call, func, args, kwargs, result[0]))
            return result
        if name == "_sparse_softmax":
            result = func(*args, **kwargs)
            tell(current(), BY_HAND, None, partial(_sparse, result, args[1]))
            return result
        held = [self._find(x) for x in args[:3]]
        result = func(*args, **kwargs)
        if self.gathered is not None and "backward" not in name:
            self.gathered.saw(name, func, args, kwargs, result)
        if name in MAKES and len(args) > MAKES[name] and isinstance(result, Tensor):
            for listener in current():
                listener.running.makes(args[MAKES[name]], result)
        if changes and args and isinstance(args[0], Tensor):
            self._forget(args[0])
        if (name in _BEGINS or any(held)) and "backward" not in name:
            given = result if isinstance(result, (tuple, list)) else (result,)
            outs = [x for x in given if isinstance(x, Tensor) and _holds_numbers(x)]
            mixtures = [x for x in held if isinstance(x, Mixture)]
            with _counted():
                if mixtures and outs:
                    made = _or_lost(
                        self.mixtures.after, func, name, mixtures, args, kwargs, outs[0]
                    )
                    if made is not None:
                        self.keep(outs[0], made)
                elif outs:
                    some = [None if isinstance(x, Mixture) else x for x in held]
                    self._follow(name, args, kwargs, some, outs)
        return result

    def _follow(
        self,
        name: str,
        args: Any,
        kwargs: Any,
        held: Sequence[Scores | Lost | None],
        outs: Sequence[Tensor],
    ) -> None:
        if name in _PRODUCTS:
            self._mixed(name, args, kwargs, held, outs[0])
            return
        at, found = next(
            ((i, x) for i, x in enumerate(held) if x is not None), (0, Lost(NO_PRODUCT))
        )
        made = _or_lost(after, name, found, at, args, kwargs, outs)
        if made is None:
            return
        if isinstance(made, Lost) and made.stage == "weights" != found.stage:
            made = _or_lost(as_they_are, made, name, args, outs[0])
        if made.stage == "weights":
            softmax = found.softmax or _begun(outs[0])
            if isinstance(made, Lost):
                if (
                    softmax.sure
                    and isinstance(found, Scores)
                    and softmax.why is None
                    and found.stage == "weights"
                ):
                    unmixed = partial(_unmixed, found, args[at], made.why)
                    self.lost.append((softmax, args[at], unmixed))
                softmax.why, made.softmax = softmax.why or made.why, softmax
            else:
                made = replace(made, softmax=softmax)
        if isinstance(made, Lost) and made.stage in MIXES and leaves(name, args, at, outs[0]):
            softmax = found.softmax
            if isinstance(found, Scores) and name == "mul" and softmax and softmax.sure:
                softmax.met = True
                self._tell(found, args[at], partial(_unmixed, found, args[at]))
            return
        for out in outs:
            self.keep(out, made)

    def _mixed(
        self, name: str, args: Any, kwargs: Any, held: Sequence[Scores | Lost | None], out: Tensor
    ) -> None:
        first = 1 if name == "baddbmm" else 0
        a, b = args[first : first + 2]
        factors = [(i, x) for i, x in enumerate(held[first : first + 2]) if x is not None]
        for side, found in sorted(factors, key=lambda pair: pair[1].stage != "weights"):
            if found.stage not in MIXES:
                continue
            if found.stage == "exponentials":
                self.keep(out, _or_lost(self.mixtures.begun, found, a, b, out, side))
                return
            if found.softmax is not None:
                if isinstance(found, Lost) and any(x[0] is found.softmax for x in self.lost):
                    return  # told when the module ends
                if found.softmax.met and isinstance(found, Scores) and found.columns is not None:
                    return  # another part of the same weights
                found.softmax.met = True
            self._tell(found, (a, b)[side], partial(_met, found, a, b, out, side))
            return
        self.keep(out, _or_lost(_product, name, a, b, args, kwargs))

    def _tell(self, found: Scores | Lost, weights: Tensor, make: Callable[[], Call | str]) -> None:
        gathered, listeners = self.gathered, current()
        edited = any(isinstance(x, Changing) for x in listeners)
        own = gathered is not None and gathered.module is next(iter(around()[-1:]), None)
        if gathered is None or not own or (edited and gathered.plain(weights)):
            if weights.requires_grad and edited:
                self.waiting.append((_whose(found), make))
            else:
                tell(listeners, BY_HAND, _whose(found), make)
        else:
            gathered.hold(weights, make)

    def holds_weights(self, given: Iterable[Any]) -> bool:
        """Whether weights are among the arguments of a module."""
        found = (self._find(x) for x in given if isinstance(x, Tensor))
        return any(isinstance(x, (Scores, Lost)) and x.stage in MIXES for x in found)

    def _find(self, x: Any) -> Held | None:
        if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor):
            return next(filter(None, map(self._find, x)), None)
        if not isinstance(x, Tensor):
            return None
        alive, found = self._known.get(_place(x), (None, None))
        return None if alive is None or alive.expired() else found

    def keep(self, x: Tensor, found: Held) -> None:
        """Remember what a tensor holds, by its memory, if it has one."""
        storage = storage_of(x)
        if storage is None:
            return
        if len(self._known) >= self._room:
            self._known = {k: pair for k, pair in self._known.items() if not pair[0].expired()}
            self._room = 2 * len(self._known) + 64
        self._known[_place(x)] = StorageWeakRef(storage), found

    def _forget(self, x: Tensor) -> None:
        """Forget everything in the memory of x, which was overwritten."""
        storage = storage_of(x)
        if storage is not None:
            for key in [key for key in self._known if key[0] == storage._cdata]:
                del self._known[key]


def _whose(found: Scores | Lost) -> nn.Module | None:
    """The module that made weights, if it still runs; else the call is that of the innermost."""
    module = found.softmax.module if found.softmax is not None else None
    return module if module in around() else None


class _counted:  # noqa: N801 - used as a function: `with _counted():`
    """Views that are made within share the version of their tensor, as outside of a mode."""

    def __enter__(self) -> None:
        self._was = torch._C._dispatch_tls_is_dispatch_key_excluded(VERSIONS)
        torch._C._dispatch_tls_set_dispatch_key_excluded(VERSIONS, False)

    def __exit__(self, *error: object) -> None:
        torch._C._dispatch_tls_set_dispatch_key_excluded(VERSIONS, self._was)


def _begun(weights: Tensor) -> Softmax:
    """Tell whoever watches of a softmax, before its weights meet anything."""
    softmax = Softmax(tuple(weights.shape))
    for listener in current():
        softmax.module = listener.softmax(weights, softmax) or softmax.module
    return softmax


@cache
def _kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation, whether it changes its argument, whether it is a composite.

    If a backend has a kernel of its own, as for `silu_backward`, the operation is no composite.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = func.namespace != "prim" and (
        has(func.name(), COMPOSITE) and not any(has(func.name(), key) for key in BACKENDS)
    )
    name, changes = func._schema.name.removeprefix("aten::"), func._schema.is_mutable
    return name.rstrip("_") if changes else name, changes, composite


def _holds_numbers(x: Tensor) -> bool:
    """Whether a tensor may hold scores or weights, quantised ones too."""
    return x.is_floating_point() or x.is_quantized


def _place(x: Tensor) -> tuple[Any, ...]:
    storage = storage_of(x)
    if storage is None:
        return ()
    return storage._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype


def _or_lost(make: Callable[..., Made], *args: Any) -> Made | Lost:
    """What ``make`` returns; for tensors that it cannot compute with, why."""
    try:
        return make(*args)
    except Exception as error:  # whatever a model computes with
        return Lost(f"{type(error).__name__}: {error}")


def _product(name: str, a: Tensor, b: Tensor, args: Any, kwargs: Any) -> Scores | Lost:
    """A product as scores."""
    scores = Scores.of(a, b)
    if name != "baddbmm":
        return scores
    beta = kwargs.get("beta", 1)
    try:
        scores = scores.times(kwargs.get("alpha", 1))
        return scores.plus(args[0], beta) if beta else scores
    except Lost as lost:
        return Lost(lost.why)


def _met(found: Scores | Lost, a: Tensor, b: Tensor, out: Tensor, side: int) -> Call | str:
    """The call of a product of weights with values, or with something else."""
    call = _call(found, a, b, out, side)
    if isinstance(call, Call) and isinstance(call.y, Tensor) and _shares(call.y, out):
        call.put = partial(_put_in, call.y)
    whose = found.softmax.module if found.softmax is not None else None
    if whose is not None and isinstance(call, str) and isinstance(found, Scores):
        return _unmixed(found, (a, b)[side], call) if found.stage == "weights" else call
    return call


def _shares(y: Tensor, out: Tensor) -> bool:
    return y.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()


def _put_in(y: Tensor, edited: Tensor, matrix: LazyMatrix) -> None:
    """Overwrite what a product returned."""
    with torch.no_grad():
        y.copy_(edited)


def _call(found: Scores | Lost, a: Tensor, b: Tensor, out: Tensor, side: int) -> Call | str:
    """The call whose weights are the left (0) or the right (1) factor of ``out``."""
    if isinstance(found, Lost):
        return found.why
    found = found.single(side - 2, -1 - side)
    call = placed(found, (b, a.mT)[side], (out, out.mT)[side], side, (a, b.mT)[side])
    if isinstance(call, Call) and isinstance(call.real, Tensor):
        _let_compare(call, found, call.real)
    return call


def _as_weights(call: Call, why: str) -> Call:
    """The same call with the weights themselves in place of queries and keys."""
    assert isinstance(call.real, Tensor)
    given = Scores.given(call.real, -1)
    kept = replace(call, q=given.q, k=given.k, how=given.how(), as_it_is=why, as_weights=None)
    return replace(kept, keys=operand(call.k))


def _unmixed(found: Scores, weights: Tensor, then: str | None = None) -> Call:
    """The call of weights whose product with values is not seen: ``then`` is what they met."""
    n, ones = found.q.ndim, [i for i, size in enumerate(found.q.shape[:-2]) if size == 1]
    if found.softmax is not None and found.grid == (None, None) and n > len(found.softmax.shape):
        found = found.without(ones[len(found.softmax.shape) - n :])
        n = found.q.ndim
    order = [i for held in found.layout for i in held if i < n - 2]
    q, k, how = found.operands(order)
    call = Call(q, k, k, None, how, BY_HAND, as_it_is=found.why, then=then)
    _let_compare(call, found, found.ordered(weights.detach()).permute(*order, n - 2, n - 1))
    return call


def _sparse(weights: Tensor, axis: int) -> Call | str:
    """The call of a sparse matrix of weights."""
    try:
        if weights.numel() > GIVEN:
            raise Lost(f"weights of {tuple(weights.shape)} are not kept as they are")
        dense = weights.detach().to_dense()
        found = replace(Scores.given(dense, axis), why="they are sparse")
        return _unmixed(found, dense, "their product with values is not followed")
    except Lost as lost:
        return lost.why


def _let_compare(call: Call, found: Scores, real: Tensor) -> None:
    """Let a call be compared with the weights that ran, and be replaced by them."""
    call.real = None if found.columns is not None or found.dropout else real
    if call.real is None:
        return
    if found.why is None and real.numel() <= GIVEN:
        call.as_weights = partial(_as_weights, call)


def _fused_call(func: Any, args: Any, kwargs: Any, y: Tensor) -> Call:
    """The call of a fused operator that bypassed PyTorch's function."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args)) | kwargs
    q, k, v = args[:3]
    mask = given.get("attn_mask", given.get("attn_bias"))
    how = how_of(
        q, k, mask, given.get("dropout_p", 0.0), given.get("is_causal", False), given.get("scale")
    )
    return Call(q, k, v, y, how, BY_HAND)


def _higher(func: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
    """Run an operator that takes functions; only FlexAttention can be read."""
    result, name = func(*args, **kwargs), func.name()
    if name == "flex_attention":
        tell(current(), BY_HAND, None, partial(operator_call, *args, **kwargs, y=result[0]))
    elif not name.endswith("backward"):
        tell(current(), BY_HAND, None, lambda: f"the operator {name} ran, in which nothing is seen")
    return result
