"""Attention written by hand, as matmul, softmax and matmul.

A dispatch mode sees every operation of PyTorch. It follows products to their softmax, in one
operation or in several (exp and a division, log_softmax and exp), and the weights to the product
with the values; it sees a fused operator whole if the call bypassed
`F.scaled_dot_product_attention`. It remembers each softmax until its weights meet values, and
reports the first operation that it cannot follow. Scores that are no product of queries and keys,
or went out of sight on their way, leave the weights themselves: those are kept instead.

The mode costs some ten microseconds an operation, so it is on only within the modules whose code
makes weights by hand, and off again within the layers that they call. A softmax that nobody
expected turns it on until its module returns, with the weights as they are, and from then on for
all modules of that class. ``deep=True`` follows the whole model.

The results are the same, except where PyTorch picks another kernel under a dispatch mode, as under
any.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

from intently.observe.sources.flex import operator_call
from intently.observe.sources.followed import GIVEN, Lost, Scores, Stage
from intently.observe.sources.functional import how_of
from intently.observe.watching.call import Call
from intently.observe.watching.recorder import Recorder
from intently.observe.watching.revealed import writes_attention
from intently.observe.watching.scope import current, tell
from intently.observe.watching.unseen import Softmax

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
BACKENDS = ("CPU", "CUDA", "MPS", "XPU")
BY_HAND = "by hand"
"""The name of this source."""
NO_PRODUCT = "the scores of its softmax are no product of queries and keys"
UNDIVIDED = "exponentials of scores meet values before they are divided by their sum"


class mode:  # noqa: N801 - used as a function: `with by_hand.mode():`
    """Sees hand-written attention while entered; all who follow in a thread share one mode."""

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        _here.count += 1
        if not _is_on():
            _here.mode.__enter__()

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() != self._thread:  # the stack of another thread is out of reach
            return
        _here.count -= 1
        if not _here.count and _is_on():
            _leave()


class whole_model(mode):  # noqa: N801 - as `mode`
    """Follows everything until it is left: ``deep=True``."""

    def __enter__(self) -> None:
        super().__enter__()
        _here.whole += 1

    def __exit__(self, *error: object) -> None:
        if threading.get_ident() == self._thread:
            _here.whole -= 1
        super().__exit__(*error)


class _paused:  # noqa: N801 - as `mode`
    """Nothing is followed within."""

    def __enter__(self) -> None:
        self._was_on = _is_on()
        if self._was_on:
            _leave()

    def __exit__(self, *error: object) -> None:
        if self._was_on:
            _here.mode.__enter__()


def _is_on() -> bool:
    return _here.mode in _get_current_dispatch_mode_stack()


def _leave() -> None:
    above: list[Any] = []  # modes that were entered since, and stay
    while _get_current_dispatch_mode() is not _here.mode:
        above.append(_pop_mode())
    _here.mode.__exit__(None, None, None)
    for other in reversed(above):
        _push_mode(other)


def around(module: nn.Module, recorders: Sequence[Recorder]) -> AbstractContextManager[None] | None:
    """How the forward of a module runs while somebody watches; None for as it would.

    Modules whose code makes weights by hand are followed; the layers that they call are not, but
    for a softmax, a dropout and others that hold nothing.
    """
    if _here.whole:
        return None
    if attends_by_hand(module) and any(x.wants(module) for x in recorders):
        return mode()
    if not _here.count or not (module._parameters or module._buffers or module._modules):
        return None
    return _paused()


def attends_by_hand(module: nn.Module) -> bool:
    """Whether a module is followed."""
    if type(module) in _caught:
        return True
    known = _known.get(module)
    if known is None:
        ours = type(module).__module__.split(".")[0] in ("intently", "torch")
        known = _known[module] = not ours and writes_attention(module)
    return known


def follow_from(module: nn.Module, weights: Tensor, softmax: Softmax) -> None:
    """Follow weights that a softmax made unexpectedly, until the forward of ``module`` ends."""
    _caught.add(type(module))
    if _here.whole or _is_on():
        return
    late = mode()
    late.__enter__()
    _here.late[module] = late
    try:
        axis = _axis_of_ones(weights)
        given = Scores.given(weights, -1 if axis is None else axis)
    except Lost as lost:
        softmax.why = lost.why
    else:
        _here.mode.keep(weights, replace(given, softmax=softmax, why=NO_PRODUCT))


def ended(module: nn.Module) -> None:
    """The forward of a module ended."""
    late = _here.late.pop(module, None)
    if late is not None:
        late.__exit__(None, None, None)
    mine = [x for x in _here.lost if x[0].module is module]
    if mine:
        _here.lost = [x for x in _here.lost if x[0].module is not module]
    for softmax, make in mine:
        if softmax.sure and not softmax.met:
            softmax.met = True
            tell(current(), BY_HAND, module, make)


_known: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether the code of a module attends by hand, as far as it tells."""

_caught: WeakSet[type[nn.Module]] = WeakSet()
"""Classes whose code did not tell, and that were caught with a softmax."""


