"""Something that attends, with an example call: run it, follow it, replace what is inside.

`understanding.understood` makes one; `Subject.told` says in words how it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from intently.checker.calling.exact import exactly
from intently.checker.calling.viewing import Reshaped
from intently.checker.computing.replaying import Call, Reached, Replay
from intently.checker.computing.tracing import (
    Found,
    Operation,
    Trace,
    memory,
    parameters_of,
    tables_of,
)
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
    graded: bool = False
    """Whether the inside is seen only with gradients: without, one operator runs it all."""
    widened: bool = False
    """Whether its code casts to shorter floats, and is run in float64 all the same."""
    rounded: bool = False
    """Whether its code casts to a half type."""
    raising: str = ""
    """The line whose view raises; where there is one, it is run as a reshape."""
    sequence_first: bool = False
    """Whether it is called with (t, b, c): ``inputs`` and outputs here are (b, t, c)."""
    notes: tuple[str, ...] = ()
    """What else there is to know about the call, in words."""
    changes: tuple[str, ...] = ()
    """The inputs that the call changes in place: it is given copies of them."""

    def output(self, **changed: Any) -> Tensor:
        """What comes out of the example, with some inputs changed."""
        with self.running():
            return self._result(self._called({**self.inputs, **changed}))

    def raw(self, **changed: Any) -> Any:
        """The same, with everything that is returned."""
        with self.running():
            return self._called({**self.inputs, **changed})

    def traced(self, **changed: Any) -> Found:
        """What a run shows of the inside."""
        given = {**self.inputs, **changed}
        held = [(n, given[n]) for n in self._tensors(given)]
        known = parameters_of(self.owner) | parameters_of(self._weights(given))
        known = {m: n for m, n in known.items() if m not in {memory(x) for _, x in held}}
        with self.running(), self._mode(), Trace(known, held) as trace:
            self._called(given)
        if trace.found.opaque and not self.graded:  # with gradients, its parts run one by one
            self.graded = True
            return self.traced(**changed)
        trace.found.rates = tables_of(self.owner)
        return trace.found

    def replayed(
        self, found: Found, values: Mapping[int, Tensor], ends: Sequence[int], **changed: Any
    ) -> list[Tensor]:
        """Run with different values of some sources: what enters ``ends``, or what comes out."""
        given, replaced = self._replaced(found, values, changed)
        kept = {found.sources[i].operation: found.sources[i].argument for i in ends}
        out = None
        with self.running(), self._mode(), Replay(replaced, kept) as replay, suppress(Reached):
            out = self._called(given)
        return [replay.entries[n] for n in kept] if ends else [self._result(out).detach()]

    def calls(
        self,
        found: Found,
        values: Mapping[int, Tensor],
        operations: Collection[Operation],
        **changed: Any,
    ) -> dict[Operation, Call]:
        """Run again with different values of some sources: how some operations are called."""
        given, replaced = self._replaced(found, values, changed)
        with (
            self.running(),
            self._mode(),
            Replay(replaced, {}, operations) as replay,
            suppress(Reached),
        ):
            self._called(given)
        return replay.calls

    def _replaced(
        self, found: Found, values: Mapping[int, Tensor], changed: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[Operation, Tensor]]:
        """Other values of sources: as inputs, and as what operations make."""
        given = {**self.inputs, **changed}
        names = self._tensors(given)
        replaced: dict[Operation, Tensor] = {}
        for number, x in values.items():
            if number < len(names):
                given[names[number]] = x.reshape(given[names[number]].shape)
            else:
                replaced[found.sources[number].operation] = x
        return given, replaced

    @contextmanager
    def running(self) -> Iterator[None]:
        """How its code is run: in float64 throughout, where it would cast to shorter floats."""
        with ExitStack() as stack:
            if self.raising:
                stack.enter_context(Reshaped())
            if self.widened:
                stack.enter_context(exactly())
            yield

    def _mode(self) -> AbstractContextManager[None]:
        return torch.enable_grad() if self.graded else torch.no_grad()

    def _tensors(self, given: Mapping[str, Any]) -> list[str]:
        """The inputs that are sources, in their order."""
        roles = ("q", "k", "v", "x", "context")
        return [n for n, x in given.items() if self.roles.get(n) in roles and isinstance(x, Tensor)]

    def _weights(self, given: Mapping[str, Any]) -> dict[str, Tensor]:
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

    def _called(self, given: Mapping[str, Any]) -> Any:
        given = {n: x.clone() if n in self.changes else x for n, x in given.items()}
        if self.sequence_first:
            given = self.turned(given)
        try:
            return self.call(*given.values()) if self.positional else self.call(**given)
        except SystemExit as error:  # it would end the examination, and whoever asked for it
            raise RuntimeError(f"the code ends the process: exit({error.code!r})") from None
        except (Exception, KeyboardInterrupt, Reached):
            raise
        except BaseException as error:  # no handler of ours expects it
            raise RuntimeError(f"the code raised {type(error).__name__}: {error}") from None

    def _result(self, out: Any) -> Tensor:
        y = output_of(out)
        if y.layout is not torch.strided:
            got = f"one of layout {y.layout}"
            fix = "return y.to_dense()"
            raise build(
                ArgumentError, "subject", "a call that returns a dense tensor", got, fix=fix
            )
        return _turned(y) if self.sequence_first else y

    @property
    def form(self) -> str:
        """How it is called, in words: ``(q, k, v)``, ``(x)``, ``(x, context)``, ``(ids)``."""
        roles = [r for r in self.roles.values() if r not in ("mask", "setting")]
        return f"({', '.join(dict.fromkeys(roles))})"

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
        return (self.of("q") or self.of("x") or self.of("ids"))[0]

    @property
    def is_tokens(self) -> bool:
        """Whether the main input holds token ids."""
        return not self.inputs[self.main].is_floating_point()

    @property
    def batch(self) -> int:
        """The number of rows of the batch."""
        x = self.inputs[self.main]
        return int(x.shape[0]) if x.ndim > 2 or not x.is_floating_point() else 1

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
