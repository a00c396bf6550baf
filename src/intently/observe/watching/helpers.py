"""Functions in which alone a module attends by hand, so that the rest of its forward runs as it is.

Most forwards call a fused function, or one of their file that writes the formula out: scores,
softmax, product with the values. To follow that function is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch import nn

from intently.observe.watching.revealed import (
    FORMULAS,
    FORWARDS,
    PRODUCTS,
    all_codes,
    calls_operator,
    gathers,
    holding,
    own_kinds,
    pools,
    words,
)

SOFTMAX = frozenset(("softmax", "_softmax"))
"""Functions whose weights are complete: exponentials may be divided elsewhere."""

UNREAD = frozenset(("super", "getattr"))
"""Functions that find others which the code does not name."""


class Helper(NamedTuple):
    """A method ``name`` of a class, or a global of a file."""

    owner: type | dict[str, Any]
    name: str
    code: CodeType

    def stands(self) -> bool:
        """Whether the name still stands for this code."""
        x = _own(self.owner).get(self.name)
        return isinstance(x, FunctionType) and unwrap(x).__code__ is self.code


def helpers(module: nn.Module) -> tuple[Helper, ...]:
    """The functions in which alone a module makes weights and mixes values; none if it is unsure.

    A module whose code gathers blocks is followed as a whole: what it does between products tells
    their places.
    """
    held = holding(module)
    codes = all_codes(type(module), held)
    makers = {code for code in codes if FORMULAS.keys() & code.co_names}
    if held.softmax or gathers(module) or not all(map(_attends, makers)):
        return ()
    for code in codes:
        names = {word.text for word in words(code)}
        mixes = code not in makers and (names & PRODUCTS or pools(names))
        if mixes or names & UNREAD or calls_operator(names):
            return ()
    found = tuple(x for x in _reached(type(module)) if x.code in makers)
    return found if {x.code for x in found} == makers else ()


def _attends(code: CodeType) -> bool:
    """Whether the scores, their weights and the product with values are all made in this code."""
    found = words(code)
    made = [word for word in found if word.text in FORMULAS]
    products = [word for word in found if word.text in PRODUCTS]
    return (
        bool(made and products)
        and all(word.text in SOFTMAX for word in made)
        and min(word.line for word in products) < min(word.line for word in made)
        and max(word.offset for word in products) > max(word.offset for word in made)
    )


def _reached(kind: type) -> Iterator[Helper]:
    """The methods and functions that a forward may call, each by the name that it looks up."""
    owners = {name: k for k in reversed(own_kinds(kind)) for name in vars(k)}
    left: list[Any] = [vars(owners[name])[name] for name in FORWARDS if name in owners]
    known: set[object] = set()
    while left:
        function = unwrap(left.pop())
        if not isinstance(function, FunctionType) or function in known:
            continue
        known.add(function)
        for name in function.__code__.co_names:
            for owner in (owners.get(name), function.__globals__):
                x = None if owner is None else _own(owner).get(name)
                if not callable(x):
                    continue
                left.append(x)
                if isinstance(x, FunctionType) and name not in FORWARDS:
                    assert owner is not None
                    yield Helper(owner, name, unwrap(x).__code__)


def _own(owner: type | dict[str, Any]) -> Any:
    return owner if isinstance(owner, dict) else vars(owner)
