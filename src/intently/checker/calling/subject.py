"""Something that attends, with an example call: run it, follow it, replace what is inside.

`understanding.understood` makes one; `Subject.told` says in words how it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from intently.checker.calling.exact import exactly
from intently.checker.calling.holding import held_by
from intently.checker.calling.viewing import Reshaped
from intently.checker.precision import EXACT, Precision
from intently.errors import ArgumentError, build

Role = Literal["q", "k", "v", "past k", "past v", "x", "context", "ids", "mask", "setting"]

MEANT = {
    "attend": "True means attend",
    "ignore": "True means ignore",
    "add": "added to the scores",
    "lengths": "lengths of the rows",
}
OUTPUTS = (
    *("logits", "last_hidden_state", "sample", "hidden_states", "output", "out", "y"),
    "image_embeds",
)


@dataclass
class Subject:
    """Something that attends, with example inputs, what they mean, and what comes out."""

    call: Callable[..., Any]
    inputs: dict[str, Any]
    roles: dict[str, Role]
    meanings: dict[str, str]
    module: nn.Module | None = None
    positional: bool = False
    heads: list[int] = field(default_factory=list)
    owner: Any = None
    """What holds the parameters: the module, or the function with its closure."""
    precision: Precision = EXACT
    """How close its numbers can be."""
    widened: bool = False
    """Whether its code casts to shorter floats, and is run in float64 all the same."""
    rounded: bool = False
    """Whether its code casts to a half type."""
    raising: str = ""
    """The line whose view raises; where there is one, it is run as a reshape."""
    sequence_first: bool = False
    """Whether it is called with (t, b, c): ``inputs`` and outputs here are (b, t, c)."""
    sites: int = 0
    """How many attentions a run of it has met."""
    again: bool = False
    """Whether it is a second look, with other padding."""
    given: bool = False
    """Whether its inputs are an example that was given."""
    opening: Tensor | None = None
    """What its first call returned."""
    layout: str = ""
    """The axes of the inputs, where they are stated."""
    foreign: bool = False
    """Whether it is code of NumPy or JAX, run on tensors."""
    returns: str = "output"
    """What it returns: the output, scores or weights."""
    notes: tuple[str, ...] = ()
    """What else there is to know about the call, in words."""
    changes: tuple[str, ...] = ()
    """The inputs that the call changes in place: it is given copies of them."""

    def output(self, **changed: Any) -> Tensor:
        """What comes out of the example, with some inputs changed."""
        with self.running():
            return self.result(self.called({**self.inputs, **changed}))

    def raw(self, **changed: Any) -> Any:
        """The same, with everything that is returned."""
        with self.running():
            return self.called({**self.inputs, **changed})

    @contextmanager
    def running(self) -> Iterator[None]:
        """How its code is run: in float64 throughout, where it would cast to shorter floats."""
        with ExitStack() as stack:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            if self.raising:
                stack.enter_context(Reshaped())
            if self.widened:
                stack.enter_context(exactly())
            yield

    def _tensors(self, given: Mapping[str, Any]) -> list[str]:
        """The inputs that are sources, in their order."""
        roles = ("q", "k", "v", "x", "context")
        return [n for n, x in given.items() if self.roles.get(n) in roles and isinstance(x, Tensor)]

    def weights(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """The inputs that are weights of projections: matrices (c, n) beside the rest."""
        wide = {given[n].shape[-1] for n in self._tensors(given) if given[n].is_floating_point()}
        settings = {n: x for n, x in given.items() if self.roles.get(n, "setting") == "setting"}
        return {
            n: x
            for n, x in settings.items()
            if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 2 and len(x) in wide
        }

    def turned(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs (t, b, c) as (b, t, c), or the other way."""
        kept = self._tensors(given)
        return {n: _turned(x) if n in kept else x for n, x in given.items()}

    def called(self, given: Mapping[str, Any]) -> Any:
        """What a call with these inputs returns."""
        given = {n: x.clone() if n in self.changes else x for n, x in given.items()}
        if self.sequence_first:
            given = self.turned(given)
        try:
            return self.call(*given.values()) if self.positional else self.call(**given)
        except SystemExit as error:  # it would end the examination, and whoever asked for it
            raise RuntimeError(f"the code ends the process: exit({error.code!r})") from None
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # no handler of ours expects it
            raise RuntimeError(f"the code raised {type(error).__name__}: {error}") from None

    def result(self, out: Any) -> Tensor:
        """The tensor that a result is about, (b, t, c)."""
        y = output_of(out)
        if y.layout is not torch.strided:
            got = f"one of layout {y.layout}"
            fix = "return y.to_dense()"
            raise build(
                ArgumentError, "subject", "a call that returns a dense tensor", got, fix=fix
            )
        return _turned(y) if self.sequence_first else y

    @property
    def holds_parameters(self) -> bool:
        """Whether it has parameters, or is given some."""
        return any(held_by(self.owner)) or bool(self.weights(self.inputs))

    @property
    def form(self) -> str:
        """How it is called, in words: ``(q, k, v)``, ``(x)``, ``(x, context)``, ``(ids)``."""
        roles = [r for r in self.roles.values() if r not in ("mask", "setting")]
        return f"({', '.join(dict.fromkeys(roles))})"

    def time(self, name: str) -> int:
        """The axis of positions of an input."""
        x = self.inputs[name]
        if self.layout and len(self.layout) == x.ndim and "t" in self.layout:
            return self.layout.index("t")
        if x.ndim == 4:
            return 2
        return 1 if x.ndim == 3 or not x.is_floating_point() or self.flat else 0

    def of(self, *roles: Role) -> list[str]:
        """The names of the inputs of some roles."""
        return [n for n, r in self.roles.items() if r in roles]

    @property
    def contents(self) -> list[str]:
        """The names of the inputs that are attended to or from."""
        return self.of("x", "q", "k", "v", "ids", "context")

    @property
    def main(self) -> str:
        """The input whose rows are the queries'."""
        named = self.of("q") or self.of("x") or self.of("ids") or self.contents
        tensors = [n for n, x in self.inputs.items() if isinstance(x, Tensor)]
        return (named or [n for n in tensors if self.inputs[n].is_floating_point()] or tensors)[0]

    @property
    def is_tokens(self) -> bool:
        """Whether the main input holds token ids."""
        return not self.inputs[self.main].is_floating_point()

    @property
    def flat(self) -> bool:
        """Whether the main input is one row (b, c) for each row of the batch."""
        x = self.inputs[self.main]
        if x.ndim != 2 or not x.is_floating_point():
            return False
        others = [y for n, y in self.inputs.items() if n != self.main and isinstance(y, Tensor)]
        ids = [y.dtype != torch.bool and not y.is_floating_point() for y in others]
        wide = [y for y, whole in zip(others, ids) if y.ndim > 2 or (y.ndim == 2 and whole)]
        return any(len(x) in y.shape[:2] for y in wide)

    @property
    def batch(self) -> int:
        """The number of rows of the batch."""
        x = self.inputs[self.main]
        whole = x.ndim > 2 or not x.is_floating_point() or self.flat
        return int(x.shape[0]) if whole and x.ndim else 1

    def begins_with(self, t: int, b: int) -> bool:
        """Whether the main input is (t, b, …), of more positions than rows of the batch."""
        return t > b and self.inputs[self.main].shape[:2] == (t, b)

    @property
    def told(self) -> str:
        """What was understood, in one line."""
        parts = [self._shown(n, x) for n, x in self.inputs.items() if isinstance(x, Tensor)]
        said = [f"`{n}`: {MEANT.get(m, m)}" for n, m in self.meanings.items() if n in self.inputs]
        return "; ".join((f"takes {', '.join(parts)}", *said, *self.notes))

    def _shown(self, name: str, x: Tensor) -> str:
        role, sizes = self.roles.get(name, "setting"), tuple(x.shape)
        letters = ""
        if role in ("q", "k", "v", "x", "context", "ids"):
            rows = "t" if role in ("q", "x", "ids") else "s"
            letters = {2: f"b, {rows}", 3: f"b, {rows}, c", 4: f"b, h, {rows}, d"}.get(x.ndim, "")
            if role in ("x", "context"):
                letters = {4: "b, c, height, width"}.get(x.ndim, letters)
            if x.ndim == 2 and x.is_floating_point():
                letters = f"{rows}, c"
        if self.sequence_first and x.ndim > 2 and letters:
            sizes, letters = (sizes[1], sizes[0], *sizes[2:]), f"{letters[3]}, b{letters[4:]}"
        return f"{name} ({letters}) = {sizes}" if letters else f"{name} {sizes}"


def _turned(x: Any) -> Any:
    """Batch and sequence exchanged."""
    return x.transpose(0, 1) if isinstance(x, Tensor) and x.ndim > 2 else x


def output_of(out: Any) -> Tensor:
    """The tensor that a result is about."""
    if isinstance(out, Tensor):
        return out
    for name in OUTPUTS:
        value = out.get(name) if isinstance(out, Mapping) else getattr(out, name, None)
        if isinstance(value, Tensor):
            return value
    values = list(out.values()) if isinstance(out, Mapping) else out
    if isinstance(values, (list, tuple)):
        for value in values:
            if isinstance(value, Tensor) and value.is_floating_point():
                return value
            if isinstance(value, (list, tuple, Mapping)):
                return output_of(value)
    raise build(
        ArgumentError,
        "subject",
        "a call that returns a tensor, or a tuple or mapping that holds one",
        f"a call that returns {type(out).__name__}",
        fix="pass an adapter that returns the tensor: lambda x: mine(x).y",
    )
