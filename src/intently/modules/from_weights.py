"""The weights of anybody's own attention, read in the layout that the caller names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.masks.geometry import whole_number
from intently.modules.projected import Projected, Projections

Weight: TypeAlias = (
    Tensor | np.ndarray | tuple[Tensor | np.ndarray, Tensor | np.ndarray] | nn.Linear
)
"""A weight (out, in); with its bias (out,); or a linear layer."""

Weights: TypeAlias = Weight | Sequence[Weight]
"""One for all heads, or a list with one for each."""

LAYOUTS = ("h d", "3 h d", "h 3 d", "list of heads")
TRANSPOSED = "weights are stored (out, in) as in nn.Linear; Keras stores (in, out)"


class Map(NamedTuple):
    """A linear map: weight (out, in) and bias (out,), None where there is none."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True)
class Found:
    """What the weights say about the block they belong to; ``maps`` by "q", "k", "v", "out"."""

    maps: dict[str, Map]
    heads: int
    kv_heads: int
    head_widths: tuple[int, int]

    @property
    def width(self) -> int:
        """Width c of the queries."""
        return self.maps["q"].weight.shape[1]

    @property
    def context_width(self) -> int:
        """Width of what is attended."""
        return self.maps["k"].weight.shape[1]

    @property
    def projections(self) -> Projections:
        """Biases where any map has one, and the output's width."""
        return Projections(
            bias=any(self.maps[name].bias is not None for name in "qkv"),
            out_bias=self.maps["out"].bias is not None,
            out_width=self.maps["out"].weight.shape[0],
        )

    @torch.no_grad()
    def into(self, block: Projected) -> None:
        """Copy the maps into the block; a bias that is missing beside others is zero."""
        state = {"out_weight": self.maps["out"].weight, "out_bias": self.maps["out"].bias}
        for name in "qkv":
            weight, bias = self.maps[name]
            state[f"{name}_weight"] = weight
            if self.projections.bias:
                state[f"{name}_bias"] = weight.new_zeros(len(weight)) if bias is None else bias
        own = {name: x for name, x in state.items() if x is not None}
        if block.fused:
            for kind in ("weight", "bias"):
                parts = [own.pop(f"{name}_{kind}") for name in "qkv" if f"{name}_{kind}" in own]
                if parts:
                    own[f"qkv_{kind}"] = torch.cat(parts)
        for name, value in own.items():
            getattr(block, name).copy_(value)


def read(
    q: Weights,
    k: Weights | None,
    v: Weights | None,
    out: Weights,
    layout: str,
    heads: int | None,
    kv_heads: int | None,
) -> Found:
    """Return the maps, each ordered head after head; see `MultiHeadAttention.from_weights`."""
    if layout not in LAYOUTS:
        raise build(
            ArgumentError, "layout", f"one of {', '.join(map(repr, LAYOUTS))}", repr(layout),
            "fused weights of different layouts have the same shape",
        )  # fmt: skip
    for name, number in (("heads", heads), ("kv_heads", kv_heads)):
        if number is not None:
            whole_number(number, name, 1)
    if layout == "list of heads":
        maps = _of_lists(q, k, v, out, heads)
        assert isinstance(q, Sequence) and isinstance(k, Sequence)
        if kv_heads not in (None, len(k)):
            raise build(ArgumentError, "kv_heads", f"{len(k)}, as long as the list k", kv_heads)
        heads, kv_heads = len(q), len(k)
    else:
        if heads is None:
            raise build(
                ArgumentError, "heads", f"how many heads the rows of layout {layout!r} hold", heads
            )
        if layout == "h d":
            if k is None or v is None:
                raise build(
                    ArgumentError, "k, v", 'weights of their own in the layout "h d"', "None",
                    fix='a fused weight needs layout="3 h d" or layout="h 3 d"',
                )  # fmt: skip
            maps = {"q": _map(q, "q"), "k": _map(k, "k"), "v": _map(v, "v")}
        else:
            if k is not None or v is not None:
                raise build(
                    ArgumentError, "k, v", f"None: in the layout {layout!r} q holds all three",
                    "weights of their own", fix='separate weights need layout="h d"',
                )  # fmt: skip
            maps = _unfused(_map(q, "q"), layout, heads, kv_heads)
        maps["out"] = _map(out, "out")
        kv_heads = heads if kv_heads is None else kv_heads
    return _checked(maps, heads, kv_heads)


def _unfused(joint: Map, layout: str, heads: int, kv_heads: int | None) -> dict[str, Map]:
    """Take a fused map apart into queries, keys and values, each head after head."""
    if kv_heads not in (None, heads):
        raise build(
            ArgumentError, "kv_heads", f"heads={heads} in the layout {layout!r}", kv_heads,
            "its three parts have the same size",
            'split the weight yourself and use layout="h d"',
        )  # fmt: skip
    rows = len(joint.weight)
    if rows % (3 * heads):
        raise build(
            ArgumentError, "q", f"a multiple of 3·heads = {3 * heads} rows, (3·h·d, c)",
            shape_of(joint.weight), TRANSPOSED, "hand in weight.T if it is transposed",
        )  # fmt: skip
    axis, split = (0, (3, heads, -1)) if layout == "3 h d" else (1, (heads, 3, -1))

    def parts(x: Tensor | None) -> tuple[Tensor | None, ...]:
        if x is None:
            return (None, None, None)
        return tuple(y.flatten(0, 1) for y in x.unflatten(0, split).unbind(axis))

    pairs = zip("qkv", parts(joint.weight), parts(joint.bias))
    return {name: Map(weight, bias) for name, weight, bias in pairs if weight is not None}


