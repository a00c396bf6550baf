"""Run NumPy code on torch tensors, so that gradients and dispatch modes follow it.

An `_Array` stands where an np.ndarray would; what it computes is in ``torch._numpy``. What
something else may have read is copied before it is changed in place, so that gradients stay right.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
import torch._numpy as tnp
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import Tensor
from torch._numpy import _ndarray
from torch.utils import _pytree as tree

from intently.checker.calling.programs import into_rows

FOREIGN = sys.stdlib_module_names | {
    *("numpy", "scipy", "torch", "jax", "jaxlib", "keras", "intently")
}
NAMED = {"a_min": "min", "a_max": "max"}
REDUCED = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
INTO = {"add": "add", "maximum": "max", "minimum": "min"}
NOTHING = {"sum": 0.0, "max": -math.inf, "amax": -math.inf, "min": math.inf, "amin": math.inf}
LOST = ("order", "subok", "kind", "optimize", "casting", "copy", "out", "where", "initial")
PLAIN = frozenset(("result_type", "tril_indices_from", "triu_indices_from"))
BASE: Any = _ndarray.ndarray
LIVE = weakref.WeakValueDictionary[int, Any]()
KEPT: dict[int, tuple[Any, np.ndarray, Tensor]] = {}
"""By the id of an array that code holds: a weak reference to it, its numbers, its tensor."""
LEFT: dict[int, Any] = {}
"""Weak references to arrays that calls have left behind, by their ids."""


def _dot(a: Tensor, b: Any) -> Any:
    if np.ndim(b) < 3:
        return tnp.dot(a, b)  # pyright: ignore
    return (a.flatten(0, -2) @ b).movedim(-2, 0).unflatten(0, a.shape[:-1])


def _scaled(x: Tensor, axis: int | None = None, *, by: Any) -> Tensor:
    return by(x.reshape(-1) if axis is None else x, axis or 0).reshape(x.shape)


def _cut(x: Any, k: int = 0, *, by: Any) -> Tensor:
    x = torch.as_tensor(x)
    return by(x if x.ndim > 1 else x.expand(len(x), len(x)), k)


def _rows(call: Any, axis: int, x: Tensor, *args: Any, **named: Any) -> Tensor:
    moved = x.movedim(axis, -1)
    made = [_raw(call(_Array(row), *args, **named)) for row in moved.reshape(-1, moved.shape[-1])]
    y = torch.stack(made).reshape(*moved.shape[:-1], *made[0].shape)
    return y.movedim(-1, axis) if y.ndim == x.ndim else y


OWN: dict[str, Callable[..., Any]] = {  # what torch._numpy lacks, or has otherwise
    "reshape": lambda x, *shape, **named: x.reshape(*shape, *named.values()),
    "squeeze": lambda x, axis=None: x.squeeze() if axis is None else x.squeeze(axis),
    "subtract": lambda *xs: tnp.subtract(  # pyright: ignore
        *(x.long() if getattr(x, "dtype", None) is torch.bool else x for x in xs)
    ),
    **{n: partial(_cut, by=getattr(torch, n)) for n in ("tril", "triu")},
    **{"dot": _dot, "apply_along_axis": _rows, "matrix_transpose": lambda x: x.mT},
    **{n: partial(_scaled, by=getattr(torch, n)) for n in ("softmax", "log_softmax")},
    "logsumexp": lambda x, axis=None, keepdims=False: x.logsumexp(
        tuple(range(x.ndim)) if axis is None else axis, keepdims
    ),
}


def _raw(x: Any) -> Any:
    """What torch computes with: tensors for arrays, also inside lists and tuples; numbers."""
    if type(x) is _Array:
        return x.tensor
    if type(x) in (list, tuple):
        return type(x)(map(_raw, x))
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
        return np.dtype(x).name
    if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiub":
        return x.item() if isinstance(x, np.generic) else x
    return torch.from_numpy(x.astype(np.int64) if x.dtype.kind == "u" else x.copy())


def _called(name: str, *args: Any, **named: Any) -> Any:
    """What a function of NumPy or scipy makes of arrays, with torch."""
    if named.get("order") == "F":
        raise NotImplementedError(f"np.{name} with order='F'")
    homes = () if name in PLAIN else (tnp, tnp.linalg, torch.special)
    by = OWN.get(name) or next((getattr(x, name) for x in homes if hasattr(x, name)), None)
    if by is None:
        made = getattr(np, name, type(None))(*_values(args), **_values(named))
        if made is None or np.asarray(made).dtype.kind == "f":
            raise NotImplementedError(f"np.{name} of tensors")
        return made
    options = {NAMED.get(n, n): _raw(x) for n, x in named.items() if n not in LOST}
    return _wrapped(by(*map(_raw, args), **options))


class _Array(NDArrayOperatorsMixin, BASE):
    """A tensor that behaves as an np.ndarray."""

    __class__ = property(lambda _: np.ndarray)  # pyright: ignore
    mT = property(lambda x: _Array(x.tensor.mT))  # noqa: N815
    shape = property(lambda x: tuple(x._tensor.shape))
    dtype = property(lambda x: np.dtype(str(x._tensor.dtype)[6:].replace("bf", "f")))

    def __init__(self, tensor: Tensor, own: bool = False) -> None:
        self._tensor, self._own = tensor, own
        LIVE[id(self)] = self

    @property
    def tensor(self) -> Tensor:
        """The tensor as it is now."""
        self._own = False
        return self._tensor

    def __array_ufunc__(
        self, ufunc: Any, method: str, *xs: Any, out: Any = (None,), where: Any = True, **named: Any
    ) -> Any:
        if method == "reduce":
            return getattr(np, REDUCED[ufunc.__name__])(*xs, **{"axis": 0, "where": where, **named})
        if method == "at" and ufunc.__name__ in INTO and type(xs[0]) is _Array:
            rows, new = torch.as_tensor(_raw(xs[1])), torch.as_tensor(_raw(xs[2]))
            old, by = xs[0].tensor, INTO[ufunc.__name__]
            xs[0][...] = _Array(into_rows(old, rows, new.expand(len(rows), *old.shape[1:]), by))
            return None
        if method != "__call__":
            raise NotImplementedError(f"np.{ufunc.__name__}.{method} of tensors")
        made = _called(ufunc.__name__, *xs, **named)
        return _into(out[0], made if where is True else np.where(where, made, out[0]))

    def __array_function__(self, call: Any, _: Any, args: Any, named: dict[str, Any]) -> Any:
        name, where = call.__name__, named.get("where", True)
        if where is not True:
            args = np.where(where, args[0], NOTHING[name]), *args[1:]
        return _into(named.get("out"), _called(name, *args, **named))

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.ndarray.astype(self._tensor.detach().cpu().numpy(), dtype or self.dtype)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(_index(key, self.shape))

    def __setitem__(self, key: Any, value: Any) -> None:
        old, value = self._tensor, _raw(value)
        others = [x._tensor for x in [*LIVE.values()] if x._tensor is not old]
        view = old._base is not None and any(old._base is x or old._base is x._base for x in others)
        if not view and key is ... and isinstance(value, Tensor):
            self._tensor, self._own = value.to(old.dtype).expand(old.shape), False
            return
        if not (self._own or view):
            self._tensor = old.clone()
        super().__setitem__(_index(key, self.shape), value)
        self._own = not view

    def __iter__(self) -> Iterator[_Array]:
        return (self[n] for n in range(len(self)))

    def __format__(self, form: str) -> str:
        return format(self.item() if form else str(self), form)

    def fill(self, value: Any) -> None:
        self[...] = value

    def astype(self, dtype: Any, *_: Any, **__: Any) -> _Array:
        return _Array(self.tensor.to(getattr(torch, np.dtype(dtype).name), copy=True))

    def flatten(self) -> _Array:
        return _Array(self.tensor.reshape(-1).clone())


for _name in _ndarray.methods:
    setattr(_Array, _name, lambda *xs, n=_name, **named: getattr(np, n)(*xs, **named))


def _into(out: Any, made: Any) -> Any:
    if out is None:
        return made
    out[...] = made
    return out


def _index(key: Any, shape: tuple[int, ...]) -> Any:
    """What torch takes for an index of NumPy; a place for each number where it runs backwards."""
    parts = key if type(key) is tuple else (key,)
    if any(isinstance(p, slice) and (p.step or 1) < 0 for p in parts):
        places = np.arange(math.prod(shape)).reshape(shape)[_values(key)]
        return _raw(tuple(np.unravel_index(places, shape)))
    return _raw(np.asarray(key) if isinstance(key, (list, range)) else key)


def _values(x: Any) -> Any:
    return tree.tree_map_only(_Array, _Array.__array__, x)


def _wrapped(x: Any) -> Any:
    """Tensors as Arrays, also in lists, tuples and mappings."""
    return tree.tree_map_only(Tensor, _Array, x)


def _slots(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """What an object or a function holds, by name, and how something else is put there."""
    about = x if isinstance(x, (FunctionType, type)) else type(x)
    if isinstance(x, dict):
        return [*x.items()], x.__setitem__
    if isinstance(x, (list, tuple)):
        return [*enumerate(x)], getattr(x, "__setitem__", None)
    if isinstance(x, CellType):
        return [("", x.cell_contents)], lambda _, y: setattr(x, "cell_contents", y)
    if isinstance(x, partial):
        _, _, *rest = state = x.__reduce__()[2]  # pyright: ignore

        def put(_: str, y: Any) -> None:
            new = (x.func, y) if type(y) is tuple else (y, x.args)
            x.__setstate__((*new, *rest))  # pyright: ignore

        return [("", part) for part in state[:3]], put
    if isinstance(x, MethodType):
        return [("", x.__self__), ("", x.__func__)], None
    if str(about.__module__).split(".")[0] in FOREIGN:
        return [], None
    if isinstance(x, FunctionType):
        known, cells = x.__globals__, zip(x.__code__.co_freevars, x.__closure__ or ())
        slots = [(n, cell) for n, cell in cells if cell != CellType()]  # but for empty ones
        slots += [(n, known[n]) for n in sorted(_names(x.__code__) & known.keys())]
        slots += [("", x.__defaults__), ("", x.__kwdefaults__)]
        return slots, lambda n, y: known.update({n: y}) if n else setattr(x, "__defaults__", y)
    if isinstance(x, type):
        return [(n, getattr(y, "__func__", y)) for n, y in vars(x).items()], partial(setattr, x)
    return [("", type(x)), ("", getattr(x, "__dict__", None))], None


def _names(code: CodeType) -> set[str]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


def _walk(x: Any, path: str, change: Callable[[Any, str], Any], seen: dict[int, Any]) -> None:
    """Change what an object or a function holds, and what that holds."""
    if id(x) in seen:
        return
    seen[id(x)] = x
    slots, put = _slots(x)
    for n, y in slots:
        to = f"{path}.{n}".strip(".")
        _walk(y, to, change, seen)
        if put is not None and (z := change(y, to)) is not y:
            put(n, z)


@contextmanager
def _standing(call: Any) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    """A callable with Arrays for the arrays it holds, and their tensors by name."""
    named: dict[str, Tensor] = {}
    written: list[tuple[_Array, np.ndarray, Tensor, int]] = []
    replaced = [*_replaced()]
    stand = {id(f): new for *_, f, new in replaced}
    back = {id(new): (f, new) for *_, f, new in replaced}

    def array(x: Any, path: str) -> Any:
        """What stands for a value during the call."""
        if id(x) in stand:
            return stand[id(x)]
        if type(x) is np.ndarray and x.dtype.kind == "f":
            tensor = _kept(x)
            made = _Array(tensor)
            written.append((made, x, tensor, tensor._version))
            named.update({} if id(x) in LEFT else {path: tensor})
        elif type(x) is tuple:
            made = tuple(array(y, f"{path}.{n}".strip(".")) for n, y in enumerate(x))
            if all(y is z for y, z in zip(made, x)):
                return x
        else:
            return x
        stand[id(x)], back[id(made)] = made, (x, made)
        return made

    def plain(x: Any, path: str = "") -> Any:
        """What a value is again after the call: what was left behind becomes NumPy's own."""
        if id(x) in back:
            return back[id(x)][0]
        if type(x) is tuple and any(type(y) is _Array for y in x):
            return tuple(map(plain, x))
        if type(x) is not _Array:
            return x
        at = id(made := x.__array__())
        LEFT[at] = weakref.ref(made, lambda _: LEFT.pop(at, None))
        back[id(x)] = made, x
        return made

    _walk(call, "", array, {})
    try:
        for home, name, _, new in replaced:
            setattr(home, name, new)
        yield array(call, ""), named
    finally:
        for home, name, f, _ in replaced:
            setattr(home, name, f)
        for made, old, tensor, version in written:
            if (made._tensor is not tensor or tensor._version != version) and old.flags.writeable:
                old[...] = made.__array__()
                KEPT.pop(id(old), None)
        _walk(call, "", plain, {})


