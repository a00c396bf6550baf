"""What a model is made of: one walk over its modules, in the order in which one run calls them.

Forward hooks see which module ran inside which, what it was given and what it gave. Two tensors at
one place are the same tensor; a sum is where the numbers add up, so residuals need no names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from intently.show.inputs import evaluating

TITLES = {
    "BatchNorm2d": "Batch norm",
    "Conv1D": "Linear",
    "Conv2d": "Convolution",
    "FeedForward": "Feed-forward",
    "GatedFeedForward": "Gated feed-forward",
    "MultiHeadAttention": "Multi-head attention",
    "MultiheadAttention": "Multi-head attention",
    "RecurrentSeq2Seq": "Recurrent encoder–decoder",
    "NonDynamicallyQuantizableLinear": "Linear",
}
"""Classes whose names do not read as words."""

KINDS = {
    "attention": r"Attention(?!al)|Attn",
    "feed-forward": r"FeedForward|MLP|Mlp",
    "norm": r"Norm",
    "embedding": r"Embedding$",
    "projection": r"Linear|Conv",
    "cell": r"^(RNN|GRU|LSTM)",
}
"""What a class is, by its name; the first that fits."""

LISTS = (nn.ModuleList, nn.Sequential)
SILENT = re.compile("Identity|Dropout|Rotary")
"""Modules that change nothing outside training, or only tell angles."""


@dataclass(frozen=True)
class DiagramPart:
    """A box, or parts that run one after another, each on what the last one gave.

    ``kind`` is one of `KINDS`, "module", "positions", or holds ``parts``: "layer"; "residual",
    which adds its input to what its last part gives; "parallel", whose parts read the same.
    ``reads`` holds (name, shape) of other inputs, ``tied`` whose weights it uses.
    """

    kind: str
    title: str = ""
    name: str = ""
    takes: str = ""
    gives: str = ""
    parameters: int = 0
    notes: tuple[str, ...] = ()
    reads: tuple[tuple[str, str], ...] = ()
    tied: str = ""
    parts: tuple[DiagramPart, ...] = ()

    def walk(self) -> Iterator[DiagramPart]:
        """Yield this part, then all parts within, in the order in which they run."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def like(self, other: DiagramPart) -> bool:
        """Return whether the two differ in nothing but names."""
        return self._nameless() == other._nameless()

    def _nameless(self) -> DiagramPart:
        reads = tuple(("", shape) for _, shape in self.reads)
        parts = tuple(part._nameless() for part in self.parts)
        return replace(self, name="", reads=reads, parts=parts)


@dataclass
class ModuleCall:
    """One call of a module: the tensors that went in and came out, and the calls within."""

    module: nn.Module
    name: str
    given: list[Tensor] = field(default_factory=list)
    gave: list[Tensor] = field(default_factory=list)
    named: list[tuple[str, Tensor]] = field(default_factory=list)
    """The inputs of a model by name."""
    read: Tensor | None = None
    wrote: Tensor | None = None
    """Copies of the first numbers in and out, as later modules may change them in place."""
    masked: bool = False
    inside: list[ModuleCall] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What the module is, by its class."""
        named = type(self.module).__name__
        return next((kind for kind, form in KINDS.items() if re.search(form, named)), "module")


def columns(model: nn.Module, inputs: Sequence[Any]) -> list[DiagramPart]:
    """Return a "stack" for each stream through the model, titled by the input that starts it."""
    root = run(model, inputs) if inputs else declared(model, "")
    return Walk(root).columns()


def run(model: nn.Module, inputs: Sequence[Any]) -> ModuleCall:
    """Return the calls of one run on these inputs, which changes nothing."""
    names = {module: name for name, module in model.named_modules()}
    root = ModuleCall(model, "")
    open_calls = [root]

    def before(module: nn.Module, args: Any, options: Any) -> None:
        call = root if module is model else ModuleCall(module, names[module])
        call.given = [*tensors(args), *tensors(options)]
        call.read = _copy(call.given)
        masks = options.get("mask"), getattr(module, "mask", None)
        call.masked = any(repr(mask).startswith("causal()") for mask in masks)
        if call is root:
            signature = zip(inspect.signature(model.forward).parameters, args, strict=False)
            named = (*signature, *options.items())
            root.named = [(name, x) for name, value in named for x in tensors(value)]
        else:
            open_calls[-1].inside.append(call)
        open_calls.append(call)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        call = open_calls.pop()
        call.gave = list(tensors(output))
        call.wrote = _copy(call.gave)

    hooks = [module.register_forward_pre_hook(before, with_kwargs=True) for module in names]
    hooks += [module.register_forward_hook(after) for module in names]
    inputs = [_varied(x) if isinstance(x, Tensor) else x for x in inputs]
    whole = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else None
    try:
        with torch.no_grad(), evaluating(model):
            _ = model(*inputs) if whole is None else model(**whole)
    finally:
        for hook in hooks:
            hook.remove()
    return root


def declared(module: nn.Module, name: str) -> ModuleCall:
    """Return the modules in the order of their definition, as if they had been called."""
    call = ModuleCall(module, name)
    for own, child in module.named_children():
        found = declared(child, f"{name}.{own}" if name else own)
        call.inside += found.inside if isinstance(child, nn.ModuleList) else [found]
    return call


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in tuples, lists, mappings and dataclasses."""
    if isinstance(value, Mapping):
        value = list(value.values())
    elif is_dataclass(value):
        value = list(vars(value).values())
    if isinstance(value, Tensor):
        yield value
    for each in value if isinstance(value, tuple | list) else ():
        yield from tensors(each)