def _of_lists(
    q: Weights, k: Weights | None, v: Weights | None, out: Weights, heads: int | None
) -> dict[str, Map]:
    """Join lists with one map for each head."""
    lists = {"q": q, "k": k, "v": v}
    maps: dict[str, Map] = {}
    h = 0
    for name, weights in lists.items():
        if not isinstance(weights, list) or not weights:
            raise build(
                KindError, name, 'a list with one weight (d, c) for each head',
                type(weights).__name__, 'layout="list of heads" was named',
            )  # fmt: skip
        if name == "q" and heads not in (None, len(weights)):
            raise build(ArgumentError, "heads", f"{len(weights)}, as long as the list q", heads)
        h = len(weights) if name == "q" else h
        if name == "v" and isinstance(k, list) and len(weights) != len(k):
            raise build(ArgumentError, "v", f"as many heads as k, {len(k)}", len(weights))
        each = [_map(w, f"{name}[{i}]") for i, w in enumerate(weights)]
        if len({tuple(m.weight.shape) for m in each}) > 1:
            shapes = ", ".join(str(tuple(m.weight.shape)) for m in each)
            raise build(ArgumentError, name, "heads of one shape (d, c)", shapes)
        _same_kind(each, name)
        biases = [m.bias for m in each if m.bias is not None]
        if len(biases) not in (0, len(each)):
            raise build(ArgumentError, name, "a bias for every head or for none", len(biases))
        weight = torch.cat([m.weight for m in each])
        maps[name] = Map(weight, torch.cat(biases) if biases else None)
    if isinstance(out, list):
        each = [_map(w, f"out[{i}]") for i, w in enumerate(out)]
        rows = {len(m.weight) for m in each}
        if len(each) != h or len(rows) > 1:
            got = ", ".join(str(tuple(m.weight.shape)) for m in each) or "an empty list"
            raise build(ArgumentError, "out", f"{h} heads of one shape (c, e), as many as q", got)
        _same_kind(each, "out")
        biases = [m.bias for m in each if m.bias is not None]
        total = torch.stack(biases).sum(0) if biases else None
        maps["out"] = Map(torch.cat([m.weight for m in each], 1), total)
    else:
        maps["out"] = _map(out, "out")
    return maps


def _checked(maps: dict[str, Map], heads: int, kv_heads: int) -> Found:
    """Raise unless the four maps fit together."""
    q, k, v, out = (maps[name].weight for name in ("q", "k", "v", "out"))
    _same_kind([maps[name] for name in ("q", "k", "v", "out")], "k, v, out")
    if kv_heads < 1 or heads % kv_heads:
        raise build(ArgumentError, "kv_heads", f"a divisor of heads={heads}", kv_heads)
    if len(q) % heads:
        raise build(
            ArgumentError, "q", f"a multiple of heads={heads} rows, (h·d, c)", shape_of(q),
            TRANSPOSED, "hand in weight.T if it is transposed",
        )  # fmt: skip
    d, c = len(q) // heads, k.shape[1]
    if len(k) != kv_heads * d:
        raise build(
            ArgumentError, "k", f"shape (g·d={kv_heads * d}, c) for g={kv_heads} and d={d} of q",
            shape_of(k), TRANSPOSED, "say kv_heads= where query heads share keys",
        )  # fmt: skip
    if len(v) % kv_heads or v.shape[1] != c:
        raise build(
            ArgumentError, "v", f"shape (g·e, c={c}) for g={kv_heads} heads, c as for k",
            shape_of(v), TRANSPOSED,
        )  # fmt: skip
    e = len(v) // kv_heads
    if out.shape[1] != heads * e:
        raise build(
            ArgumentError, "out", f"shape (c, h·e={heads * e})", shape_of(out), TRANSPOSED,
            "hand in weight.T if it is transposed",
        )  # fmt: skip
    return Found(maps, heads, kv_heads, (d, e))


def _map(given: Weights, name: str) -> Map:
    """Read one weight, with its bias where there is one."""
    bias = None
    if isinstance(given, nn.Linear):
        weight, bias = given.weight, given.bias
    elif isinstance(given, tuple) and len(given) == 2:
        weight, bias = given
    else:
        weight = given
    if not isinstance(weight, (Tensor, np.ndarray)):
        raise build(
            KindError, name, "a weight (out, in), a pair (weight, bias) or an nn.Linear",
            type(weight).__name__,
            fix='one weight for each head needs layout="list of heads"'
            if isinstance(given, list) else None,
        )  # fmt: skip
    weight = torch.as_tensor(weight).detach()
    bias = None if bias is None else torch.as_tensor(bias).detach()
    for x in (weight, bias):
        if x is not None and not x.is_floating_point():
            raise build(KindError, name, "floating-point weights", f"dtype {x.dtype}")
    if weight.ndim != 2:
        raise build(ArgumentError, name, "shape (out, in)", shape_of(weight))
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise build(
            ArgumentError, name, f"a bias of shape ({len(weight)},)", shape_of(bias), TRANSPOSED
        )
    return Map(weight, bias)


def _same_kind(maps: list[Map], name: str) -> None:
    every = [x for pair in maps for x in pair if x is not None]
    first = every[0]
    for x in every:
        if (x.dtype, x.device) != (first.dtype, first.device):
            raise build(
                KindError, name, f"{first.dtype} on {first.device}, as the first weight",
                f"{x.dtype} on {x.device}", fix="convert one of them with .to(…)",
            )  # fmt: skip
