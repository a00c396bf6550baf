"""Modules that attend by hand or may have attended unseen, by the names in their code.

The code is read and never run. A missing name proves nothing: a function may be called otherwise.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from inspect import unwrap
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from intently.nn.models.recurrent_steps import Attentional
from intently.nn.recurrent import AttentionalVector

PRODUCTS = {"@", "matmul", "bmm", "mm", "mv", "baddbmm"}
PRODUCTS |= {"einsum", "tensordot", "vecdot", "dot", "inner"}
"""Functions that mix values with their weights."""

SCATTERS = {"index_add", "index_add_", "scatter_add", "scatter_add_"}
SCATTERS |= {"scatter_reduce", "segment_reduce"}
"""Functions that add up rows by an index."""

CHOICES = {"topk", "argmax", "multinomial", "argsort", "one_hot", "gather", "scatter"}
"""Functions that select from probabilities, as routers and samplers do."""

POWERS = {"exp", "exp_", "exp2", "exp2_"}
SUMS = {"sum", "logsumexp", "norm", "normalize"}
QUOTIENTS = {"/", "div", "div_", "reciprocal", "normalize"}

FORMULAS: dict[str, tuple[set[str], ...]] = {
    **dict.fromkeys(("softmax", "Softmax", "_softmax"), ()),
    **dict.fromkeys(("log_softmax", "logsumexp"), (POWERS,)),
    **dict.fromkeys(sorted(POWERS), (SUMS, QUOTIENTS)),
}
"""By the function that makes weights: the functions that have to follow it, in any order."""

SHARES = (SUMS | SCATTERS | {"cumsum"}, QUOTIENTS), ({"sort", "topk"}, {"cumsum"})
"""Pairs of functions by which entries become shares of a whole; sparsemax and entmax sort."""

FUNCTIONS = {"scaled_dot_product_attention", "flex_attention", "memory_efficient_attention"}
FUNCTIONS |= {"flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "sageattn"}
"""Names by which code calls attention."""

NAMED_AFTER = (Attentional, AttentionalVector)
"""Modules of ours that are named after attention, and do not attend themselves."""

HANDED = "eager_attention_forward"
"""The function that a model of transformers hands to an interface, which is watched itself."""

MOST = 100
"""Entries of a dict, list or tuple at most that are searched, and softmaxes of a module kept."""

INDIRECT: dict[type, str] = {
    **dict.fromkeys((MethodType, staticmethod), "__func__"),
    partial: "func",
    torch.jit.ScriptFunction: "_torchdynamo_inline",
}
"""By the type of what stands for a function: its attribute that is the function."""

LOADS = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"}
PLAIN = (bool, int, float, str, type(None), Tensor)
DOORS = "intently.observe.watching.doors"

DEEPER = " (watch with deep=True)"
ELSEWHERE = (
    "Modules of the model ran in another thread or task, which is not watched: open the watch "
    "where the model runs."
)
LAST_BITS = (
    "Every operation passed through Python, to be followed: if PyTorch picks another kernel "
    "because of that, the last bits of the outputs differ."
)


# --- what ran -------------------------------------------------------------------------------------


@dataclass(eq=False)
class Softmax:
    """A softmax by hand that may be one of scores, and the fate of its weights.

    ``module`` is whose it is, if the code after it goes on as attention does. Its weights ``met``
    values, in a product that was seen or reported; else ``why`` is the first operation that could
    not be followed.
    """

    shape: tuple[int, ...]
    module: nn.Module | None = None
    met: bool = False
    why: str | None = None


@dataclass
class Ran:
    """Modules that ran here, those that ran in other threads or tasks, and softmax by hand."""

    here: set[nn.Module] = field(default_factory=set)
    elsewhere: set[nn.Module] = field(default_factory=set)
    softmax: dict[nn.Module, list[Softmax]] = field(default_factory=dict)

    def weights(
        self, running: Sequence[nn.Module], weights: Any, softmax: Softmax
    ) -> nn.Module | None:
        """Remember a softmax that may be one of scores, and return the module whose it is.

        If the names in the code after it do not tell, weights have more than two axes, or as many
        keys as queries.
        """
        if not isinstance(weights, Tensor) or weights.ndim < 2:
            return None
        wrap = nn.Softmax, nn.Sequential
        depth = next((n for n, m in enumerate(reversed(running), 1) if type(m) not in wrap), None)
        if depth is None:
            return None
        module, come, shape = running[-depth], _still_to_come(depth), weights.shape
        some = len(shape) > 2 or shape[0] == shape[1] or _pools(come)
        if not come & PRODUCTS and (come & CHOICES or not some):
            return None
        known = [x for x in self.softmax.get(module, []) if not x.met]
        self.softmax[module] = [*known[: MOST - 1], softmax]
        return module


def _still_to_come(modules: int) -> set[str]:
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
        elif name.split(".")[0] != "torch" and not name.startswith("intently.observe"):
            here = Word("", frame.f_lasti, frame.f_lineno or 0)
            found |= {word.text for word in _words(frame.f_code) if _after(word, here)}
        frame = frame.f_back
    return found


def unseen(
    names: Mapping[nn.Module, str], seen: Iterable[str], ran: Ran, deep: bool
) -> dict[str, str]:
    """The modules of ``names`` that look like attention and were not ``seen``, and why.

    A module that was seen is among them if it may have attended by hand as well.
    """
    found: dict[str, str] = {}
    known, fixed = set(seen), set[nn.Module]()
    softmaxes = ((names[m], x) for m, some in ran.softmax.items() if m in names for x in some[::-1])
    by_hand = {name: x for name, x in softmaxes if not x.met}  # the first of each
    told = known | by_hand.keys()
    for module, name in names.items():
        if module in fixed:
            continue
        above, graphs = name, (torch.jit.ScriptModule, torch.fx.GraphModule)
        why = _fixed_graph(module) if isinstance(module, graphs) else None
        if why is not None:
            fixed.update(module.modules())
        elif name in by_hand:
            why = _by_hand(by_hand[name], name in known)
        else:
            while above and above not in told:
                above = above.rpartition(".")[0]
            why = None if above else _suspect(module, ran, deep)
            if why is not None and any(names.get(m) in told for m in module.modules()):
                why = None
        if why is not None and (name not in known or name in by_hand):
            found[name] = why
    return found


def _by_hand(softmax: Softmax, seen: bool) -> str:
    """The note on a module in which a softmax ran by hand, ``seen`` otherwise or not."""
    text = "" if seen else "no call of an attention function was seen, but "
    text += f"a softmax of {softmax.shape}{' ran beside what was seen' if seen else ''}"
    why = "it has no weights" if 0 in softmax.shape else softmax.why or "its weights met no product"
    return f"{text}; {why}: attention by hand, if it is any"


def _suspect(module: nn.Module, ran: Ran, deep: bool) -> str | None:
    """Why a module that looks like attention, or whose code does, was not seen; None for others."""
    unseen = "no call of an attention function was seen"
    looks = _looks(module) and not any(map(_looks, list(module.modules())[1:]))
    looks = looks and "forward" in _own(type(module)) and not _only_calls_its_parts(module)
    if module not in ran.here:
        elsewhere = "it ran in another thread or task, which is not watched"
        never = f"{unseen}: it was not called"
        return None if not looks else elsewhere if module in ran.elsewhere else never
    code = read(module)
    if code.calls is not None:
        return (
            f"its code names {code.calls}, and no call was seen: if it ran, then by a way "
            f"that is not watched{'' if deep else ' (deep=True may see it)'}"
        )
    if looks and deep:
        return "it ran, and neither a call of an attention function nor one by hand was seen"
    if looks:
        return f"{unseen}: it ran, and attends by hand if it does{DEEPER}"
    text = f"{unseen}, but its code names {code.formula}, and a product after it: "
    text += f"attention by hand, if it is any{'' if deep else DEEPER}"
    return None if code.formula is None else text


def _looks(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return ("attention" in name or "attn" in name) and not isinstance(module, NAMED_AFTER)


def _only_calls_its_parts(module: nn.Module) -> bool:
    """Whether a forward names nothing but plain parts of its module, such as layers of PyTorch."""
    code = getattr(unwrap(type(module).forward), "__code__", None)
    if code is None:
        return False
    found = {word.text for word in _words(code)}
    parts = [module._modules.get(name) for name in found if name.isidentifier()]
    return "@" not in found and all(
        part is not None
        and all(type(x).__module__.startswith("torch.nn.modules") for x in part.modules())
        and not any(map(_looks, part.modules()))
        for part in parts
    )


def _fixed_graph(module: nn.Module) -> str | None:
    """Why a graph that holds attention cannot be watched; None for one without."""
    if isinstance(module, torch.fx.GraphModule):
        calls = (node.target for node in module.graph.nodes if node.op == "call_function")
        graph, kind = " ".join(map(str, calls)), "an exported or traced graph"
    else:
        graph, kind = str(getattr(module, "inlined_graph", "")), "a ScriptModule of torch.jit"
    product = any(word in graph for word in ("matmul", "bmm", "einsum"))
    if "attention" not in graph and not ("softmax" in graph and product):
        return None
    return f"it is {kind}, which calls no function that could be watched: watch the model behind it"


# --- what code says -------------------------------------------------------------------------------


class Code(NamedTuple):
    """What a module's code says, and that of all that it may call.

    It ``writes`` attention by hand if it makes weights and mixes values, maybe in two functions;
    ``formula`` is the function that makes weights where a product follows in the same code, and
    ``calls`` one of the `FUNCTIONS` that it names.
    """

    writes: bool = False
    formula: str | None = None
    calls: str | None = None


_read: WeakKeyDictionary[type[nn.Module], dict[Any, Code]] = WeakKeyDictionary()


def read(module: nn.Module) -> Code:
    """What the code of a module's forward, and of functions that it may call, says.

    These are functions that it names, of any file but PyTorch's, and those that the module holds,
    also behind partials, closures and objects.
    """
    kind = type(module)
    if kind.__module__.startswith("torch."):
        return Code()
    held = [x for x in vars(module).values() if not isinstance(x, PLAIN)]
    kinds = frozenset(type(x) for x in held if not _passed(type(x).__module__))
    functions = frozenset(filter(callable, _behind(held, frozenset())))
    softmax = any(isinstance(x, nn.Softmax) for x in module._modules.values())
    known, key = _read.setdefault(kind, {}), (id(kind.forward), kinds, functions, softmax)
    if key in known:
        return known[key]
    codes, every, writes = list(_codes(_own(kind), kinds, functions)), set[str](), False
    for code in codes:
        names = {word.text for word in _words(code)}
        fused = any(name.startswith("_scaled_dot_product") for name in names)  # not the function
        fused |= "scaled_dot_product_attention" in names and bool(names & {"aten", "_nn"})
        every, writes = every | names, writes or fused
    if not writes and (every & (PRODUCTS | SCATTERS) or _pools(every)):
        writes = softmax or any(_makes_weights(code) or _shares(code) for code in codes)
    formula = next(filter(None, (_makes_weights(code, PRODUCTS) for code in codes)), None)
    known[key] = Code(writes, formula, min(every & FUNCTIONS, default=None))
    return known[key]


def _makes_weights(code: CodeType, *then: set[str]) -> str | None:
    """The function that makes weights, followed by one of each of ``then``."""
    found = _words(code) if FORMULAS.keys() & code.co_names else ()
    for word in found:
        if word.text in FORMULAS:
            after = {other.text for other in found if _after(other, word)}
            if all(after & need for need in (*FORMULAS[word.text], *then)):
                return word.text
    return None


def _shares(code: CodeType) -> bool:
    """Whether code takes shares of a whole, or has two products."""
    found = [word.text for word in _words(code)]
    pairs = any(one & set(found) and other & set(found) for one, other in SHARES)
    return pairs or sum(text in PRODUCTS for text in found) > 1


def _pools(names: set[str]) -> bool:
    """Whether code weighs values entry by entry and adds them up."""
    return "*" in names and bool({"sum", "cumsum"} & names) and "log" not in names


class Word(NamedTuple):
    """A name or an operator, and its place in the bytecode and in the file."""

    text: str
    offset: int
    line: int


@lru_cache(4096)
def _words(code: CodeType) -> tuple[Word, ...]:
    """The names that code loads, and its operators @, * and /."""
    return tuple(
        Word(
            one.argval if one.opname in LOADS else one.argrepr.removesuffix("="),
            one.offset,
            (one.positions.lineno if one.positions else None) or 0,
        )
        for one in dis.get_instructions(code)
        if one.opname in ("BINARY_OP", *LOADS)
    )


def _after(word: Word, other: Word) -> bool:
    """Whether a word acts after another: operators by their offset, functions by their line.

    A function is named before its arguments are computed, and called after them.
    """
    if word.text.isidentifier():
        return word.line >= other.line and word.offset != other.offset
    return word.offset > other.offset


def _own(kind: type) -> dict[str, Any]:
    """The attributes of a class and its bases, except those of PyTorch and of Python."""
    kinds = [k for k in kind.__mro__ if k.__module__.split(".")[0] not in ("torch", "builtins")]
    return {name: x for k in reversed(kinds) for name, x in vars(k).items()}


def _codes(own: dict[str, Any], kinds: Iterable[type], held: Iterable[Any]) -> Iterator[CodeType]:
    """The code of a forward among a module's ``own`` attributes, and of what it may call.

    Methods of the ``kinds`` of objects that the module holds are its own, too.
    """
    for kind in kinds:
        own = {**{n: x for n, x in _own(kind).items() if isinstance(x, FunctionType)}, **own}
    left = [own[name] for name in ("forward", "call", "__call__") if name in own]
    left += held
    known: set[object] = set()
    while left:
        function = left.pop()
        function = unwrap(function) if callable(function) else None
        if not isinstance(function, FunctionType) or function in known:
            continue
        known.add(function)
        if function.__name__ == HANDED:
            continue
        codes = [function.__code__]
        for code in codes:  # and of the functions defined in it
            codes += [x for x in code.co_consts if isinstance(x, CodeType)]
        yield from codes
        names = frozenset(name for code in codes for name in code.co_names)
        left += [own[name] for name in names if name in own]
        others = [function.__globals__.get(name) for name in names]
        closed = [cell.cell_contents for cell in function.__closure__ or () if _filled(cell)]
        left += _behind([*others, *closed, *(function.__defaults__ or ())], names)


def _filled(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # of a function that is still being defined
        return False


def _behind(held: Iterable[Any], names: frozenset[str]) -> Iterator[Any]:
    """The functions that objects stand for, in which code looks up ``names``."""
    for x in held:
        if isinstance(x, FunctionType):
            yield from () if _passed(x.__module__) else (x,)
        elif type(x) in INDIRECT:
            yield from _behind([getattr(x, INDIRECT[type(x)], None)], names)
        elif isinstance(x, ModuleType):
            inside = {} if _passed(x.__name__) else vars(x)
            yield from (inside[name] for name in names & inside.keys())
        elif isinstance(x, (dict, list, tuple)):
            inside = list(x.values() if isinstance(x, dict) else x)
            some = [f for f in inside if type(f) in (FunctionType, *INDIRECT)]
            yield from _behind(some if len(inside) <= MOST else (), names)
        elif isinstance(x, type):
            if issubclass(x, torch.autograd.Function):
                yield getattr(x.forward, "__func__", x.forward)
        elif not isinstance(x, nn.Module):
            called = _own(type(x)).get("__call__")
            yield from () if called is None else (called,)


def _passed(name: str | None) -> bool:
    return str(name).split(".")[0] in ("torch", "intently", "numpy", "builtins", "collections")