class _Follow(TorchDispatchMode):
    """Follows scores from operation to operation, by their memory."""

    supports_higher_order_operators = True
    waits_inside = True

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, Scores | Lost]] = {}
        self._room = 64

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
        after = _after(name, found, at, args, kwargs, outs)
        if after is None:
            return
        if isinstance(after, Lost) and after.stage == "weights" != found.stage:
            after = _as_they_are(after, name, args, outs[0])
        if after.stage == "weights":
            softmax = found.softmax or _begun(outs[0])
            if isinstance(after, Lost):
                if isinstance(found, Scores) and found.stage == "weights" and softmax.why is None:
                    _here.lost.append((softmax, partial(_unmixed, found, args[at], after.why)))
                softmax.why, after.softmax = softmax.why or after.why, softmax
            else:
                after = replace(after, softmax=softmax)
        if isinstance(after, Lost) and after.stage in _MIXES and _leaves(name, args, at, outs[0]):
            softmax = found.softmax
            if isinstance(found, Scores) and name == "mul" and softmax and softmax.sure:
                softmax.met = True
                tell(current(), BY_HAND, None, partial(_unmixed, found, args[at]))
            return
        for out in outs:
            self.keep(out, after)

    def _mixed(
        self, name: str, args: Any, kwargs: Any, held: Sequence[Scores | Lost | None], out: Tensor
    ) -> None:
        first = 1 if name == "baddbmm" else 0
        a, b = args[first : first + 2]
        for side, found in enumerate(held[first : first + 2]):
            if found is None or found.stage not in _MIXES:
                continue
            if found.softmax is not None:
                if isinstance(found, Lost) and any(x is found.softmax for x, _ in _here.lost):
                    return  # told when the module ends
                if found.softmax.met and isinstance(found, Scores) and found.columns is not None:
                    return  # another part of the same weights
                found.softmax.met = True
            tell(current(), BY_HAND, None, partial(_met, found, a, b, out, side))
            return
        self.keep(out, _product(name, a, b, args, kwargs))

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


class _Here(threading.local):
    """The mode of a thread, and how many need it, for some modules or for the whole model."""

    def __init__(self) -> None:
        self.mode, self.count, self.whole = _Follow(), 0, 0
        self.late: dict[nn.Module, mode] = {}
        self.lost: list[tuple[Softmax, Callable[[], Call]]] = []


_here = _Here()


@cache
def _kind(func: Any) -> tuple[str, bool, bool]:
    """The name of an operation, whether it changes its argument, whether it is a composite.

    If a backend has a kernel of its own, as for `silu_backward`, the operation is no composite.
    """
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    composite = has(func.name(), COMPOSITE) and not any(has(func.name(), key) for key in BACKENDS)
    name, changes = func._schema.name.removeprefix("aten::"), func._schema.is_mutable
    return name.rstrip("_") if changes else name, changes, composite


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
    assert call.real is not None
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


_FUSED = "_scaled_dot_product_"
_PRODUCTS = ("bmm", "mm", "baddbmm")
_BECOMES: dict[tuple[Stage, str], Stage] = {
    ("scores", "_softmax"): "weights",
    ("scores", "_safe_softmax"): "weights",
    ("scores", "_log_softmax"): "logarithms",
    ("scores", "exp"): "exponentials",
    ("logarithms", "exp"): "weights",
}
_MIXES = ("weights", "exponentials")
_BEGINS = frozenset((*_PRODUCTS, "_softmax", "_safe_softmax", "_log_softmax"))
_VIEWS = ("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze")
_MOVES = ("permute", "transpose", "t")
_CHANGES = ("native_dropout", "masked_fill", "where", "mul", "div", "add", "sub", "neg", "tanh")
_SAME = ("clone", "detach", "alias", "_to_copy", "lift_fresh", "nan_to_num")
_PARTS = ("cat", "stack", "slice", "select", "split", "split_with_sizes", "unbind", "index")
_GOES_ON = frozenset((*_SAME, *_VIEWS, *_MOVES, *_CHANGES, *_PARTS))
_CHOOSES = ("topk", "sort", "max", "gather")


def _begun(weights: Tensor) -> Softmax:
    """Tell whoever watches of a softmax, before its weights meet anything."""
    softmax = Softmax(tuple(weights.shape))
    for recorder in current():
        softmax.module = recorder.softmax(weights, softmax) or softmax.module
    return softmax


def told(weights: Tensor) -> None:
    """Hear of a softmax that somebody called by name; follow its weights if nobody does yet."""
    if _is_on():
        return
    softmax = Softmax(tuple(weights.shape))
    for recorder in current():
        module = recorder.softmax(weights, softmax)
        if module is not None and recorder.wants(module):
            softmax.module = module
            follow_from(module, weights, softmax)
            return


