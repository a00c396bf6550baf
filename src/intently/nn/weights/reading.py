"""The weights of other code, read and checked, in the layout that the caller names.

`read_map` reads one linear map and `sizes` determines the sizes of the letters in the shapes of
several; `read` and `with_out` read those of attention, as `HeadMaps`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Required, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.checks import check_kind, check_word, divisor, whole_number
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections
from intently.nn.weights.copying import Map, same_kind

Linear: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d
"""A linear map, which image models also write as a convolution of single pixels."""

Weight: TypeAlias = Tensor | np.ndarray | tuple[Tensor | np.ndarray, Tensor | np.ndarray] | Linear
"""A weight (out, in) or (out, in, 1, 1); a pair of it and its bias (out,); or the layer itself."""

Weights: TypeAlias = Weight | Sequence[Weight]
"""One for all heads, or a list with one for each."""

TRANSPOSED = "weights are stored (out, in) as in nn.Linear; Keras stores (in, out)"
TURN = "pass weight.T if it is transposed"


def read_map(given: object, name: str) -> Map:
    """Read one linear map; raise unless it is one, of floating-point numbers."""
    bias, given = None, _dense(given, name)
    if isinstance(given, Linear):
        weight, bias = given.weight, given.bias
        if isinstance(given, nn.Conv1d | nn.Conv2d):
            _check_single_pixels(given, name)
    elif isinstance(given, tuple) and len(given) == 2:
        weight, bias = given
    else:
        weight = given
    check_kind(
        weight,
        (Tensor, np.ndarray),
        name,
        "a weight (out, in), a pair (weight, bias), an nn.Linear or a Keras Dense",
        fix='one weight for each head needs layout="list of heads"'
        if isinstance(given, list)
        else None,
    )
    weight, bias = _floats(weight, name), None if bias is None else _floats(bias, name)
    if weight.ndim > 2 and weight[0, 0].numel() == 1:
        weight = weight.flatten(1)
    if weight.ndim != 2:
        raise build(ArgumentError, name, "shape (out, in)", shape_of(weight))
    if bias is not None and tuple(bias.shape) != (len(weight),):
        raise misfit(name, f"a bias of shape ({len(weight)},)", bias, None)
    return Map(weight, bias)


def misfit(name: str, expected: str, got: Tensor, fix: str | None = TURN) -> ArgumentError:
    """Build the error of a weight that has another shape, and may be transposed."""
    return build(ArgumentError, name, expected, shape_of(got), TRANSPOSED, fix)


def _dense(given: Any, name: str) -> Any:
    """A Keras `Dense` layer as its weight (out, in) and bias; anything else unchanged."""
    keras = sys.modules.get("keras")
    if keras is None:
        return given
    parts: Any = given if isinstance(given, tuple) else (given,)
    if any(isinstance(x, keras.Variable) for x in parts):
        fix = f"pass the Dense layer itself, or {name}.numpy().T"
        raise build(KindError, name, "a weight (out, in)", "a Keras Variable", TRANSPOSED, fix)
    if not isinstance(given, keras.layers.Dense):
        return given
    dense: Any = given
    if not dense.built:
        raise _unbuilt(name)
    arrays = [keras.ops.convert_to_numpy(x) for x in (dense.kernel, dense.bias) if x is not None]
    # NumPy has no bfloat16, which float32 holds exactly
    kinds = [x.dtype if x.dtype.kind == "f" else np.float32 for x in arrays]
    weight, *bias = [torch.from_numpy(np.array(x, dtype=kind)) for x, kind in zip(arrays, kinds)]
    return (weight.T, *bias) if bias else weight.T


def read_vector(given: object, name: str) -> Map:
    """Read a vector (a,), or a map (1, a), as a map (1, a)."""
    if isinstance(given, (Tensor, np.ndarray)) and given.ndim == 1:
        given = given[None]
    vector = read_map(given, name)
    if len(vector.weight) != 1:
        raise build(ArgumentError, name, "shape (a,) or (1, a)", shape_of(vector.weight))
    return vector


def _floats(x: Any, name: str) -> Tensor:
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        x = torch.from_numpy(np.array(x, order="C"))
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"dtype {x.dtype}" if isinstance(x, (Tensor, np.ndarray)) else type(x).__name__
        raise build(KindError, name, "floating-point weights", got)
    if nn.parameter.is_lazy(x):
        raise _unbuilt(name)
    return x.detach()


def _unbuilt(name: str) -> KindError:
    fix = "call it once to set its sizes"
    return build(KindError, name, "a layer with weights", "one without", fix=fix)


def _check_single_pixels(conv: nn.Conv1d | nn.Conv2d, name: str) -> None:
    for option, wanted in {"kernel_size": 1, "stride": 1, "padding": 0, "groups": 1}.items():
        value = getattr(conv, option)
        if value in ("valid", "same"):
            continue
        if any(size != wanted for size in (value if isinstance(value, tuple) else (value,))):
            expected, got = (
                f"a convolution of single pixels, {option}={wanted}",
                f"{option}={value}",
            )
            cause = "only such a convolution is a linear map of each pixel"
            raise build(ArgumentError, name, expected, got, cause)


def sizes(maps: Mapping[str, Map], **shapes: str) -> dict[str, int]:
    """Return the sizes of the letters in the maps' shapes; raise if two maps disagree.

    >>> sizes({"up": Map(torch.ones(6, 4), None), "down": Map(torch.ones(4, 5), None)},
    ...       up="i c", down="c i")
    Traceback (most recent call last):
    ...
    intently.errors.ArgumentError: down: expected shape (c=4, i=6); got shape (4, 5). Weights are \