class Walk:
    """Makes parts of calls: opens what holds attention, layers or cells, and boxes the rest."""

    def __init__(self, root: ModuleCall) -> None:
        self.root = root
        self.modules = dict(root.module.named_modules(remove_duplicate=False))
        self.inputs = {_place(x): name for name, x in root.named}
        """The inputs of the model by their place: their names in its signature."""
        self.counted: dict[int, str] = {}
        """The name under which a parameter was counted."""
        self.origins: dict[tuple[int, int], tuple[str, int]] = {}
        """Where a tensor comes from: the name of an input or module, and the column."""

    def columns(self) -> list[DiagramPart]:
        """Return a stack for each column."""
        found: list[DiagramPart] = []
        streams = self._streams()
        for n, calls in enumerate(streams):
            out = self.root.wrote if n == len(streams) - 1 else None
            parts = self._with_positions(self._parts(calls, calls[0].read, out, n), n)
            parts += self._output(calls[-1], out)
            title, ends = self._reads_input(calls[0]), (parts[0].takes, parts[-1].gives)
            found.append(DiagramPart("stack", title, "", *ends, parts=tuple(parts)))
        return found

    def _streams(self) -> list[list[ModuleCall]]:
        """Return the calls of each column; an input that nobody has read before starts one."""
        streams: list[list[ModuleCall]] = []
        started: set[str] = set()
        for call in list(self._steps(self.root)) or [self.root]:
            side = self._reads_input(call)
            place = _place(call.given[0]) if call.given else (0, 0)
            _, column = self.origins.get(place, ("", -1))
            if not streams or (column < 0 and side and side not in started):
                streams.append([])
            started.add(side)
            column = column if column >= 0 else len(streams) - 1
            streams[column].append(call)
            for tensor in call.gave:
                self.origins.setdefault(_place(tensor), (call.name, column))
        for place, name in self.inputs.items():
            self.origins.setdefault(place, (name, -1))
        return streams

    def _reads_input(self, call: ModuleCall) -> str:
        """The name of the model's input that a module reads, or nothing."""
        return self.inputs.get(_place(call.given[0]), "") if call.given else ""

    def _steps(self, call: ModuleCall) -> Iterator[ModuleCall]:
        """Yield the calls that are drawn: boxes and layers, each module once."""
        seen: set[tuple[int, str]] = set()
        for each in call.inside:
            key = id(each.module), self._reads_input(each)
            if SILENT.search(type(each.module).__name__) or key in seen or self._boxed(each):
                continue
            seen.add(key)
            if self._opened(each) and not self._is_layer(each):
                yield from self._steps(each)
            else:
                yield each

    def _boxed(self, call: ModuleCall) -> bool:
        """Whether a module belongs to attention that is a box of its own."""
        above = self._above(call)
        return above is not self.root.module and ModuleCall(above, "").kind == "attention"

    def _opened(self, call: ModuleCall) -> bool:
        """Whether what is inside is worth drawing."""
        inner = {"attention", "feed-forward", "cell"}
        return call.kind == "module" and any(
            each.kind in inner or self._is_layer(each) or self._opened(each) for each in call.inside
        )

    def _is_layer(self, call: ModuleCall) -> bool:
        return isinstance(self._above(call), LISTS) and self._opened(call)

    def _above(self, call: ModuleCall) -> nn.Module:
        return self.modules[call.name.rpartition(".")[0]]

    def _parts(
        self, calls: Sequence[ModuleCall], given: Tensor | None, out: Tensor | None, column: int
    ) -> list[DiagramPart]:
        """Return the parts of calls in a row; those that add what an earlier one read are sums."""
        parts: list[tuple[int, DiagramPart]] = []
        sums = [] if given is None else [(given, 0)]
        for i, call in enumerate(calls):
            made = self._part(call, column)
            after = calls[i + 1].read if i + 1 < len(calls) else out
            after = call.wrote if after is None else after
            if i and call.kind == "projection" and _same(call, calls[i - 1]):
                start, before = parts.pop()
                group = before.parts if before.kind == "parallel" else (before,)
                made = DiagramPart("parallel", "", "", made.takes, made.gives, parts=(*group, made))
                parts.append((start, made))
            else:
                parts.append((i, made))
            if after is None or call.wrote is None:
                continue
            start = next((n for x, n in sums if _adds(x, call.wrote, after)), None)
            if start == i and call.kind == "embedding":
                parts[-1] = (i, replace(made, kind="positions"))
            elif start is not None and start <= parts[-1][0]:
                within = tuple(part for n, part in parts if n >= start)
                parts = [(n, part) for n, part in parts if n < start]
                ends = within[0].takes, _shape(after)
                parts.append((start, DiagramPart("residual", "Residual", "", *ends, parts=within)))
            sums.append((after, i + 1))
        return [part for _, part in parts]

    def _part(self, call: ModuleCall, column: int) -> DiagramPart:
        """Return a layer with its parts, or a box."""
        module, kind = call.module, call.kind
        takes, gives = (_shape(x[0]) if x else "" for x in (call.given, call.gave))
        if self._is_layer(call):
            inner = self._parts(list(self._steps(call)), call.read, call.wrote, column)
            title = re.sub("^(Encoder|Decoder) l", "L", title_of(module))
            own, _ = self._count(module.parameters(recurse=False), call.name)
            return DiagramPart("layer", title, call.name, takes, gives, own, parts=tuple(inner))
        name = self._named(call)
        parameters, tied = self._count(module.parameters(), name)
        reads = self._reads(call, column) if kind == "attention" else ()
        title, notes = self._title(call, bool(reads)), tuple(_notes(module, kind))
        return DiagramPart(kind, title, name, takes, gives, parameters, notes, reads, tied)

    def _count(self, parameters: Iterable[Tensor], name: str) -> tuple[int, str]:
        """The parameters that are counted nowhere else, or the module whose weights these are."""
        every = list(parameters)
        new = [p for p in every if id(p) not in self.counted]
        tied = "" if new or not every else self.counted[id(every[0])]
        self.counted.update((id(p), name) for p in new)
        return sum(p.numel() for p in new), tied

    def _reads(self, call: ModuleCall, column: int) -> tuple[tuple[str, str], ...]:
        """(name, shape) of the states that come from another column or input."""
        own = _place(call.given[0]) if call.given else None
        for x in call.given[1:]:
            name, where = self.origins.get(_place(x), ("", column))
            if where != column and x.is_floating_point() and x.ndim > 2 and _place(x) != own:
                return ((name, _shape(x)),)
        return ()

    def _named(self, call: ModuleCall) -> str:
        """The name of a module; of several names, the one that speaks of the input it reads."""
        side = self._reads_input(call)
        names = [name for name, module in self.modules.items() if module is call.module]
        return next((name for name in names if side and name.startswith(side)), call.name)

    def _title(self, call: ModuleCall, reads: bool) -> str:
        kind, name = call.kind, self._named(call).rpartition(".")[2]
        if kind == "attention" and reads:
            return "Cross-attention"
        if kind == "attention" and name.startswith("self"):
            return "Masked self-attention" if call.masked else "Self-attention"
        if kind in ("embedding", "projection") and re.fullmatch("[A-Za-z_]{3,}", name):
            return words(name)
        return title_of(call.module)

    def _with_positions(self, parts: list[DiagramPart], column: int) -> list[DiagramPart]:
        """Put positions that the model adds itself, without a call, behind the first embedding."""
        if not self.root.gave or not parts or parts[0].kind not in ("embedding", "projection"):
            return parts
        model = self.root.module
        called = {call.module for call in self.root.inside}
        modules = [(n, list(m.parameters())) for n, m in model.named_children() if m not in called]
        tables = [(name, table) for name, table in modules if "position" in name and table]
        plain = (*model.named_parameters(recurse=False), *model.named_buffers(recurse=False))
        tables += [(n, [x]) for n, x in plain if n.startswith("pos") and x.is_floating_point()]
        if not tables:
            return parts
        name, table = tables[min(column, len(tables) - 1)]
        learned = isinstance(table[0], nn.Parameter)
        count = self._count(table, name)[0] if learned else 0
        title = "Learned positions" if learned else "Sinusoidal positions"
        x = parts[1].takes if len(parts) > 1 else parts[0].gives
        first = DiagramPart("positions", title, name, parts[0].gives, x, count)
        return [parts[0], first, *parts[1:]]

    def _output(self, call: ModuleCall, out: Tensor | None) -> list[DiagramPart]:
        """The product with an embedding, which has no module of its own."""
        last = call.wrote
        if out is None or last is None:
            return []
        for name, module in self.modules.items():
            shape = tuple(module.weight.shape) if isinstance(module, nn.Embedding) else ()
            if shape == (out.shape[-1], last.shape[-1]) and out.shape[:-1] == last.shape[:-1]:
                return [
                    DiagramPart("projection", "Output", "", _shape(last), _shape(out), tied=name)
                ]
        return []


