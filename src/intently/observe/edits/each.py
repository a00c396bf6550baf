"""One edit for each head, layer or key of a model, known once a run shows what attends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import nn

from intently.observe.edits.edit import Edit
from intently.observe.edits.rules import forbid, off

Placed: TypeAlias = "tuple[dict[str, Any], Mapping[str, Edit]]"
"""Where an edit acts (layer, head …), and the edit by the name of its module."""


@dataclass(frozen=True)
class Attending:
    """A module that attended in a run, with the most heads and keys that it had."""

    name: str
    heads: int
    keys: int


@dataclass(frozen=True)
class Each:
    """One edit for each place in ``part``, a model or a module of it; ``places`` lists them."""

    part: nn.Module
    places: Callable[[Attending], Iterator[tuple[dict[str, Any], Edit]]]

    def placed(self, attended: Sequence[Attending]) -> list[Placed]:
        """The edits of all places, in the order in which the modules attended."""
        return [
            ({"layer": layer.name, **place}, {layer.name: edit})
            for layer in attended
            for place, edit in self.places(layer)
        ]


def each_head(part: nn.Module, edit: Callable[..., Edit] = off) -> Each:
    """Return ``edit(heads=[n])`` for each head of each layer, by default the head switched off.

    ``part`` is a model, or the module of it in which the heads are.

    Source: Michel, Levy & Neubig 2019, "Are sixteen heads really better than one?", section 3.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> each_head(layer).placed([Attending("MultiheadAttention", 2, 5)])[1]
    ({'layer': 'MultiheadAttention', 'head': 1}, {'MultiheadAttention': off(heads=[1])})
    """
    return Each(part, lambda at: (({"head": n}, edit(heads=[n])) for n in range(at.heads)))


def each_layer(part: nn.Module, edit: Callable[..., Edit] = off) -> Each:
    """Return ``edit()`` for each layer, by default all of its heads switched off.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> each_layer(layer).placed([Attending("MultiheadAttention", 2, 5)])
    [({'layer': 'MultiheadAttention'}, {'MultiheadAttention': off()})]
    """
    return Each(part, lambda at: iter([({}, edit())]))


def each_key(part: nn.Module, edit: Callable[..., Edit] = forbid) -> Each:
    """Return ``edit(keys=[n])`` for each key of each layer, by default the key forbidden.

    Source: Geva et al. 2023, "Dissecting recall of factual associations", section 4.

    >>> layer = nn.MultiheadAttention(8, 2)
    >>> each_key(layer).placed([Attending("MultiheadAttention", 2, 5)])[4]
    ({'layer': 'MultiheadAttention', 'key': 4}, {'MultiheadAttention': forbid(keys=[4])})
    """
    return Each(part, lambda at: (({"key": n}, edit(keys=[n])) for n in range(at.keys)))
