"""The weights of other code: read, checked against each other, and copied into a block.

Every ``from_weights`` works this way: `read_map` reads each linear map, `sizes` determines the
sizes of the letters in their shapes, `filled` copies. `copied` copies parts that are modules.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.checks import check_kind, check_word

M = TypeVar("M", bound=nn.Module)

Linear: TypeAlias = nn.Linear | nn.Conv1d | nn.Conv2d
"""A linear map, which image models also write as a convolution of single pixels."""

Weight: TypeAlias = Tensor | np.ndarray | tuple[Tensor | np.ndarray, Tensor | np.ndarray] | Linear
"""A weight (out, in) or (out, in, 1, 1); a pair of it and its bias (out,); or the layer itself."""

TRANSPOSED = "weights are stored (out, in) as in nn.Linear; Keras stores (in, out)"
TURN = "pass weight.T if it is transposed"


class Map(NamedTuple):
    """A linear map: weight (out, in) and bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None

    def bias_or_zeros(self) -> Tensor:
        """The bias (out,), zeros if there is none."""
        return self.weight.new_zeros(len(self.weight)) if self.bias is None else self.bias


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
        raise build(
            ArgumentError, name, f"a bias of shape ({len(weight)},)", shape_of(bias), TRANSPOSED
        )
    return Map(weight, bias)


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
        fix = "call it once to set its sizes"
        raise build(KindError, name, "a layer with weights", "one without", fix=fix)
    arrays = [keras.ops.convert_to_numpy(x) for x in (dense.kernel, dense.bias) if x is not None]
    weight, *bias = [torch.from_numpy(np.array(x, dtype=_kept(x))) for x in arrays]
    return (weight.T, *bias) if bias else weight.T


def _kept(array: Any) -> Any:
    """The dtype of an array; NumPy has no bfloat16, which float32 holds exactly."""
    return array.dtype if array.dtype.kind == "f" else np.float32


def read_vector(given: object, name: str) -> Map:
    """Read a vector (a,), or a map (1, a), as a map (1, a)."""
    if isinstance(given, (Tensor, np.ndarray)) and given.ndim == 1:
        given = given[None]
    found = read_map(given, name)
    if len(found.weight) != 1:
        raise build(ArgumentError, name, "shape (a,) or (1, a)", shape_of(found.weight))
    return found


def _floats(x: Any, name: str) -> Tensor:
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        x = torch.from_numpy(np.array(x, order="C"))
    if not isinstance(x, Tensor) or not x.is_floating_point():
        got = f"dtype {x.dtype}" if isinstance(x, (Tensor, np.ndarray)) else type(x).__name__
        raise build(KindError, name, "floating-point weights", got)
    if nn.parameter.is_lazy(x):
        raise build(
            KindError,
            name,
            "a layer with weights",
            "one without",
            fix="call it once to set its sizes",
        )
    return x.detach()


def _check_single_pixels(conv: nn.Conv1d | nn.Conv2d, name: str) -> None:
    options = {"kernel_size": 1, "stride": 1, "padding": 0, "groups": 1}
    for option, wanted in options.items():
        found = getattr(conv, option)
        sizes = found if isinstance(found, tuple) else (found,)
        if any(size != wanted for size in sizes) and found not in ("valid", "same"):
            raise build(
                ArgumentError,
                name,
                f"a convolution of single pixels, {option}={wanted}",
                f"{option}={found}",
                "only such a convolution is a linear map of each pixel",
            )


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
    found: dict[str, int] = {}
    for name, letters in shapes.items():
        axes = dict(zip(letters.split(), maps[name].weight.shape))
        if any(found.get(letter, n) != n for letter, n in axes.items()):
            wanted = (f"{x}={found[x]}" if x in found else x for x in axes)
            got = shape_of(maps[name].weight)
            raise build(ArgumentError, name, f"shape ({', '.join(wanted)})", got, TRANSPOSED, TURN)
        found |= axes
    return found


def joined(maps: Sequence[Map]) -> Map:
    """Return the rows of the maps as one; a missing bias is zero if other maps have one."""
    weight = torch.cat([each.weight for each in maps])
    if all(each.bias is None for each in maps):
        return Map(weight, None)
    return Map(weight, torch.cat([each.bias_or_zeros() for each in maps]))


def has_bias(maps: Mapping[str, Map]) -> bool:
    """Whether any of the maps has one."""
    return any(each.bias is not None for each in maps.values())


def tensors(maps: Mapping[str, Map]) -> dict[str, Tensor | None]:
    """Return the maps under the names that linear layers have in a state."""
    pairs = {name: each._asdict() for name, each in maps.items()}
    return {f"{name}.{kind}": x for name, pair in pairs.items() for kind, x in pair.items()}


def same_kind(maps: Iterable[Map], name: str) -> None:
    """Raise unless all the tensors have one dtype and lie on one device."""
    every = [x for pair in maps for x in pair if x is not None]
    first = every[0]
    for x in every:
        if (x.dtype, x.device) != (first.dtype, first.device):
            raise build(
                KindError,
                name,
                f"{first.dtype} on {first.device}, as the first weight",
                f"{x.dtype} on {x.device}",
                fix="convert one of them with .to(…)",
            )


def check_layout(layout: str, known: Iterable[str]) -> None:
    """Raise unless the layout is one of those known."""
    check_word(layout, "layout", known, "fused weights of different layouts have the same shape")


def filled(block: M, tensors: Mapping[str, Tensor | None]) -> M:
    """Return the block with these tensors copied into it, in their dtype and on their device.

    None marks parameters that the block lacks; parameters without an entry stay as they are.
    """
    given = {name: x for name, x in tensors.items() if x is not None}
    first = next(iter(given.values()))
    block.to(device=first.device, dtype=first.dtype)
    left = block.load_state_dict(given, strict=False).unexpected_keys
    assert not left, left  # the caller has made the block for these tensors
    return block


def copied(part: object, name: str, kind: type[M], like: Tensor | None = None) -> M:
    """Return a copy of a module with all its weights; raise unless it is of this kind.

    Where ``like`` is given, its weights must have that dtype and device.
    """
    if not isinstance(part, kind):
        what = "the module itself" if kind is nn.Module else f"a {kind.__name__}"
        raise build(KindError, name, f"{what}, with its weights", type(part).__name__)
    first = next(part.parameters(), None)
    if first is not None and like is not None:
        same_kind([Map(like, first)], name)
    return deepcopy(part)


def copied_norm(norm: object, name: str, width: int, like: Tensor) -> nn.Module:
    """Return a copy of a norm, whose weights must be (c=width,)."""
    made = copied(norm, name, nn.Module, like)
    weight = getattr(made, "weight", None)
    if isinstance(weight, Tensor) and tuple(weight.shape) != (width,):
        raise build(ArgumentError, name, f"a norm with weights (c={width},)", shape_of(weight))
    return made