def title_of(module: nn.Module) -> str:
    """Return the class of a module in words."""
    name = type(module).__name__
    return TITLES.get(name) or words(name)


def words(name: str) -> str:
    """Return the name of a class or attribute as words.

    >>> words("ChannelNorm"), words("RMSNorm"), words("target_embedding")
    ('Channel norm', 'RMS norm', 'Target embedding')
    """
    found = re.findall(r"[A-Z]+(?![a-z])\d*|[A-Z][a-z0-9]*|[a-z0-9]+", name)
    rest = (word if len(word) > 1 and word.isupper() else word.lower() for word in found[1:])
    return " ".join([found[0][0].upper() + found[0][1:], *rest]) if found else name


def _notes(module: Any, kind: str) -> Iterator[str]:
    """What the small lines of a box say of a module."""

    def many(count: int, one: str) -> str:
        return f"{count} {one}{'s' * (count > 1)}"

    if kind == "attention":
        names = ("heads", "num_heads", "num_attention_heads", "n_heads")
        counts = (getattr(module, name, 0) for name in names)
        heads = next((n for n in counts if isinstance(n, int) and n), 0)
        few = getattr(module, "kv_heads", heads)
        if heads:
            yield many(heads, "head")
        if few != heads:
            yield many(few, "key/value head")
        if isinstance(getattr(module, "d", None), int):
            yield f"d = {module.d}"
        if getattr(getattr(module, "attention", None), "positions", None) is not None:
            yield "rotary"
        if isinstance(getattr(module, "score", None), str):
            yield module.score
    elif kind == "feed-forward":
        if maps := [m for m in module.modules() if isinstance(m, nn.Linear)]:
            yield f"{maps[0].in_features} → {maps[-1].in_features} → {maps[-1].out_features}"
        if named := getattr(getattr(module, "activation", None), "__name__", ""):
            yield {"relu": "ReLU", "gelu": "GELU", "silu": "SiLU"}.get(named, named)
    elif kind == "cell":
        if module.num_layers > 1:
            yield f"{module.num_layers} layers"
        if module.bidirectional:
            yield "both directions"
    elif isinstance(module, nn.GroupNorm):
        yield f"{module.num_groups} groups"


