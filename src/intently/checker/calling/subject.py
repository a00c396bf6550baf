"""Something that attends, with an example call: run it, follow it, replace what is inside.

`understanding.understood` makes one; `Subject.told` says in words how it is called.
"""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from intently.checker.calling.modes import Reshaped, exactly
from intently.checker.precision import EXACT, Precision
from intently.errors import ArgumentError, build

Role = Literal["q", "k", "v", "past k", "past v", "x", "context", "ids", "mask", "setting"]

MEANT = {
    **{"attend": "True means attend", "ignore": "True means ignore"},
    **{"add": "added to the scores", "lengths": "lengths of the rows"},
}
SOURCES = ("q", "k", "v", "x", "context")
OUTPUTS = (
    *("logits", "last_hidden_state", "sample", "hidden_states", "output"),
    *("out", "y", "image_embeds"),
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
        return self.result(self.raw(**changed))

    def raw(self, **changed: Any) -> Any:
        """The same, with everything that is returned."""
        with self.running():
            return self.called({**self.inputs, **changed})

    @contextmanager
    def running(self) -> Iterator[None]:
        """How its code is run: in float64 throughout, where it would cast to shorter floats."""
        reshaped = Reshaped() if self.raising else nullcontext()
        exact = exactly() if self.widened else nullcontext()
        followed = patch.multiple(torch.inference_mode, __enter__=_nothing, __exit__=_nothing)
        compiled = "torch._dynamo" in sys.modules  # which takes a second to import
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with eager, followed, reshaped, exact:
            yield

    def weights(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
        """The inputs that are weights of projections: matrices (c, n) beside the rest."""
        floats = {n: x for n, x in given.items() if isinstance(x, Tensor) and x.is_floating_point()}
        wide = {x.shape[-1] for n, x in floats.items() if self.roles.get(n) in SOURCES}
        matrices = {n: x for n, x in floats.items() if x.ndim == 2 and len(x) in wide}
        return {n: x for n, x in matrices.items() if self.roles.get(n, "setting") == "setting"}

    def turned(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs (t, b, c) as (b, t, c), or the other way."""
        return {n: _turned(x) if self.roles.get(n) in SOURCES else x for n, x in given.items()}

    def called(self, given: Mapping[str, Any]) -> Any:
        """What a call with these inputs returns."""
        given = {n: x.clone() if n in self.changes else _fresh(x) for n, x in given.items()}
        given = self.turned(given) if self.sequence_first else given
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
            expected, got = "a call that returns a dense tensor", f"one of layout {y.layout}"
            raise build(ArgumentError, "subject", expected, got, fix="return y.to_dense()")
        return _turned(y) if self.sequence_first else y

    @property
    def holds_parameters(self) -> bool:
        """Whether it has parameters, or is given some."""
        return any(held_by(self.owner)) or bool(self.weights(self.inputs))

    def time(self, name: str) -> int:
        """The axis of positions of an input."""
        x = self.inputs[name]
        if len(self.layout) == x.ndim and "t" in self.layout:
            return self.layout.index("t")
        return {4: 2, 3: 1}.get(x.ndim) or int(not x.is_floating_point() or self.flat)

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
    def flat(self) -> bool:
        """Whether the main input is one row (b, c) for each row of the batch."""
        x = self.inputs[self.main]
        if x.ndim != 2 or not x.is_floating_point():
            return False
        return any(
            (y.ndim > 2 or (y.ndim == 2 and is_whole(y))) and len(x) in y.shape[:2]
            for n, y in self.inputs.items()
            if n != self.main and isinstance(y, Tensor)
        )

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
        role, sizes, letters = self.roles.get(name, "setting"), tuple(x.shape), ""
        if role in (*SOURCES, "ids"):
            rows = "t" if role in ("q", "x", "ids") else "s"
            flat = f"{rows}, c" if x.is_floating_point() else f"b, {rows}"
            wide = "b, c, height, width" if role in ("x", "context") else f"b, h, {rows}, d"
            letters = {2: flat, 3: f"b, {rows}, c", 4: wide}.get(x.ndim, "")
        if self.sequence_first and x.ndim > 2 and letters:
            sizes, letters = (sizes[1], sizes[0], *sizes[2:]), f"{letters[3]}, b{letters[4:]}"
        return f"{name} ({letters}) = {sizes}" if letters else f"{name} {sizes}"


def _nothing(*_: Any) -> None:
    """Neither enters inference mode, in which nothing can be followed, nor leaves it."""


def _fresh(x: Any) -> Any:
    """A copy of an object that a call may change, such as a cache."""
    known = (Tensor, nn.Module, int, float, str, type(None))
    if not any(isinstance(y, known) for y in tree.tree_leaves(x)):
        with suppress(Exception):  # what cannot be copied is passed as it is
            return copy.deepcopy(x)
    return x


def _turned(x: Any) -> Any:
    """Batch and sequence exchanged."""
    return x.transpose(0, 1) if isinstance(x, Tensor) and x.ndim > 2 else x


def is_whole(x: Tensor) -> bool:
    """Whether a tensor holds whole numbers, such as token ids or lengths."""
    return not x.is_floating_point() and x.dtype != torch.bool


def output_of(out: Any) -> Tensor:
    """The tensor that a result is about."""
    if isinstance(out, Tensor):
        return out
    named = [out.get(n) if isinstance(out, Mapping) else getattr(out, n, None) for n in OUTPUTS]
    if tensors := [x for x in named if isinstance(x, Tensor)]:
        return tensors[0]
    values = out.values() if isinstance(out, Mapping) else out
    for value in values if isinstance(out, (list, tuple, Mapping)) else ():
        if isinstance(value, (list, tuple, Mapping)):
            return output_of(value)
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    expected = "a call that returns a tensor, or a tuple or mapping that holds one"
    fix = "pass an adapter that returns the tensor: lambda x: mine(x).y"
    got = f"a call that returns {type(out).__name__}"
    raise build(ArgumentError, "subject", expected, got, fix=fix)


def another(x: Tensor) -> Tensor:
    """Other content of the same kind."""
    if x.is_floating_point():
        return x.flip(-1) * 1.7 + 0.9
    return torch.where(x > 3, x - 1, x + 1) if is_whole(x) else x


def changed_rows(x: Tensor, rows: tuple[int, ...]) -> Tensor:
    """With other content in some rows of the batch."""
    return changed_at(x, 0, *rows)


def changed_at(x: Tensor, axis: int, *places: int) -> Tensor:
    """With other content at some places of an axis."""
    out = x.clone()
    for i in places:
        out.select(axis, i).copy_(another(x.select(axis, i)))
    return out


def raised(error: BaseException) -> str:
    """Return the type of an error and the first sentence of its message, cut if it is long.

    >>> raised(TypeError("No class 'A'. Make sure that it is registered."))
    "TypeError: No class 'A'."
    """
    said = re.split(r"(?<=[.!?])\s", " ".join(str(error).partition("\n")[0].split()), maxsplit=1)[0]
    said = said if len(said) <= 100 else f"{said[:99]}…"
    return f"{type(error).__name__}: {said}".removesuffix(": ")


def held_by(subject: Any, name: str = "", depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module; the tensors in the closure or the fields of a function."""
    if isinstance(subject, nn.Module):
        for n, x in subject.named_parameters():
            yield f"{name}.{n}".lstrip("."), x
    elif isinstance(subject, Tensor):
        if subject.is_floating_point():
            yield name, subject
    elif depth == 0:
        return
    elif on_tensors_already(subject):  # code of NumPy
        from intently.checker.calling.arrays import held_arrays

        yield from held_arrays(subject).items()
    elif type(subject).__module__ == "intently.checker.calling.programs":  # of JAX
        floats = [(n, x) for n, x in enumerate(subject.constants) if x.is_floating_point()]
        yield from ((f"constant {n}", x) for n, x in floats)
    else:
        for n, x in _inside(subject):
            yield from held_by(x, f"{name}.{n}".strip("."), depth - 1)


def _inside(x: Any) -> Iterable[tuple[Any, Any]]:
    """What is inside of a container, a function or an object, with names where there are some."""
    if isinstance(x, Mapping):
        return x.items()
    if isinstance(x, (list, tuple)):
        return enumerate(x)
    if isinstance(x, partial):
        return [("", (x.func, *x.args, x.keywords))]
    if isinstance(x, MethodType):
        return [("", x.__self__)]
    if isinstance(x, FunctionType):
        cells = zip(x.__code__.co_freevars, x.__closure__ or ())
        inside = [
            (n, cell.cell_contents) for n, cell in cells if cell != CellType()
        ]  # no empty one
        known = [(n, x.__globals__.get(n)) for n in x.__code__.co_names]
        return [*inside, *((n, y) for n, y in known if isinstance(y, (Tensor, nn.Module)))]
    held = not isinstance(x, type) and callable(x) and hasattr(x, "__dict__")
    return [("", vars(x))] if held else []


def on_tensors_already(subject: Any) -> bool:
    """Whether a function stands for code of NumPy, and takes tensors."""
    return isinstance(subject, FunctionType) and "on_tensors" in vars(subject)


def less_precise(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of the two with the larger steps."""
    return a if torch.finfo(a).eps > torch.finfo(b).eps else b
