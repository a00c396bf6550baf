"""Signs of attention by pass code: the functions and operators it names, in their order.

The code is read and never run. A missing name proves nothing: a function may be called otherwise.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial, wraps
from inspect import unwrap
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import nn

PRODUCTS = frozenset(
    ("@", "matmul", "bmm", "mm", "mv", "baddbmm", "einsum", "tensordot", "vecdot", "dot", "inner")
)
"""Functions that mix values with their weights."""

SCATTERS = frozenset(
    ("index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "segment_reduce")
)
"""Functions that add up rows by an index."""

CHOICES = frozenset(("topk", "argmax", "multinomial", "argsort", "one_hot", "gather", "scatter"))
"""Functions that select from probabilities, as routers and samplers do."""

POWERS = frozenset(("exp", "exp_", "exp2", "exp2_"))
SUMS = frozenset(("sum", "logsumexp", "norm", "normalize"))
QUOTIENTS = frozenset(("/", "div", "div_", "reciprocal", "normalize"))

SELECTS = frozenset(("sort", "topk")), frozenset(("cumsum",))
"""Functions that sparsemax and entmax take, in this order."""

FORMULAS: dict[str, tuple[Set[str], ...]] = {
    "softmax": (),
    "Softmax": (),
    "_softmax": (),
    "log_softmax": (POWERS,),
    "logsumexp": (POWERS,),
    **dict.fromkeys(sorted(POWERS), (SUMS, QUOTIENTS)),
}
"""By the function that makes weights: the functions that have to follow it, in any order."""

HANDED = "eager_attention_forward"
"""The function that a model of transformers hands to an interface, which is watched itself."""

FORWARDS = ("forward", "call", "__call__")
"""Names of the methods that run a module."""

LOADS = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))

MOST = 100
"""Entries of a dict, list or tuple at most that are searched for functions."""

INDIRECT: dict[type, str] = {
    partial: "func",
    MethodType: "__func__",
    staticmethod: "__func__",
    torch.jit.ScriptFunction: "_torchdynamo_inline",
}
"""By the type of what stands for a function: its attribute that is the function."""

DOORS = "intently.observe.watching.doors"
PASSED = ("torch", "intently.observe")
"""Packages whose own code says nothing about a model."""


Said = TypeVar("Said")


class Word(NamedTuple):
    """A name or an operator, and its place in the bytecode and in the file."""

    text: str
    offset: int
    line: int


@lru_cache(4096)
def words(code: CodeType) -> tuple[Word, ...]:
    """The names that code loads, and its operators @, * and /."""
    found: list[Word] = []
    for one in dis.get_instructions(code):
        line = one.positions.lineno if one.positions else None
        if one.opname == "BINARY_OP":
            found.append(Word(one.argrepr.removesuffix("="), one.offset, line or 0))
        elif one.opname in LOADS:
            found.append(Word(one.argval, one.offset, line or 0))
    return tuple(found)


def still_to_come(modules: int) -> set[str]:
    """The names in the running code after its pending call.

    This is the code of the forwards of the innermost ``modules`` modules, and of everything between
    them and here, except PyTorch's own.
    """
    found: set[str] = set()
    frame = sys._getframe(1)
    while frame is not None and modules:
        name = str(frame.f_globals.get("__name__", ""))
        if name == DOORS and frame.f_code.co_name == "call":
            modules -= 1
        elif name.split(".")[0] != PASSED[0] and not name.startswith(PASSED[1]):
            here = Word("", frame.f_lasti, frame.f_lineno or 0)
            found |= {word.text for word in words(frame.f_code) if _after(word, here)}
        frame = frame.f_back
    return found


def mixes(shape: Sequence[int], come: set[str]) -> bool:
    """Whether a softmax of this shape may be one of scores, by the names that come after it.

    If they do not tell, weights have more than two axes, or as many keys as queries.
    """
    if come & PRODUCTS:
        return True
    if come & CHOICES:
        return False
    return len(shape) > 2 or shape[0] == shape[1] or pools(come)


def pools(come: set[str]) -> bool:
    """Whether code weighs values entry by entry and adds them up."""
    return "*" in come and bool({"sum", "cumsum"} & come) and "log" not in come


def remembered(say: Callable[[type[nn.Module]], Said]) -> Callable[[type[nn.Module]], Said]:
    """Remember what the code of a class says until its forward is replaced."""
    known: WeakKeyDictionary[type[nn.Module], tuple[int, Said]] = WeakKeyDictionary()

    @wraps(say)
    def remembering(kind: type[nn.Module]) -> Said:
        forward = next(id(vars(k)["forward"]) for k in kind.__mro__ if "forward" in vars(k))
        before = known.get(kind)
        if before is None or before[0] != forward:
            before = known[kind] = forward, say(kind)
        return before[1]

    return remembering


@remembered
def formula(kind: type[nn.Module]) -> str | None:
    """The function by which the forward of a class makes weights by hand, None if none is seen."""
    return next(filter(None, map(_formula, _codes(kind))), None)


def writes_attention(module: nn.Module) -> bool:
    """Whether the code of a forward, or of functions that it may call, makes weights by hand.

    These are functions that it names, of any file but PyTorch's, and those that the module holds,
    also behind partials, closures and objects. One may make weights, and another mix values.
    """
    known, key = _written.setdefault(type(module), {}), holding(module)
    if key not in known:
        known[key] = _writes(all_codes(type(module), key), key.softmax)
    return known[key]


PLAIN = (bool, int, float, str, type(None), torch.Tensor)


class Holding(NamedTuple):
    """What a module holds that may run: classes of objects, functions, and a softmax."""

    kinds: frozenset[type]
    functions: frozenset[Any]
    softmax: bool


_written: WeakKeyDictionary[type[nn.Module], dict[Holding, bool]] = WeakKeyDictionary()


def holding(module: nn.Module) -> Holding:
    """What a module holds that may run in its forward."""
    held = [x for x in vars(module).values() if not isinstance(x, PLAIN)]
    return Holding(
        frozenset(type(x) for x in held if not _passed(type(x).__module__)),
        frozenset(filter(callable, _behind(held, frozenset()))),
        any(isinstance(x, nn.Softmax) for x in module._modules.values()),
    )


def all_codes(kind: type[nn.Module], held: Holding) -> list[CodeType]:
    """The code of a forward and of all that it may call, with what a module holds."""
    own = methods(kind)
    for other in held.kinds:
        own = {**_functions(other), **own}
    return [*_called([*_forwards(own), *held.functions], own, anywhere=True)]


def _writes(codes: list[CodeType], softmax: bool) -> bool:
    """Whether code makes weights, and mixes values."""
    names = [{word.text for word in words(code)} for code in codes]
    every = set().union(*names)
    if any(map(calls_operator, names)):
        return True
    if not every & (PRODUCTS | SCATTERS) and not pools(every):
        return False
    return softmax or any(_makes_weights(code) is not None or _shares(code) for code in codes)


def calls_operator(names: set[str]) -> bool:
    """Whether code calls an operator of fused attention and not PyTorch's function."""
    fused = any(name.startswith("_scaled_dot_product") for name in names)
    return fused or ("scaled_dot_product_attention" in names and bool(names & {"aten", "_nn"}))