def _kept(x: np.ndarray) -> Tensor:
    """The tensor of an array, the same one as long as its numbers stay."""
    at, known = id(x), KEPT.get(id(x))
    if known is not None and known[0]() is x and np.array_equal(x, known[1], equal_nan=True):
        return known[2]
    KEPT[at] = weakref.ref(x, lambda _: KEPT.pop(at, None)), x.copy(), torch.tensor(x).double()
    return KEPT[at][2]


def _through(original: Callable[..., Any]) -> Callable[..., Any]:
    """np.array and the like, which let Arrays through, also inside lists."""

    def made(x: Any, dtype: Any = None, *args: Any, **named: Any) -> Any:
        if not any(type(part) is _Array for part in tree.tree_leaves(x)):
            return original(x, dtype, *args, **named)
        y = x if type(x) is _Array else np.stack([made(part) for part in x])
        return y.astype(dtype or y.dtype) if dtype or original.__name__ == "array" else y

    return made


def _buffer(original: Callable[..., Any]) -> Callable[..., Any]:
    """np.zeros and the like, which make Arrays of floats where no library calls them."""

    def made(*args: Any, **options: Any) -> Any:
        x, caller = original(*_values(args), **_values(options)), sys._getframe(1)
        home = caller.f_globals.get("__name__", "").split(".")[0]
        named = original.__name__ in caller.f_code.co_names  # else it is called by compiled code
        floats = x.dtype.kind == "f" and home not in FOREIGN and named
        return _Array(torch.from_numpy(x).double(), own=True) if floats else x

    return made


