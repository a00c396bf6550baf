"""The dispatch mode that follows scores from operation to operation, and the calls it reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from intently.observe.sources.flex import operator_call
from intently.observe.sources.followed import GIVEN, Lost, Scores
from intently.observe.sources.functional import how_of
from intently.observe.sources.gathered import Gathered
from intently.observe.sources.steps import MIXES, NO_PRODUCT, after, as_they_are, leaves
from intently.observe.watching.call import Call
from intently.observe.watching.scope import current, tell
from intently.observe.watching.unseen import Softmax

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
BACKENDS = ("CPU", "CUDA", "MPS", "XPU")
BY_HAND = "by hand"
"""The name of this source."""
UNDIVIDED = "exponentials of scores meet values before they are divided by their sum"
_FUSED = "_scaled_dot_product_"
_PRODUCTS = ("bmm", "mm", "baddbmm")
_BEGINS = frozenset((*_PRODUCTS, "_softmax", "_safe_softmax", "_log_softmax"))


class Follow(TorchDispatchMode):
    """Follows scores from operation to operation, by their memory."""

    supports_higher_order_operators = True
    waits_inside = True

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, Scores | Lost]] = {}
        self._room = 64
        self.lost: list[tuple[Softmax, Tensor, Callable[[], Call]]] = []
        """Softmaxes whose weights went out of sight, and how to tell of them."""
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
        if not current():
            return func(*args, **kwargs)
        if isinstance(func, HigherOrderOperator):
            return _higher(func, args, kwargs)
        name, changes, composite = _kind(func)
        if composite:  # comes here whole in inference mode
            with self:
                return func._op_dk(COMPOSITE, *args, **kwargs)
        if name.startswith(_FUSED) and not name.endswith("_backward"):
            result = func(*args, **kwargs)
            tell(current(), BY_HAND, None, partial(_fused_call, func, args, kwargs, result[0]))
            return result
        held = [self._find(x) for x in args[:3]]
        result = func(*args, **kwargs)
        if self.gathered is not None and "backward" not in name:
            self.gathered.saw(name, func, args, kwargs, result)
        if changes and args and isinstance(args[0], Tensor):
            self._forget(args[0])
        if (name in _BEGINS or any(held)) and "backward" not in name:
            made = result if isinstance(result, (tuple, list)) else (result,)
            outs = [x for x in made if isinstance(x, Tensor) and x.is_floating_point()]
            if outs:
                self._follow(name, args, kwargs, held, outs)
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
        made = after(name, found, at, args, kwargs, outs)
        if made is None:
            return
        if isinstance(made, Lost) and made.stage == "weights" != found.stage:
            made = as_they_are(made, name, args, outs[0])
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
                self._tell(args[at], partial(_unmixed, found, args[at]))
            return
        for out in outs:
            self.keep(out, made)

    def _mixed(
        self, name: str, args: Any, kwargs: Any, held: Sequence[Scores | Lost | None], out: Tensor
    ) -> None:
        first = 1 if name == "baddbmm" else 0
        a, b = args[first : first + 2]
        for side, found in enumerate(held[first : first + 2]):
            if found is None or found.stage not in MIXES:
                continue
            if found.softmax is not None:
                if isinstance(found, Lost) and any(x[0] is found.softmax for x in self.lost):
                    return  # told when the module ends
                if found.softmax.met and isinstance(found, Scores) and found.columns is not None:
                    return  # another part of the same weights
                found.softmax.met = True
            self._tell((a, b)[side], partial(_met, found, a, b, out, side))
            return
        self.keep(out, _product(name, a, b, args, kwargs))

    def _tell(self, weights: Tensor, make: Callable[[], Call | str]) -> None:
        if self.gathered is None:
            tell(current(), BY_HAND, None, make)
        else:
            self.gathered.hold(weights, make)

    def _find(self, x: Any) -> Scores | Lost | None:
        if isinstance(x, (list, tuple)) and x and isinstance(x[0], Tensor):
            return next(filter(None, map(self._find, x)), None)
        if not isinstance(x, Tensor) or x.is_sparse or x.is_nested:
            return None
        alive, found = self._known.get(_place(x), (None, None))
        return None if alive is None or alive.expired() else found

    def keep(self, x: Tensor, found: Scores | Lost) -> None:
        """Remember what a tensor holds, by its memory."""
        if len(self._known) >= self._room:
            self._known = {k: pair for k, pair in self._known.items() if not pair[0].expired()}
            self._room = 2 * len(self._known) + 64
        self._known[_place(x)] = StorageWeakRef(x.untyped_storage()), found

    def _forget(self, x: Tensor) -> None:
        """Forget everything in the memory of x, which was overwritten."""
        storage = x.untyped_storage()._cdata
        for key in [key for key in self._known if key[0] == storage]:
            del self._known[key]


def _begun(weights: Tensor) -> Softmax:
    """Tell whoever watches of a softmax, before its weights meet anything."""
    softmax = Softmax(tuple(weights.shape))
    for recorder in current():
        softmax.module = recorder.softmax(weights, softmax) or softmax.module
    return softmax


@cache
def _kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation, whether it changes its argument, whether it is a composite.

    If a backend has a kernel of its own, as for `silu_backward`, the operation is no composite.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has(func.name(), COMPOSITE) and not any(has(func.name(), key) for key in BACKENDS)
    name, changes = func._schema.name.removeprefix("aten::"), func._schema.is_mutable
    return name.rstrip("_") if changes else name, changes, composite


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.untyped_storage()._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype


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
    whose = found.softmax.module if found.softmax is not None else None
    if whose is not None and isinstance(call, str) and isinstance(found, Scores):
        return _unmixed(found, (a, b)[side], call) if found.stage == "weights" else call
    return call


def _call(found: Scores | Lost, a: Tensor, b: Tensor, out: Tensor, side: int) -> Call | str:
    """The call whose weights are the left (0) or the right (1) factor of ``out``."""
    if isinstance(found, Lost):
        return found.why
    if found.stage == "exponentials":
        return UNDIVIDED
    *lead, row, column = found.layout
    if found.why is not None and len(found.sizes) - 2 in (i for axes in lead for i in axes):
        found = found.pooled()
        *lead, row, column = found.layout
    n = len(found.sizes)
    ones = tuple(i for i in (*row, *column) if i < n - 2 and found.sizes[i] == 1)
    last = [tuple(i for i in axes if i not in ones) for axes in (row, column)]
    rows, keys = last if side == 0 else reversed(last)
    if keys != (n - 1,) or rows[-1:] != (n - 2,):
        return "the weights are summed over another axis than the keys"
    v, y = (b, out) if side == 0 else (a.mT, out.mT)
    order = [i for axes in (ones, *lead, rows[:-1]) for i in axes]  # several rows share values
    q, k, how = found.operands(order)
    sizes = [found.sizes[i] for i in order]
    y = y.reshape(*sizes, found.sizes[-2], y.shape[-1])
    shared = len(rows) - 1
    v = v.reshape(*sizes[: len(sizes) - shared], *(1,) * shared, *v.shape[-2:])
    real = (a if side == 0 else b.mT).reshape(*sizes, *found.sizes[-2:])
    call = Call(q, k, v, y, how, BY_HAND, None, found.columns, found.why)
    _let_compare(call, found, real)
    return call


def _as_weights(call: Call, why: str) -> Call:
    """The same call with the weights themselves in place of queries and keys."""
    assert isinstance(call.real, Tensor)
    given = Scores.given(call.real, -1)
    return replace(call, q=given.q, k=given.k, how=given.how(), as_it_is=why, as_weights=None)


def _unmixed(found: Scores, weights: Tensor, then: str | None = None) -> Call:
    """The call of weights whose product with values is not seen: ``then`` is what they met."""
    q, k, how = found.operands(range(len(found.sizes) - 2))
    call = Call(q, k, k, None, how, BY_HAND, as_it_is=found.why, then=then)
    _let_compare(call, found, found.ordered(weights.detach()))
    return call


def _let_compare(call: Call, found: Scores, real: Tensor) -> None:
    """Let a call be compared with the weights that ran, and be replaced by them."""
    if found.columns is not None or found.dropout:
        return
    call.real = real
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
