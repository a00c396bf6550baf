"""What might have attended unseen: modules that ran and left no call, with the likely reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor, nn

from intently.models.recurrent_steps import Attentional
from intently.modules.additive import AttentionalVector

FUNCTIONS = frozenset((
    "scaled_dot_product_attention", "flex_attention", "memory_efficient_attention",
    "flash_attn_func", "flash_attn_varlen_func", "flash_attn_qkvpacked_func", "sageattn",
))  # fmt: skip
"""Names by which code calls attention."""

NAMED_AFTER = (Attentional, AttentionalVector)
"""Modules of ours that are named after attention, and attend nothing themselves."""

ELSEWHERE = (
    "Modules of the model ran in another thread or task, which is not watched: open the watch "
    "where the model runs."
)


@dataclass
class Ran:
    """Modules that ran where somebody watches, those that ran elsewhere, and softmax by hand."""

    here: set[nn.Module] = field(default_factory=set)
    elsewhere: set[nn.Module] = field(default_factory=set)
    softmax: dict[nn.Module, tuple[int, ...]] = field(default_factory=dict)

    def weights(self, running: Sequence[nn.Module], weights: Any) -> None:
        """A softmax ran that may be one of scores: they have two axes more than their heads.

        Two axes in all are those of a classifier or a router, unless there are as many keys as
        queries.
        """
        if not isinstance(weights, Tensor) or weights.ndim < 2:
            return
        if weights.ndim == 2 and weights.shape[0] != weights.shape[1]:
            return
        inner = next((m for m in reversed(running) if not isinstance(m, nn.Softmax)), None)
        if inner is not None:
            self.softmax.setdefault(inner, tuple(weights.shape))


def unseen(
    names: Mapping[nn.Module, str], seen: Iterable[str], ran: Ran, deep: bool
) -> dict[str, str]:
    """What looks like attention among the modules of ``names`` and was not ``seen``, and why.

    A module that was seen is among them where it may have attended by hand as well.
    """
    found: dict[str, str] = {}
    known = set(seen)
    by_hand = set() if deep else {names[m] for m in ran.softmax if m in names}
    told, fixed = known | by_hand, set[nn.Module]()
    for module, name in names.items():
        if module in fixed:
            continue
        why = _fixed_graph(module)
        if why is not None:
            fixed.update(module.modules())
        elif name in by_hand:
            no_call = "no call of an attention function was seen, but "
            why = (
                f"{'' if name in known else no_call}a softmax of {ran.softmax[module]}"
                f"{' ran beside what was seen' if name in known else ''}: attention by hand, "
                "if it is any (watch with deep=True)"
            )
        elif not _under(name, told):
            why = _suspect(module, ran, deep)
            if why is not None and any(names.get(m) in told for m in module.modules()):
                why = None
        if why is not None and (name not in known or name in by_hand):
            found[name] = why
    return found


def _under(name: str, known: set[str]) -> bool:
    """Whether a module is one of the known ones, or a part of one."""
    parts = name.split(".")
    return any(".".join(parts[:n]) in known for n in range(1, len(parts) + 1))


def _suspect(module: nn.Module, ran: Ran, deep: bool) -> str | None:
    """Why a module that looks like attention was not seen; None for all others."""
    looks = _looks(type(module)) and not any(_looks(type(m)) for m in list(module.modules())[1:])
    if module in ran.here:
        called = _names_in_code(type(module)) & FUNCTIONS
        if called:
            return (
                f"its code names {min(called)}, and no call was seen: if it ran, then by a way "
                "that is not watched" + ("" if deep else " (deep=True may see it)")
            )
        if not looks:
            return None
        if deep:
            return "it ran, and neither a call of an attention function nor one by hand was seen"
        return (
            "no call of an attention function was seen: it ran, and attends by hand if it does "
            "(watch with deep=True)"
        )
    if not looks:
        return None
    if module in ran.elsewhere:
        return "it ran in another thread or task, which is not watched"
    return "no call of an attention function was seen: it was not called"


def _looks(kind: type) -> bool:
    name = kind.__name__.lower()
    return not issubclass(kind, NAMED_AFTER) and ("attention" in name or "attn" in name)


def _names_in_code(kind: type) -> set[str]:
    """What the methods of a class call by name."""
    kinds = [k for k in kind.__mro__ if k.__module__.split(".")[0] not in ("torch", "builtins")]
    methods = [unwrap(x) for k in kinds for x in vars(k).values() if callable(x)]
    return {name for x in methods for name in getattr(getattr(x, "__code__", None), "co_names", ())}


def _fixed_graph(module: nn.Module) -> str | None:
    """Why a graph with attention in it cannot be watched; None for all other modules."""
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