def _either(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of math or scipy.special, for Arrays as well."""
    call = partial(_called, original.__name__)
    return lambda x, *xs, **named: (call if type(x) is _Array else original)(x, *xs, **named)


def _replaced() -> Iterator[tuple[Any, str, Any, Any]]:
    """What takes the places of functions during a call: module, name, function, the other."""
    yield _ndarray, "ndarray", _ndarray.ndarray, _Array  # what torch._numpy makes
    for home, by, names in (
        (np, _through, ("array", "asarray", "asanyarray", "ascontiguousarray")),
        (np, _buffer, ("zeros", "ones", "empty", "full")),
        (math, _either, ("exp", "log", "sqrt", "tanh")),
        (sys.modules.get("scipy.special"), _either, ("softmax", "log_softmax", "logsumexp")),
    ):
        for name in names if home is not None else ():
            yield home, name, (f := getattr(home, name)), by(f)


def on_tensors(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same callable on tensors, with what it holds as tensors too; it returns tensors."""

    def run(*args: Any, **named: Any) -> Any:
        with _standing(call) as (standing, _):
            made = standing(*_wrapped(args), **_wrapped(named))
            known = (np.ndarray, np.generic)  # an _Array as well, by its __class__
            return tree.tree_map_only(known, lambda x: torch.as_tensor(_raw(x)), made)

    run.__wrapped__ = run.on_tensors = call  # pyright: ignore
    return run


def held_arrays(call: Callable[..., Any]) -> dict[str, Tensor]:
    """The tensors of the arrays a callable holds, by name; not of what a call has left behind."""
    with _standing(getattr(call, "on_tensors", call)) as (_, named):
        return named
