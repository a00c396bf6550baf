"""What a model is made of, as plain data: the tree that a model hands out and a diagram draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

Kind = Literal[
    "model",
    "stack",
    "layer",
    "residual",
    "attention",
    "feed-forward",
    "embedding",
    "positions",
    "norm",
    "projection",
    "weights",
    "product",
    "cell",
    "activation",
    "reshape",
    "module",
]
"""The first six hold parts; a residual adds its input to what its last part gives."""


@dataclass(frozen=True)
class Part:
    """One part of a model: its parts run one after another, each on what the last one gave.

    ``name`` is that of its module or parameter within the model. ``takes`` and ``gives`` are the
    shapes of input and output, such as "(b, t, 128)", ``parameters`` counts its own, without those
    of ``parts``, and ``reads`` holds (name, shape) of other inputs: the encoder's states, say.
    ``tied`` names the part whose weights it uses.

    >>> up = Part("projection", "Up", "up", "(b, t, 8)", "(b, t, 32)", parameters=8 * 32)
    >>> down = Part("projection", "Down", "down", "(b, t, 32)", "(b, t, 8)", parameters=32 * 8)
    >>> both = Part("feed-forward", "Feed-forward", parts=(up, down))
    >>> both.total, [part.name for part in both.under("layer").leaves()]
    (512, ['layer.up', 'layer.down'])
    """

    kind: Kind
    title: str
    name: str = ""
    takes: str = ""
    gives: str = ""
    parameters: int = 0
    notes: tuple[str, ...] = ()
    reads: tuple[tuple[str, str], ...] = ()
    tied: str = ""
    parts: tuple[Part, ...] = ()

    @property
    def total(self) -> int:
        """The number of parameters of this part and all parts within."""
        return self.parameters + sum(part.total for part in self.parts)

    def walk(self) -> Iterator[Part]:
        """Yield this part, then all parts within, in the order in which they run."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def leaves(self) -> Iterator[Part]:
        """Yield the parts without parts, in the order in which they run."""
        return (part for part in self.walk() if not part.parts)

    def under(self, prefix: str) -> Part:
        """Return the tree of a module that has the name ``prefix`` in another."""

        def moved(part: Part) -> Part:
            name = joined(prefix, part.name) if part.name else ""
            return replace(part, name=name, parts=tuple(map(moved, part.parts)))

        return replace(moved(self), name=joined(prefix, self.name))

    def like(self, other: Part) -> bool:
        """Return whether the two differ in nothing but names."""
        return self._nameless() == other._nameless()

    def _nameless(self) -> Part:
        return replace(self, name="", parts=tuple(part._nameless() for part in self.parts))


class Place(NamedTuple):
    """Where a part stands: the letter of its steps, the mask of its calls, what it reads.

    ``reads`` is the (name, letter of the steps) of the states that a cross-attention reads.
    """

    steps: str = "t"
    mask: str = ""
    reads: tuple[str, str] | None = None


@runtime_checkable
class HasTree(Protocol):
    """A model or block that returns the tree of its parts."""

    def tree(self) -> Part:
        """Return the tree."""
        ...


def shape(*sizes: str | int) -> str:
    """Return a shape as text.

    >>> shape("b", "t", 128)
    '(b, t, 128)'
    """
    return f"({', '.join(map(str, sizes))})"


def joined(*names: str) -> str:
    """Return the names that are not empty, joined by dots.

    >>> joined("encoder", "", "cell")
    'encoder.cell'
    """
    return ".".join(filter(None, names))
