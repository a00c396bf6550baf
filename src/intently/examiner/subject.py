"""How something that attends is called: what its inputs mean, and which output to read.

What is not stated is found out: names and kinds in the signature, widths of its parameters, and
trial calls. `Subject.told` says what was understood.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, build
from intently.examiner.precision import EXACT, Precision, precision_of
from intently.examiner.tracing import Found, Operation, Replay, Trace, less_precise, parameters_of

Role = Literal["q", "k", "v", "x", "context", "ids", "mask", "setting"]

NAMES: dict[Role, tuple[str, ...]] = {
    "q": ("q", "query", "queries", "xq", "query_states", "query_layer"),
    "k": ("k", "key", "keys", "xk", "key_states", "key_layer"),
    "v": ("v", "value", "values", "xv", "value_states", "value_layer"),
    "x": (
        *("x", "hidden_states", "input", "inputs", "src", "tgt", "tensor", "hidden", "embeddings"),
        *("inputs_embeds", "sequence", "h", "feats", "features", "sample", "pixel_values", "image"),
    ),
    "context": (
        *("context", "encoder_hidden_states", "memory", "cond", "kv", "source", "enc", "ctx"),
        *("encoder_output", "encoder_out", "encoder_outputs", "y"),
    ),
    "ids": ("input_ids", "ids", "idx", "tokens", "token_ids", "src_ids", "decoder_input_ids"),
    "mask": (
        *("mask", "attn_mask", "attention_mask", "key_padding_mask", "src_key_padding_mask"),
        *("padding_mask", "src_mask", "tgt_mask", "encoder_attention_mask", "key_mask", "pad_mask"),
        *("lengths", "lens", "seq_lens", "memory_key_padding_mask", "attn_bias", "bias"),
    ),
}
MEANINGS = ("attend", "ignore", "add", "bias", "lengths", "past", "positions", "x", "context")
"""What an argument may be said to mean."""
OUTPUTS = ("logits", "last_hidden_state", "sample", "hidden_states", "output", "out", "y")
BATCH, QUERIES, KEYS, HEADS, WIDTH = 2, 6, 6, 4, 8
SIDES = ((4, 4), (3, 4), (8, 8))


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

    def output(self, **changed: Any) -> Tensor:
        """What comes out of the example, with some inputs changed."""
        return output_of(self._called({**self.inputs, **changed}))

    def raw(self, **changed: Any) -> Any:
        """The same, with everything that is returned."""
        return self._called({**self.inputs, **changed})

    def traced(self, **changed: Any) -> Found:
        """What a run shows of the inside."""
        given = {**self.inputs, **changed}
        held = [(n, given[n]) for n in self._tensors(given)]
        with self._mode(), Trace(parameters_of(self.owner), held) as trace:
            self._called(given)
        if trace.found.opaque and not self.graded:  # with gradients, its parts run one by one
            self.graded = True
            return self.traced(**changed)
        return trace.found

    def replayed(
        self, found: Found, values: Mapping[int, Tensor], ends: Sequence[int], **changed: Any
    ) -> list[Tensor]:
        """Run again with other values of some sources: what enters ``ends``, or what comes out."""
        given = {**self.inputs, **changed}
        names = self._tensors(given)
        replaced: dict[Operation, Tensor] = {}
        for number, x in values.items():
            if number < len(names):
                given[names[number]] = x.reshape(given[names[number]].shape)
            else:
                replaced[found.sources[number].operation] = x
        kept = {found.sources[i].operation: found.sources[i].argument for i in ends}
        with self._mode(), Replay(replaced, kept) as replay:
            out = self._called(given)
        return [replay.entries[n] for n in kept] if ends else [output_of(out).detach()]

    def _mode(self) -> AbstractContextManager[None]:
        return torch.enable_grad() if self.graded else torch.no_grad()

    def _tensors(self, given: Mapping[str, Any]) -> list[str]:
        """The inputs that are sources, in their order."""
        roles = ("q", "k", "v", "x", "context")
        return [n for n, x in given.items() if self.roles.get(n) in roles and isinstance(x, Tensor)]

    def _called(self, given: Mapping[str, Any]) -> Any:
        if self.positional:
            return self.call(*given.values())
        return self.call(**given)

    @property
    def form(self) -> str:
        """How it is called, in words: ``(q, k, v)``, ``(x)``, ``(x, context)``, ``(ids)``."""
        roles = [r for r in self.roles.values() if r not in ("mask", "setting")]
        return f"({', '.join(dict.fromkeys(roles))})"

    def of(self, *roles: Role) -> list[str]:
        """The names of the inputs of some roles."""
        return [n for n, r in self.roles.items() if r in roles]

    @property
    def main(self) -> str:
        """The input whose rows are the queries'."""
        return (self.of("q") or self.of("x") or self.of("ids"))[0]

    @property
    def batch(self) -> int:
        """The number of rows of the batch."""
        x = self.inputs[self.main]
        return int(x.shape[0]) if x.ndim > 2 or self.roles[self.main] == "ids" else 1

    @property
    def told(self) -> str:
        """What was understood, in one line."""
        parts = []
        for name, x in self.inputs.items():
            if isinstance(x, Tensor):
                parts.append(f"{name} {tuple(x.shape)}")
        said = [f"`{n}`: {m}" for n, m in self.meanings.items()]
        return f"takes {', '.join(parts)}" + (f"; {'; '.join(said)}" if said else "")