stored (out, in) as in nn.Linear; Keras stores (in, out). Pass weight.T if it is transposed.
    """
    same_kind(maps.values(), ", ".join(list(shapes)[1:]))
    numbers: dict[str, int] = {}
    for name, letters in shapes.items():
        axes = dict(zip(letters.split(), maps[name].weight.shape))
        if any(numbers.get(letter, n) != n for letter, n in axes.items()):
            wanted = (f"{x}={numbers[x]}" if x in numbers else x for x in axes)
            raise misfit(name, f"shape ({', '.join(wanted)})", maps[name].weight)
        numbers |= axes
    return numbers


def joined(maps: Sequence[Map]) -> Map:
    """Return the rows of the maps as one; a missing bias is zero if other maps have one."""
    weight = torch.cat([each.weight for each in maps])
    if all(each.bias is None for each in maps):
        return Map(weight, None)
    return Map(weight, torch.cat([each.bias_or_zeros() for each in maps]))


def has_bias(maps: Mapping[str, Map]) -> bool:
    """Whether any of the maps has one."""
    return any(each.bias is not None for each in maps.values())


def check_layout(layout: str, known: Iterable[str]) -> None:
    """Raise unless the layout is one of those known."""
    check_word(layout, "layout", known, "fused weights of different layouts have the same shape")


LAYOUTS = ("h d", "3 h d", "h 3 d", "list of heads")


class StorageOptions(TypedDict, total=False):
    """How the weights are stored: the keywords of `MultiHeadAttention.from_weights`."""

    layout: Required[str]
    heads: int | None
    kv_heads: int | None
    attention: AttentionOptions


@dataclass(frozen=True)
class HeadMaps:
    """The properties of a block that follow from its weights; ``maps`` by "q", "k", "v", "out"."""

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
        """Width of the context."""
        return self.maps["k"].weight.shape[1]

    @property
    def projections(self) -> Projections:
        """Biases if any map has one, and the output width."""
        out = self.maps.get("out")
        return Projections(
            bias=any(self.maps[name].bias is not None for name in "qkv"),
            out_bias=out is not None and out.bias is not None,
            out_width=None if out is None else len(out.weight),
        )

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `MultiHeadAttention` that follow from the weights."""
        return {
            "kv_heads": self.kv_heads,
            "context_width": self.context_width,
            "head_widths": self.head_widths,
            "projections": self.projections,
        }

    def tensors(self) -> dict[str, Tensor | None]:
        """The parameters of the block; a missing bias is zero if other maps have one."""
        tensors: dict[str, Tensor | None] = {}
        for name, each in self.maps.items():
            tensors[f"{name}_weight"] = each.weight
            zeros = name != "out" and self.projections.bias
            tensors[f"{name}_bias"] = each.bias_or_zeros() if zeros else each.bias
        return tensors


def read(
    q: Weights,
    k: Weights | None,
    v: Weights | None,
    layout: str,
    heads: int | None,
    kv_heads: int | None,
) -> HeadMaps:
    """Return the maps of queries, keys and values, each head after head; `with_out` adds the
    output.

    See `MultiHeadAttention.from_weights`.
    """
    check_layout(layout, LAYOUTS)
    for name, number in (("heads", heads), ("kv_heads", kv_heads)):
        if number is not None:
            whole_number(number, name, 1)
    if layout == "list of heads":
        maps = _of_lists(q, k, v, heads)
        assert isinstance(q, Sequence) and isinstance(k, Sequence)
        if kv_heads not in (None, len(k)):
            raise build(ArgumentError, "kv_heads", f"{len(k)}, as long as the list k", kv_heads)
        return _checked(maps, len(q), len(k))
    if heads is None:
        expected = f"how many heads the rows of layout {layout!r} hold"
        raise build(ArgumentError, "heads", expected, heads)
    if layout != "h d":
        if k is not None or v is not None:
            expected = f"None: in the layout {layout!r} q holds all three"
            fix = 'separate weights need layout="h d"'
            raise build(ArgumentError, "k, v", expected, "weights of their own", fix=fix)
        maps = _unfused(read_map(q, "q"), layout, heads, kv_heads)
    elif k is None or v is None:
        expected = 'weights of their own in the layout "h d"'
        fix = 'a fused weight needs layout="3 h d" or layout="h 3 d"'
        raise build(ArgumentError, "k, v", expected, "None", fix=fix)
    else:
        maps = {"q": read_map(q, "q"), "k": read_map(k, "k"), "v": read_map(v, "v")}
    return _checked(maps, heads, heads if kv_heads is None else kv_heads)


def _unfused(joint: Map, layout: str, heads: int, kv_heads: int | None) -> dict[str, Map]:
    """Split a fused map into queries, keys and values, each head after head."""
    if kv_heads not in (None, heads):
        expected, cause = (
            f"heads={heads} in the layout {layout!r}",
            "its three parts have the same size",
        )
        fix = 'split the weight yourself and use layout="h d"'
        raise build(ArgumentError, "kv_heads", expected, kv_heads, cause, fix)
    if len(joint.weight) % (3 * heads):
        raise misfit("q", f"a multiple of 3·heads = {3 * heads} rows, (3·h·d, c)", joint.weight)
    axis, split = (0, (3, heads, -1)) if layout == "3 h d" else (1, (heads, 3, -1))
    weights, biases = (
        [None] * 3 if x is None else [y.flatten(0, 1) for y in x.unflatten(0, split).unbind(axis)]
        for x in joint
    )
    return {name: Map(*each) for name, each in zip("qkv", zip(weights, biases))}  # pyright: ignore


def _of_lists(
    q: Weights, k: Weights | None, v: Weights | None, heads: int | None
) -> dict[str, Map]:
    """Join lists with one map for each head."""
    maps: dict[str, Map] = {}
    for name, weights in {"q": q, "k": k, "v": v}.items():
        if not isinstance(weights, list) or not weights:
            expected, got = "a list with one weight (d, c) for each head", type(weights).__name__
            raise build(KindError, name, expected, got, 'layout="list of heads" was named')
        if name == "q" and heads not in (None, len(weights)):
            raise build(ArgumentError, "heads", f"{len(weights)}, as long as the list q", heads)
        if name == "v" and isinstance(k, list) and len(weights) != len(k):
            raise build(ArgumentError, "v", f"as many heads as k, {len(k)}", len(weights))
        each = [read_map(w, f"{name}[{i}]") for i, w in enumerate(weights)]
        if len({tuple(m.weight.shape) for m in each}) > 1:
            shapes = ", ".join(str(tuple(m.weight.shape)) for m in each)
            raise build(ArgumentError, name, "heads of one shape (d, c)", shapes)
        same_kind(each, name)
        if len(biases := [m.bias for m in each if m.bias is not None]) not in (0, len(each)):
            raise build(ArgumentError, name, "a bias for every head or for none", len(biases))
        maps[name] = joined(each)
    return maps


def _checked(maps: dict[str, Map], heads: int, kv_heads: int) -> HeadMaps:
    """Raise unless queries, keys and values fit together."""
    q, k, v = (maps[name].weight for name in "qkv")
    same_kind(maps.values(), "k, v, out")
    divisor(kv_heads, "kv_heads", "heads", heads)
    if len(q) % heads:
        raise misfit("q", f"a multiple of heads={heads} rows, (h·d, c)", q)
    d, c = len(q) // heads, k.shape[1]
    if len(k) != kv_heads * d:
        expected = f"shape (g·d={kv_heads * d}, c) for g={kv_heads} and d={d} of q"
        fix = "pass kv_heads= if query heads share keys" if heads > 1 else TURN
        raise misfit("k", expected, k, fix)
    if len(v) % kv_heads or v.shape[1] != c:
        expected = f"shape (g·e, c={c}) for g={kv_heads} heads, c as for k"
        raise misfit("v", expected, v, None)
    return HeadMaps(maps, heads, kv_heads, (d, len(v) // kv_heads))


def with_out(block: HeadMaps, out: Weights, layout: str) -> HeadMaps:
    """Return the maps with the output, which may be a list with one map per head."""
    h, e = block.heads, block.head_widths[1]
    if isinstance(out, list) and layout == "list of heads":
        each = [read_map(w, f"out[{i}]") for i, w in enumerate(out)]
        if len(each) != h or len({len(m.weight) for m in each}) > 1:
            got = ", ".join(str(tuple(m.weight.shape)) for m in each) or "an empty list"
            raise build(ArgumentError, "out", f"{h} heads of one shape (c, e), as many as q", got)
        same_kind(each, "out")
        biases = [m.bias for m in each if m.bias is not None]
        total = torch.stack(biases).sum(0) if biases else None
        joint = Map(torch.cat([m.weight for m in each], 1), total)
    else:
        joint = read_map(out, "out")
    maps = {**block.maps, "out": joint}
    same_kind(maps.values(), "k, v, out")
    if joint.weight.shape[1] != h * e:
        raise misfit("out", f"shape (c, h·e={h * e})", joint.weight)
    return replace(block, maps=maps)