def _after(
    name: str, found: Scores | Lost, at: int, args: Any, kwargs: Any, outs: Sequence[Tensor]
) -> Scores | Lost | None:
    """The scores, or the weights made of them, after an operation; None if it ends them."""
    stage: Stage = found.stage
    becomes = _BECOMES.get((stage, name), stage)
    if isinstance(found, Lost):
        if stage == "exponentials" and name == "div" and _summed_axis(outs[0], args[1]) is not None:
            becomes = "weights"
        if becomes != stage:
            return Lost(found.why, becomes)
        return found if stage in _MIXES or name in _GOES_ON else None
    try:
        return _step(name, found, at, args, kwargs, outs[0])
    except Lost as lost:
        where = "" if "aten." in lost.why else f" (aten.{name})"
        return Lost(lost.why + where, becomes)
    except Exception as error:  # whatever a model does to its scores
        return Lost(f"{type(error).__name__} in aten.{name}: {error}", becomes)


def _as_they_are(lost: Lost, name: str, args: Any, weights: Tensor) -> Scores | Lost:
    """The weights of a softmax whose scores went out of sight."""
    axis = args[1] if name.endswith("softmax") else _axis_of_ones(weights)
    if axis is None:
        return lost
    try:
        return replace(Scores.given(weights, axis), why=lost.why)
    except Lost as other:
        return Lost(other.why, "weights")


def _axis_of_ones(weights: Tensor) -> int | None:
    """The axis along which weights sum to 1, if there is one."""
    ones = torch.ones((), dtype=weights.dtype, device=weights.device)
    for axis in range(-1, -weights.ndim - 1, -1):
        if torch.allclose(weights.sum(axis), ones, atol=0.02):
            return axis
    return None


def _leaves(name: str, args: Any, at: int, out: Tensor) -> bool:
    """Whether weights are lost: selected from, or mixed with values entry by entry."""
    weights = args[at]
    if name in _CHOOSES or not isinstance(weights, Tensor):
        return name in _CHOOSES
    others = [x for x in args if isinstance(x, Tensor) and x.numel() > weights.numel()]
    return bool(others) and out.numel() > weights.numel()


def _step(name: str, found: Scores, at: int, args: Any, kwargs: Any, out: Tensor) -> Scores:
    """The scores after an operation on them as its argument ``at``; raises `Lost`."""
    if name in ("_softmax", "_safe_softmax"):
        return found.over_keys(args[1], "weights")
    if name == "_log_softmax":
        return found.over_keys(args[1], "logarithms")
    if name == "exp" and found.stage in ("scores", "logarithms"):
        return replace(found, stage=_BECOMES[found.stage, name])
    if name in _VIEWS:
        return found.viewed(tuple(out.shape))
    if name in _SAME:
        return found
    if name in _MOVES:
        return found.permuted(_order(name, args, out.ndim))
    if name == "slice" and found.stage == "weights":
        return found.cut(args[1] if len(args) > 1 else 0, out.shape, *args[2:])
    what = {"exponentials": "exponentials of scores", "logarithms": "logarithms of weights"}
    passes = f"{what.get(found.stage, found.stage)} pass through aten.{name}"
    if not isinstance(args[at], Tensor) or out.shape != args[at].shape:
        raise Lost(passes)
    if name == "native_dropout":
        on = args[2] is None or args[2]
        return replace(found, dropout=args[1]) if on and found.stage == "weights" else found
    if name == "masked_fill":
        return found.hidden(args[1], args[2])
    if name == "where" and at > 0:
        return found.hidden(~args[0] if at == 1 else args[0], args[3 - at])
    if name == "mul" and found.stage == "weights":
        return replace(found, dropout=_dropped(args[1 - at]))
    other: Any = args[1 - at] if len(args) > 1 and at < 2 else None
    if name == "div" and at == 0 and found.stage == "exponentials":
        axis = _summed_axis(out, other)
        if axis is None:
            raise Lost("exponentials of scores are divided by something that is not their sum")
        return found.over_keys(axis, "weights")
    if found.stage == "scores":
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
    raise Lost(passes)


def _summed_axis(out: Tensor, divisor: Any) -> int | None:
    """The axis along which divided exponentials sum to 1, if there is one."""
    for axis in (-1, -2):
        if isinstance(divisor, Tensor) and divisor.ndim == out.ndim and divisor.shape[axis] == 1:
            sums = out.sum(axis)
            if bool(((sums - 1).abs() <= 0.02).logical_or_(~(sums > 0)).all()):  # 0, NaN: hidden
                return axis
    return None


def _dropped(factor: Any) -> float:
    """The dropout that a tensor of zeros and 1 / (1 − p) stands for."""
    top = float(factor.max()) if isinstance(factor, Tensor) and factor.numel() else 0.0
    if top <= 1 or bool(((factor != 0) & (factor != factor.max())).any()):
        raise Lost("weights are multiplied with something that is not dropout")
    return 1 - 1 / top


def _order(name: str, args: Any, n: int) -> list[int]:
    """For each axis of the result, the axis of the argument."""
    if name == "permute":
        return [axis % n for axis in args[1]]
    order = list(range(n))
    i, j = args[1:3] if name == "transpose" else (0, n - 1)
    order[i], order[j] = order[j], order[i]
    return order


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.untyped_storage()._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype
