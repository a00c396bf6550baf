"""Signs of attention by hand in code: the functions and operators it names, in their order.

The code is read and never run. A missing name proves nothing: a function may be called otherwise.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from functools import lru_cache
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

PRODUCTS = frozenset(
    ("@", "matmul", "bmm", "mm", "mv", "baddbmm", "einsum", "tensordot", "vecdot", "dot", "inner")
)
"""Functions that mix values with their weights."""

CHOICES = frozenset(("topk", "argmax", "multinomial", "argsort", "one_hot", "gather", "scatter"))
"""Functions that select from probabilities, as routers and samplers do."""

FORMULAS: dict[str, tuple[Set[str], ...]] = {
    "softmax": (PRODUCTS,),
    "_softmax": (PRODUCTS,),
    "log_softmax": ({"exp", "exp_"}, PRODUCTS),
    "exp": ({"sum", "logsumexp", "norm"}, {"/"}, PRODUCTS),
    "exp_": ({"sum", "logsumexp", "norm"}, {"/"}, PRODUCTS),
}
"""By the function that makes weights: the functions that have to follow it, in any order."""

LOADS = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))

FORWARDS = ("forward", "call", "__call__")
"""Names of the methods that run a module."""

WATCH = "intently.observe.watching.watch"
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
        if name == WATCH and frame.f_code.co_name == "call":
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
    return {"*", "sum"} <= come and "log" not in come


def remembered(say: Callable[[type[nn.Module]], Said]) -> Callable[[type[nn.Module]], Said]:
    """Remember what the code of a class says until its forward is replaced."""
    known: WeakKeyDictionary[type[nn.Module], tuple[int, Said]] = WeakKeyDictionary()

    def remembering(kind: type[nn.Module]) -> Said:
        forward = next(id(vars(k)["forward"]) for k in kind.__mro__ if "forward" in vars(k))
        if kind not in known or known[kind][0] != forward:
            known[kind] = forward, say(kind)
        return known[kind][1]

    return remembering


@remembered
def formula(kind: type[nn.Module]) -> str | None:
    """The function by which the forward of a class makes weights by hand, None if none is seen."""
    return next(filter(None, map(_formula, _codes(kind))), None)


def writes_attention(module: nn.Module) -> bool:
    """Whether the code of a forward, or of functions that it may call, makes weights by hand.

    These are functions that it names, of any file but PyTorch's, and those that the module holds.
    """
    codes = all_codes(module)
    names = [{word.text for word in words(code)} for code in codes]
    if any(_formula(code) is not None for code in codes) or any(map(calls_operator, names)):
        return True
    softmax = any(isinstance(x, nn.Softmax) for x in module.children())
    return softmax and any(some & PRODUCTS for some in names)


def all_codes(module: nn.Module) -> list[CodeType]:
    """The code of a forward and of all functions that it may call."""
    held = [x for x in vars(module).values() if isinstance(x, FunctionType)]
    return [*_codes(type(module), anywhere=True), *_called(held, {}, anywhere=True)]


def calls_operator(names: set[str]) -> bool:
    """Whether code calls an operator of fused attention and not PyTorch's function."""
    fused = any(name.startswith("_scaled_dot_product") for name in names)
    return fused or ("scaled_dot_product_attention" in names and bool(names & {"aten", "_nn"}))


def _formula(code: CodeType) -> str | None:
    found = words(code) if FORMULAS.keys() & code.co_names else ()
    for word in found:
        after = {other.text for other in found if _after(other, word)}
        if word.text in FORMULAS and all(after & need for need in FORMULAS[word.text]):
            return word.text
    return None


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
    kinds = [k for k in kind.__mro__ if k.__module__.split(".")[0] not in ("torch", "builtins")]
    return {name: x for k in reversed(kinds) for name, x in vars(k).items()}


def _codes(kind: type[nn.Module], anywhere: bool = False) -> Iterator[CodeType]:
    """The code of a forward, of the methods it names, and of functions of the same file."""
    own = methods(kind)
    return _called([own.get(name) for name in FORWARDS], own, anywhere)


def _called(left: list[Any], own: dict[str, Any], anywhere: bool) -> Iterator[CodeType]:
    known: set[object] = set()
    while left:
        function = left.pop()
        function = unwrap(function) if callable(function) else None
        if not isinstance(function, FunctionType) or function in known:
            continue
        known.add(function)
        yield function.__code__
        for name in function.__code__.co_names:
            other = function.__globals__.get(name)
            left.append(own.get(name))
            if isinstance(other, FunctionType) and (
                other.__module__ == function.__module__ or (anywhere and not _passed(other))
            ):
                left.append(other)


def _passed(function: FunctionType) -> bool:
    return str(function.__module__).split(".")[0] in ("torch", "intently")