def _formula(code: CodeType) -> str | None:
    """The function that makes weights, if a product comes after it."""
    return _makes_weights(code, PRODUCTS)


@lru_cache(4096)
def _makes_weights(code: CodeType, *then: Set[str]) -> str | None:
    """The function that makes weights, followed by one of each of ``then``."""
    found = words(code) if FORMULAS.keys() & code.co_names else ()
    for word in found:
        if word.text in FORMULAS:
            after = {other.text for other in found if _after(other, word)}
            if all(after & need for need in (*FORMULAS[word.text], *then)):
                return word.text
    return None


@lru_cache(4096)
def _shares(code: CodeType) -> bool:
    """Whether code divides by a sum, takes shares of a sorted tensor, or has two products."""
    names = {word.text for word in words(code)}
    pairs = (SUMS, QUOTIENTS), (SCATTERS, QUOTIENTS), ({"cumsum"}, QUOTIENTS), SELECTS
    products = sum(word.text in PRODUCTS for word in words(code))
    return products > 1 or any(names & one and names & other for one, other in pairs)


def only_calls_its_parts(module: nn.Module) -> bool:
    """Whether a forward names nothing but plain parts of its module, such as layers of PyTorch."""
    code = getattr(unwrap(type(module).forward), "__code__", None)
    if code is None:
        return False
    parts, found = dict(module.named_children()), {word.text for word in words(code)}
    names = {name for name in found if name.isidentifier()}
    return "@" not in found and all(name in parts and _is_plain(parts[name]) for name in names)


def _is_plain(module: nn.Module) -> bool:
    kinds = {type(part) for part in module.modules()}
    return all(kind.__module__.startswith("torch.nn.modules") for kind in kinds) and not any(
        "attention" in kind.__name__.lower() for kind in kinds
    )


def _after(word: Word, other: Word) -> bool:
    """Whether a word acts after another: operators by their offset, functions by their line.

    A function is named before its arguments are computed, and called after them.
    """
    if word.text.isidentifier():
        return word.line >= other.line and word.offset != other.offset
    return word.offset > other.offset


def methods(kind: type) -> dict[str, Any]:
    """The attributes of a class and its bases, except PyTorch's."""
    return {name: x for k in reversed(own_kinds(kind)) for name, x in vars(k).items()}


def own_kinds(kind: type) -> list[type]:
    """A class and its bases, except PyTorch's."""
    return [k for k in kind.__mro__ if k.__module__.split(".")[0] not in ("torch", "builtins")]


def _codes(kind: type[nn.Module]) -> Iterator[CodeType]:
    """The code of a forward, of the methods it names, and of functions of the same file."""
    own = methods(kind)
    return _called(_forwards(own), own, anywhere=False)


def _forwards(own: Mapping[str, Any]) -> list[Any]:
    return [own[name] for name in FORWARDS if name in own]


def _called(left: list[Any], own: Mapping[str, Any], anywhere: bool) -> Iterator[CodeType]:
    """The code of functions, and of those that they may call: their own, or of other files too."""
    known: set[object] = set()
    while left:
        function = left.pop()
        function = unwrap(function) if callable(function) else None
        if not isinstance(function, FunctionType) or function in known:
            continue
        known.add(function)
        if function.__name__ == HANDED:
            continue
        codes = list(_nested(function.__code__))
        yield from codes
        names = frozenset(name for code in codes for name in code.co_names)
        left += [own[name] for name in names if name in own]
        others = [function.__globals__.get(name) for name in names]
        here = [x for x in others if isinstance(x, FunctionType)]
        left += [x for x in here if x.__module__ == function.__module__]
        if anywhere:
            closed = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
            left += _behind([*others, *closed, *(function.__defaults__ or ())], names)


def _nested(code: CodeType) -> Iterator[CodeType]:
    """Code, and that of the functions defined in it."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from _nested(x)


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a function that is still being defined
        return False


def _behind(held: Iterable[Any], names: frozenset[str]) -> Iterator[Any]:
    """The functions that objects stand for, in which code looks up ``names``."""
    for x in held:
        if isinstance(x, FunctionType):
            if not _passed(x.__module__):
                yield x
        elif type(x) in INDIRECT:
            yield from _behind([getattr(x, INDIRECT[type(x)], None)], names)
        elif isinstance(x, ModuleType):
            if not _passed(x.__name__):
                yield from (vars(x)[name] for name in names & vars(x).keys())
        elif isinstance(x, (dict, list, tuple)):
            inside = list(x.values() if isinstance(x, dict) else x)
            if len(inside) <= MOST:
                some = [f for f in inside if type(f) in (FunctionType, *INDIRECT)]
                yield from _behind(some, names)
        elif isinstance(x, type):
            if issubclass(x, torch.autograd.Function):
                yield getattr(x.forward, "__func__", x.forward)
        elif not isinstance(x, nn.Module):
            called = _functions(type(x)).get("__call__")
            yield from () if called is None else (called,)


@lru_cache(1024)
def _functions(kind: type) -> dict[str, FunctionType]:
    """The functions in a class and its bases, except those of PyTorch and of Python."""
    return {name: x for name, x in methods(kind).items() if isinstance(x, FunctionType)}


def _passed(name: str | None) -> bool:
    return str(name).split(".")[0] in ("torch", "intently", "numpy", "builtins", "collections")
