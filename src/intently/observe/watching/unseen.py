"""Modules that may have attended unseen: they ran and left no call, with the likely reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from intently.nn.models.recurrent_steps import Attentional
from intently.nn.recurrent import AttentionalVector
from intently.observe.watching.revealed import (
    PRODUCTS,
    formula,
    methods,
    mixes,
    only_calls_its_parts,
    pools,
    remembered,
    still_to_come,
)

FUNCTIONS = frozenset(
    (
        "scaled_dot_product_attention",
        "flex_attention",
        "memory_efficient_attention",
        "flash_attn_func",
        "flash_attn_varlen_func",
        "flash_attn_qkvpacked_func",
        "sageattn",
    )
)
"""Names by which code calls attention."""

NAMED_AFTER = (Attentional, AttentionalVector)
"""Modules of ours that are named after attention, and do not attend themselves."""

DEEPER = " (watch with deep=True)"

ELSEWHERE = (
    "Modules of the model ran in another thread or task, which is not watched: open the watch "
    "where the model runs."
)
LAST_BITS = (
    "Every operation passed through Python, to be followed: if PyTorch picks another kernel "
    "because of that, the last bits of the outputs differ."
)

MOST = 64
"""Softmaxes of a module at most that are remembered until their weights meet values."""


@dataclass(eq=False)
class Softmax:
    """A softmax by hand that may be one of scores, and the fate of its weights.

    ``module`` is whose it is, if the code after it goes on as attention does; it is ``sure`` if
    not by the number of its rows alone, which may be those of a router. Its weights ``met``
    values, in a product that was seen or reported; else ``why`` is the first operation that could
    not be followed.
    """

    shape: tuple[int, ...]
    module: nn.Module | None = None
    sure: bool = False
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
        """Remember a softmax that may be one of scores, and return the module whose it is."""
        if not isinstance(weights, Tensor) or weights.ndim < 2:
            return None
        around = [m for m in running if not isinstance(m, nn.Softmax)]
        inner = next((m for m in reversed(around) if not isinstance(m, nn.Sequential)), None)
        if inner is None:
            if not around:
                return None
            inner = around[-1]
        depth = 1 + next(n for n, m in enumerate(reversed(running)) if m is inner)
        come = still_to_come(depth)
        if not mixes(weights.shape, come):
            return None
        softmax.sure = weights.ndim > 2 or bool(come & PRODUCTS) or pools(come)
        known = [x for x in self.softmax.get(inner, []) if not x.met]
        self.softmax[inner] = [*known[: MOST - 1], softmax]
        return inner

    def by_hand(self) -> dict[nn.Module, Softmax]:
        """The first softmax of each module whose weights did not meet values."""
        left = {module: [x for x in found if not x.met] for module, found in self.softmax.items()}
        return {module: found[0] for module, found in left.items() if found}


def unseen(
    names: Mapping[nn.Module, str], seen: Iterable[str], ran: Ran, deep: bool
) -> dict[str, str]:
    """The modules of ``names`` that look like attention and were not ``seen``, and why.

    A module that was seen is among them if it may have attended by hand as well.
    """
    found: dict[str, str] = {}
    known = set(seen)
    by_hand = {names[m]: x for m, x in ran.by_hand().items() if m in names}
    told, fixed = known | set(by_hand), set[nn.Module]()
    for module, name in names.items():
        if module in fixed:
            continue
        why = _fixed_graph(module)
        if why is not None:
            fixed.update(module.modules())
        elif name in by_hand:
            why = _by_hand(by_hand[name], name in known)
        elif not _under(name, told):
            why = _suspect(module, ran, deep) or _written_out(module, ran, deep)
            if why is not None and any(names.get(m) in told for m in module.modules()):
                why = None
        if why is not None and (name not in known or name in by_hand):
            found[name] = why
    return found


def _under(name: str, known: set[str]) -> bool:
    """Whether a module is a known one, or a part of one."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return bool(name)


def _by_hand(softmax: Softmax, seen: bool) -> str:
    """The note on a module in which a softmax ran by hand, ``seen`` otherwise or not."""
    text = "" if seen else "no call of an attention function was seen, but "
    text += f"a softmax of {softmax.shape}{' ran beside what was seen' if seen else ''}"
    return f"{text}; {softmax.why or 'its weights met no product'}: attention by hand, if it is any"


def _written_out(module: nn.Module, ran: Ran, deep: bool) -> str | None:
    """Why a module that ran may have attended by unwatched functions."""
    made_by = formula(type(module)) if module in ran.here else None
    if made_by is None:
        return None
    return (
        f"no call of an attention function was seen, but its code names {made_by}, and a product "
        f"after it: attention by hand, if it is any{'' if deep else DEEPER}"
    )


def _suspect(module: nn.Module, ran: Ran, deep: bool) -> str | None:
    """Why a module that looks like attention was not seen; None for all others."""
    looks = _looks(type(module)) and not any(_looks(type(m)) for m in list(module.modules())[1:])
    looks = looks and "forward" in methods(type(module)) and not only_calls_its_parts(module)
    if module in ran.here:
        called = _function_in_code(type(module))
        if called is not None:
            return (
                f"its code names {called}, and no call was seen: if it ran, then by a way "
                "that is not watched" + ("" if deep else " (deep=True may see it)")
            )
        if not looks:
            return None
        if deep:
            return "it ran, and neither a call of an attention function nor one by hand was seen"
        return (
            "no call of an attention function was seen: it ran, and attends by hand if it does"
            + DEEPER
        )
    if not looks:
        return None
    if module in ran.elsewhere:
        return "it ran in another thread or task, which is not watched"
    return "no call of an attention function was seen: it was not called"


def _looks(kind: type) -> bool:
    name = kind.__name__.lower()
    return not issubclass(kind, NAMED_AFTER) and ("attention" in name or "attn" in name)


@remembered
def _function_in_code(kind: type[nn.Module]) -> str | None:
    """The first of `FUNCTIONS` that the methods of a class name."""
    codes = (getattr(unwrap(x), "__code__", None) for x in methods(kind).values())
    names = {name for code in codes for name in getattr(code, "co_names", ())}
    return min(names & FUNCTIONS, default=None)


def _fixed_graph(module: nn.Module) -> str | None:
    """Why a graph that holds attention cannot be watched; None for all other modules."""
    if isinstance(module, torch.jit.ScriptModule):
        graph, kind = str(getattr(module, "inlined_graph", "")), "a ScriptModule of torch.jit"
    elif isinstance(module, torch.fx.GraphModule):
        calls = (node.target for node in module.graph.nodes if node.op == "call_function")
        graph, kind = " ".join(map(str, calls)), "an exported or traced graph"
    else:
        return None
    product = any(word in graph for word in ("matmul", "bmm", "einsum"))
    if "attention" not in graph and not ("softmax" in graph and product):
        return None
    return f"it is {kind}, which calls no function that could be watched: watch the model behind it"