def understood(
    subject: Any,
    inputs: Mapping[str, Any] | None = None,
    arguments: Mapping[str, str] | None = None,
) -> Subject:
    """How to call ``subject``; raises `ArgumentError` if it cannot be told."""
    if not callable(subject):
        raise build(ArgumentError, "subject", "a function or a module", type(subject).__name__)
    meanings = dict(arguments or {})
    for name, meaning in meanings.items():
        if meaning not in MEANINGS:
            raise build(
                ArgumentError, f"arguments[{name!r}]", f"one of {', '.join(MEANINGS)}", meaning
            )
    module = subject if isinstance(subject, nn.Module) else None
    errors: list[str] = []
    for dtype in (torch.double, torch.float):  # some code runs in one of them only
        call, own = _copied(subject, module, dtype)
        for given in _trials(subject, own) if inputs is None else [inputs]:
            cast = {n: _cast(x, dtype) for n, x in given.items()}
            try:
                return _with_inputs(call, own, cast, meanings, subject)
            except Exception as error:  # whatever the code does with a trial
                errors.append(f"{type(error).__name__}: {error}".split("\n")[0])
    if inputs is not None:
        raise build(
            ArgumentError, "inputs", "a call that succeeds", f"a call that raises {errors[-1]}"
        )
    raise build(
        ArgumentError,
        "inputs",
        "an example call, such as inputs={'x': torch.randn(2, 6, 64)}",
        "none, and no trial call succeeded",
        cause=f"the last trial said: {errors[-1]}" if errors else "its signature names no tensors",
        fix="hand in inputs=, or an adapter: lambda x: mine(x, causal=True)",
    )


def _with_inputs(
    call: Callable[..., Any],
    module: nn.Module | None,
    given: dict[str, Any],
    meanings: dict[str, str],
    subject: Any,
) -> Subject:
    roles: dict[str, Role] = {n: _role(n, x, meanings.get(n)) for n, x in given.items()}
    tensors = [n for n, x in given.items() if isinstance(x, Tensor) and x.is_floating_point()]
    free = [n for n in tensors if roles[n] == "setting"]
    if not any(r in ("q", "x", "ids") for r in roles.values()) and len(free) in (1, 3):
        names: tuple[Role, ...] = ("x",) if len(free) == 1 else ("q", "k", "v")
        roles.update(zip(free, names))
    heads = _heads(subject if module is None else module)
    owner = subject if module is None else module
    out = Subject(call, given, roles, meanings, module, heads=heads, owner=owner)
    try:
        with torch.no_grad():
            first = out.output()
    except TypeError:
        out.positional = True
        with torch.no_grad():
            first = out.output()
    try:
        lowest = less_precise(out.traced().lowest, first.dtype)
    except Exception:  # what cannot be followed is judged by what comes out
        lowest = first.dtype
    out.precision = precision_of(lowest)
    return out


def _copied(
    subject: Any, module: nn.Module | None, dtype: torch.dtype
) -> tuple[Callable[..., Any], nn.Module | None]:
    """A copy of a module in a dtype, in evaluation mode."""
    if module is None:
        return subject, None
    try:
        made = copy.deepcopy(module).to(dtype).eval()
    except Exception:  # what cannot be copied is examined as it is
        return module, module
    return made, made