def _varied(x: Tensor) -> Tensor:
    """An input with other numbers if all are equal: sums of zeros tell nothing."""
    if not x.is_floating_point() or not x.numel() or bool((x != x.flatten()[0]).any()):
        return x
    return torch.linspace(-1, 1, x.numel(), dtype=x.dtype, device=x.device).view(x.shape)


def _copy(given: Sequence[Tensor]) -> Tensor | None:
    """The numbers of the first tensor, if they are floating-point."""
    return given[0].clone() if given and given[0].is_floating_point() else None


def _place(x: Tensor) -> tuple[int, int]:
    """Where a tensor lies in memory: all are kept while the walk goes on."""
    return x.data_ptr(), x.numel()


def _shape(x: Tensor) -> str:
    return f"({', '.join(map(str, x.shape))})"


def _same(call: ModuleCall, other: ModuleCall) -> bool:
    """Whether two modules read one tensor, neither what the other gave."""
    if call.read is None or other.read is None or call.read.shape != other.read.shape:
        return False
    return _place(call.given[0]) != _place(other.gave[0]) and torch.equal(call.read, other.read)


def _adds(x: Tensor, y: Tensor, total: Tensor) -> bool:
    """Whether ``total`` is x + y; y may be the sequence of the pixels of an image."""
    if x.shape != total.shape or x.numel() != y.numel():
        return False
    if y.shape != x.shape:
        y = y.mT.reshape(x.shape)
    return torch.equal(x + y, total) and bool(x.any())
