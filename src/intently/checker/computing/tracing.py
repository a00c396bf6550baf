"""Where queries, keys and values come from inside somebody's code, and what becomes of them.

A dispatch mode follows tensors from the operations that use parameters (projections, norms), or
from the inputs of a function, to the first product of two of them, the scores, and to the product
of what the scores became with a third, the values. The tensors at these places can be replaced in
another run. So any attention becomes a function of queries, keys and values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import FunctionType, MethodType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Stage = Literal["plain", "scores", "mixed"]
PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "matmul", "linear"))
CONVOLUTIONS = frozenset(("convolution", "mkldnn_convolution", "_convolution"))
FUSED = "_scaled_dot_product_"
EVENTS = {"_softmax": "softmax", "_safe_softmax": "softmax", "native_dropout": "dropout"}
RESET = frozenset(("zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_empty"))


Operation = tuple[str, int]
"""The name of an operation, and how many of that name ran before it."""


class Origin(NamedTuple):
    """Where a tensor comes from: the sources that it is made of, and how far it has come."""

    sources: frozenset[int] = frozenset()
    stage: Stage = "plain"


NOWHERE = Origin()


@dataclass
class Source:
    """The output of an operation with parameters, or an input; ``weight`` names the parameter."""

    number: int
    weight: str
    value: Tensor
    entry: Tensor | None = None
    operation: Operation = ("", 0)
    argument: int = 0


@dataclass
class Core:
    """One attention: the sources of its two score operands and of its values, and its output.

    ``end`` is the number of the source at whose entry the output stands, None if nothing with
    parameters follows: then it is the output of the whole.
    """

    left: frozenset[int]
    right: frozenset[int]
    values: frozenset[int] = frozenset()
    end: int | None = None
    sizes: tuple[int, ...] = ()
    batches: int = 0
    scored: Operation = ("", 0)
    mixed: Operation = ("", 0)
    """The products that make the scores and that mix the values: one, if they are fused."""
    turned: bool = False
    """Whether the weights are the right operand of their product, transposed."""


@dataclass
class Found:
    """What a traced run shows."""

    sources: list[Source] = field(default_factory=list)
    cores: list[Core] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    lowest: torch.dtype = torch.double
    """The least precise dtype in which what depends on the inputs is computed."""
    softmaxes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    """The shapes that a softmax ran over, and the axis of each."""
    events: list[str] = field(default_factory=list)
    """Scores, softmax, dropout (of scores or weights) and values, as they come."""
    rates: tuple[tuple[float, ...], ...] = ()
    """Tables that may be rates of rotations: falling numbers, held beside the parameters."""
    joined: bool = False
    """Whether the scores of several products stand side by side, under one softmax."""
    capped: bool = False
    """Whether scores pass through tanh."""
    turned: bool = False
    """Whether queries or keys are multiplied by a table, as rotary positions do."""


class Trace(TorchDispatchMode):
    """Follows a run."""

    supports_higher_order_operators = True

    def __init__(
        self, parameters: Mapping[int, str], inputs: Iterable[tuple[str, Tensor]] = ()
    ) -> None:
        super().__init__()
        self.found = Found()
        self._owned = dict(parameters)
        self._ran: Counter[str] = Counter()
        self._noise: set[int] = set()
        self._alive: list[Tensor] = []
        self._origins: dict[int, Origin] = {}
        for name, x in inputs:
            number = len(self.found.sources)
            self.found.sources.append(Source(number, name, x))
            self._origins[memory(x)] = Origin(frozenset((number,)))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not hasattr(func, "_schema"):  # flex attention, and others of higher order
            self._higher(args, out)
            return out
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        self._ran[func._schema.name] += 1
        given = [x for x in tensors_in((args, kwargs or {}))]
        made = [x for x in tensors_in(out)]
        self._alive += made
        if not made or name in RESET:
            return out
        owned = [x for x in given if memory(x) in self._owned]
        free = [x for x in given if memory(x) not in self._owned]
        if owned and not free:
            for x in made:
                self._owned.setdefault(memory(x), self._owned[memory(owned[0])])
            return out
        if name.startswith("quantize") or func.namespace == "quantized":
            self.found.lowest = torch.bfloat16  # of 8 bits, as its numbers
        if name in ("_native_multi_head_attention", "_transformer_encoder_layer_fwd"):
            self.found.opaque.append(name)
        origin = _joined(self._origin(x) for x in free)
        if name in ("_softmax", "_safe_softmax"):
            self.found.softmaxes.append((tuple(args[0].shape), args[1] % args[0].ndim))
        if name == "bernoulli":
            self._noise.add(memory(given[0]))
        dropped = name == "mul" and any(memory(x) in self._noise for x in given)
        if origin.stage == "scores" and (dropped or name in EVENTS):
            self.found.events.append("dropout" if dropped else EVENTS[name])
        if name == "cat" and origin.stage == "scores" and _along_keys(args):
            self.found.joined |= all(self._origin(x).stage == "scores" for x in args[0])
        self.found.capped |= name == "tanh" and origin.stage == "scores"
        if name == "mul" and origin.stage == "plain" and origin.sources:
            self.found.turned |= any(
                x.numel() > 1 and x.ndim > 1 and not self._origin(x).sources for x in free
            )
        if owned and made[0].is_floating_point() and func._schema.is_mutable is False:
            operation = func._schema.name, self._ran[func._schema.name]
            origin = self._of_parameters(operation, given, owned, made[0], origin)
        elif name.startswith(FUSED):
            q, k, v = (self._origin(x).sources for x in args[:3])
            operation = func._schema.name, self._ran[func._schema.name]
            self._begin(q, k, args[0], args[1], operation)
            self._met(v, q | k, operation)
            origin = Origin(q | k | v, "mixed")
        elif name in PRODUCTS:
            operation = func._schema.name, self._ran[func._schema.name]
            origin = self._product(operation, args, made[0], origin)
        for x in made:
            self._origins[memory(x)] = origin
        if origin.sources and made[0].is_floating_point():
            self.found.lowest = less_precise(self.found.lowest, made[0].dtype)
        if func._schema.is_mutable and given:
            first = memory(given[0])
            self._origins[first] = _joined((self._origins.get(first, NOWHERE), origin))
        return out

    def _higher(self, args: Sequence[Any], out: Any) -> None:
        """An operator that takes queries, keys and values first."""
        made, given = list(tensors_in(out)), [x for x in args[:3] if isinstance(x, Tensor)]
        self._alive += made
        q, k, v = ([self._origin(x).sources for x in given] + [frozenset()] * 3)[:3]
        if q and k and v:
            self._begin(q, k, given[0], given[1], ("", 0))
            self._met(v, q | k, ("", 0))
            for x in made:
                self._origins[memory(x)] = Origin(q | k | v, "mixed")

    def _of_parameters(
        self,
        operation: Operation,
        given: list[Tensor],
        owned: list[Tensor],
        out: Tensor,
        origin: Origin,
    ) -> Origin:
        """What an operation with parameters makes: a new source, but for scores."""
        name = operation[0].removeprefix("aten::").rstrip("_")
        if origin.stage == "scores":
            return origin
        at = next(
            (
                i
                for i, x in enumerate(given)
                if x.is_floating_point() and all(x is not y for y in owned)
            ),
            None,
        )
        if origin.stage == "mixed":
            core = next((c for c in reversed(self.found.cores) if c.end is None), None)
            if core is not None:
                core.end = len(self.found.sources)
            if name not in PRODUCTS | CONVOLUTIONS and core is None:
                return origin
        number = len(self.found.sources)
        kept = None if at is None else given[at].detach().clone()
        weight = self._owned[memory(owned[-1])]
        made = out.detach().clone()
        self.found.sources.append(Source(number, weight, made, kept, operation, at or 0))
        return Origin(frozenset((number,)))

    def _product(
        self, operation: Operation, args: Sequence[Any], out: Tensor, origin: Origin
    ) -> Origin:
        """What a product of two tensors makes: scores, or values mixed by their weights."""
        name = operation[0].removeprefix("aten::")
        first = 1 if name in ("addmm", "baddbmm") else 0
        a, b = args[first : first + 2]
        left, right = self._origin(a), self._origin(b)
        if "mixed" in (left.stage, right.stage) or not left.sources or not right.sources:
            return origin
        if left.stage == right.stage == "plain":
            self._begin(left.sources, right.sources, a, out, operation)
            return Origin(left.sources | right.sources, "scores")
        values = right if left.stage == "scores" else left
        if values.stage == "scores":
            return Origin(origin.sources, "scores")
        scores = left if values is right else right
        self._met(values.sources, scores.sources, operation, values is left)
        return Origin(origin.sources, "mixed")

    def _begin(
        self,
        left: frozenset[int],
        right: frozenset[int],
        a: Tensor,
        out: Tensor,
        operation: Operation,
    ) -> None:
        sizes = tuple(out.shape)
        core = Core(left, right, sizes=sizes, batches=_batches(a), scored=operation)
        self.found.cores.append(core)
        self.found.events.append("scores")

    def _met(
        self,
        values: frozenset[int],
        scores: frozenset[int],
        operation: Operation,
        turned: bool = False,
    ) -> None:
        """The scores meet values; of products that were added up, the first stands for all."""
        self.found.events.append("values")
        waiting = [c for c in self.found.cores if not c.values]
        mine = [c for c in waiting if c.left | c.right <= scores] or waiting[-1:]
        for core in mine[1:]:
            self.found.cores.remove(core)
        for core in mine[:1]:
            core.values, core.mixed, core.turned = values, operation, turned

    def _origin(self, x: Any) -> Origin:
        return self._origins.get(memory(x), NOWHERE) if isinstance(x, Tensor) else NOWHERE


def parameters_of(subject: Any) -> dict[int, str]:
    """The memory of the parameters of a module, or of what a function holds, with their names."""
    return {memory(x): name for name, x in held_by(subject)}


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
    elif isinstance(subject, Mapping):
        for n, x in subject.items():
            yield from held_by(x, f"{name}.{n}".lstrip("."), depth - 1)
    elif isinstance(subject, (list, tuple)):
        for n, x in enumerate(subject):
            yield from held_by(x, f"{name}.{n}".lstrip("."), depth - 1)
    elif isinstance(subject, partial):
        yield from held_by((subject.func, *subject.args, subject.keywords), name, depth - 1)
    elif isinstance(subject, MethodType):
        yield from held_by(subject.__self__, name, depth - 1)
    elif isinstance(subject, FunctionType):
        cells = zip(subject.__code__.co_freevars, subject.__closure__ or ())
        for n, cell in cells:
            with suppress(ValueError):  # a cell that is still empty
                yield from held_by(cell.cell_contents, f"{name}.{n}".lstrip("."), depth - 1)
        known = subject.__globals__
        for n in subject.__code__.co_names:
            if isinstance(known.get(n), (Tensor, nn.Module)):
                yield from held_by(known[n], f"{name}.{n}".lstrip("."), depth - 1)
    elif not isinstance(subject, type) and callable(subject) and hasattr(subject, "__dict__"):
        yield from held_by(vars(subject), name, depth - 1)


def tables_of(subject: Any) -> tuple[tuple[float, ...], ...]:
    """The falling tables of positive numbers among the buffers of a module."""
    buffers = subject.buffers() if isinstance(subject, nn.Module) else ()
    falling = (
        tuple(float(y) for y in x)
        for x in buffers
        if x.ndim == 1 and x.is_floating_point() and 2 <= len(x) <= 256 and bool((x > 0).all())
    )
    return tuple(dict.fromkeys(x for x in falling if all(a > b for a, b in pairwise(x))))


def less_precise(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of the two with the larger steps."""
    return a if torch.finfo(a).eps > torch.finfo(b).eps else b


def _along_keys(args: tuple[Any, ...]) -> bool:
    """Whether tensors are joined along their last axis."""
    return len(args) > 1 and len(args[0]) > 1 and args[1] % args[0][0].ndim == args[0][0].ndim - 1


def _batches(x: Tensor) -> int:
    return int(torch.Size(x.shape[:-2]).numel())


def memory(x: Tensor) -> int:
    """What tells the memory of a tensor from that of others."""
    try:
        return x.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a sparse tensor has no storage of its own
        return id(x)


def _joined(origins: Iterable[Origin]) -> Origin:
    found = list(origins)
    stages = {x.stage for x in found}
    stage: Stage = "mixed" if "mixed" in stages else "scores" if "scores" in stages else "plain"
    return Origin(frozenset().union(*(x.sources for x in found)), stage)


def tensors_in(x: Any) -> Iterable[Tensor]:
    """The tensors in nested arguments."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, Mapping):
        for y in x.values():
            yield from tensors_in(y)
    elif isinstance(x, (list, tuple)):
        for y in x:
            yield from tensors_in(y)
