"""Where each entry of a tensor comes from: its place in what an earlier operation wrote.

The operations that move numbers are done once more, on their places. That follows what no axis
does: diagonals, windows that overlap, indices, buffers written piece by piece.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.observe.trace.graph import CHOOSES, MOVES, Node, View

NOWHERE = -1
"""The place of a constant, such as padding, and of what was computed."""

STEPS = 200
"""Operations at most that are done again."""


def places(view: View, of: Node) -> Tensor:
    """For each entry of a view (…) its place in the memory of ``of``, or `NOWHERE`."""
    return _Places(of).of(view)


class _Places:
    def __init__(self, of: Node) -> None:
        self._known = {of: torch.arange(_room(of))}

    def of(self, view: View) -> Tensor:
        """The places of the entries of a view."""
        node = view.node
        return self._flat(node).as_strided(view.size, view.stride, view.offset - _first(node))

    def _flat(self, node: Node) -> Tensor:
        """The places of all entries of a memory."""
        if node in self._known:
            return self._known[node]
        if len(self._known) > STEPS:
            raise ValueError("more operations than are followed")
        flat, room = torch.empty(0, dtype=torch.int64), _room(node)
        if node.before is not None:
            flat, room = self._flat(node.before), room + node.offset - _first(node.before)
        flat = torch.cat([flat, flat.new_full((max(0, room - len(flat)),), NOWHERE)])
        made = self._made(node)
        if made is not None:
            flat.as_strided(node.size, node.stride, node.offset - _first(node)).copy_(made)
        self._known[node] = flat
        return flat

    def _made(self, node: Node) -> Tensor | None:
        """The places of the result of an operation."""
        name = node.name
        if name == "copy":
            source = node.args[1]
            return self.of(source).expand(node.size) if isinstance(source, View) else None
        if name in MOVES and node.func is not None:
            args = [self._given(x) for x in node.args]
            if name == "index_put":
                return args[0].clone().index_put_(node.chosen(1, node.args[1]), args[2])
            if name in CHOOSES:
                args[1:] = [node.chosen(i, x) for i, x in enumerate(node.args[1:], 1)]
            if name == "constant_pad_nd":
                args[2:] = [NOWHERE]
            if name == "_to_copy":
                return args[0]
            made = node.func(*args, **node.kwargs)
            return made if isinstance(made, Tensor) else None
        found = (self.of(x) for _, x in node.sources if node.entrywise)
        return next((x.expand(node.size) for x in found if bool((x != NOWHERE).any())), None)

    def _given(self, x: Any) -> Any:
        if isinstance(x, View):
            return self.of(x)
        return [self._given(y) for y in x] if isinstance(x, list) else x


def _first(node: Node) -> int:
    """The first place of a memory that is known."""
    return node.offset if node.before is None else min(node.offset, _first(node.before))


def _room(node: Node) -> int:
    """How much memory a node's result spans."""
    low, high = node.view.span()
    return high - low + 1 if all(node.size) else 0