def _cast(x: Any, dtype: torch.dtype) -> Any:
    if isinstance(x, Tensor) and x.is_floating_point():
        return x.detach().to(dtype)
    return x


def _role(name: str, x: Any, meaning: str | None) -> Role:
    if meaning in ("x", "context"):
        return meaning
    if meaning is not None:
        return "mask"
    if not isinstance(x, Tensor):
        return "setting"
    for role, names in NAMES.items():
        if name in names:
            return role
    if x.dtype == torch.bool:
        return "mask"
    return "ids" if not x.is_floating_point() and x.ndim == 2 else "setting"


def _heads(subject: Any) -> list[int]:
    """The numbers of heads that a module names."""
    names = ("num_heads", "n_heads", "heads", "nhead", "n_head", "num_attention_heads", "h")
    found = []
    parts = list(subject.modules()) if isinstance(subject, nn.Module) else [subject]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if type(value) is int and 0 < value < 1025:
                found.append(value)
    return list(dict.fromkeys(found))


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
        "a tensor, or a tuple or mapping that holds one",
        type(out).__name__,
        fix="hand in an adapter that returns the tensor",
    )


# --- trial calls --------------------------------------------------------------------------------


def _normal(*shape: int, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.double)


def _trials(subject: Any, module: nn.Module | None) -> Iterator[dict[str, Any]]:
    """Inputs to try, by the names of the signature."""
    names = _required(subject, module)
    roles = {n: next((r for r, known in NAMES.items() if n in known), None) for n in names}
    widths = _widths(module)
    c = widths[0] if widths else HEADS * WIDTH
    ids = torch.randint(3, 40, (BATCH, QUERIES), generator=torch.Generator().manual_seed(1))
    found = list(roles.values())
    if module is None or {"q", "k", "v"} <= set(found):
        for shape in ((BATCH, HEADS, QUERIES, WIDTH), (BATCH, QUERIES, c)):
            by_role = {r: _normal(*shape, seed=n) for n, r in enumerate("qkv", 1)}
            if {"q", "k", "v"} <= set(found):
                yield {n: by_role[r] for n, r in roles.items() if r in by_role}
            elif len(names) == 3:
                yield {n: by_role[r] for n, r in zip(names, "qkv")}
    for width in widths or [c]:
        shapes = [(BATCH, QUERIES, width), *((BATCH, width, *side) for side in SIDES)]
        for shape in shapes:
            given: dict[str, Any] = {}
            for n, name in enumerate(names, 1):
                role = roles[name]
                if role == "ids" or (role is None and module is not None and _embeds(module)):
                    given[name] = ids
                elif role == "context":
                    given[name] = _normal(BATCH, KEYS + 3, widths[-1] if widths else c, seed=n)
                else:
                    given[name] = _normal(*shape, seed=n)
            yield given
            if any(r == "context" for r in found):
                yield {
                    n: _normal(BATCH, KEYS + 3, width, seed=2) if roles[n] == "context" else x
                    for n, x in given.items()
                }


def _embeds(module: nn.Module) -> bool:
    """Whether the first layer of a module is an embedding of tokens."""
    leaves = (m for m in module.modules() if not list(m.children()))
    return isinstance(next(leaves, None), nn.Embedding)


def _required(subject: Any, module: nn.Module | None) -> list[str]:
    target = module.forward if module is not None else subject
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return ["x"]
    return [
        n
        for n, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ] or ["x"]


def _widths(module: nn.Module | None) -> list[int]:
    """The widths that inputs of a module may have, the likeliest first."""
    if module is None:
        return []
    found: list[int] = []
    for name in ("embed_dim", "d_model", "hidden_size", "dim", "width", "query_dim"):
        value = getattr(module, name, None)
        if type(value) is int:
            found.append(value)
    for part in module.modules():
        for name in ("in_features", "in_channels", "embed_dim", "embedding_dim"):
            value = getattr(part, name, None)
            if type(value) is int:
                found.append(value)
        shape = getattr(part, "normalized_shape", None)
        if isinstance(shape, tuple) and shape:
            found.append(int(shape[-1]))
    found += [int(n) for x in module.parameters() if x.ndim == 2 for n in (x.shape[1], x.shape[0])]
    return list(dict.fromkeys(found))[:6]
