"""Tensors into our modules: all are loaded or none.

Every ``from_weights`` copies with `filled` and `copied`; every checkpoint, and every ``load`` of
another library, goes through `AllOrNothing`.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from intently.errors import ArgumentError, CheckpointError, KindError, build, shape_of
from intently.foundation.checks import check_kind

M = TypeVar("M", bound=nn.Module)


class Map(NamedTuple):
    """A linear map: weight (out, in) and bias (out,) or None."""

    weight: Tensor
    bias: Tensor | None

    def bias_or_zeros(self) -> Tensor:
        """The bias (out,); where there is none zeros, which learn if the weight does."""
        if self.bias is not None:
            return self.bias
        return self.weight.new_zeros(len(self.weight)).requires_grad_(self.weight.requires_grad)


def elsewhere(name: str) -> list[str]:
    """The names of the same projection in its other form, fused or separate."""
    path, _, last = name.rpartition(".")
    which, _, kind = last.partition("_")
    others = {"qkv": ("q", "k", "v"), "q": ("qkv",), "k": ("qkv",), "v": ("qkv",)}.get(which, ())
    return [f"{path}.{other}_{kind}".removeprefix(".") for other in others]


def tensors(maps: Mapping[str, Map]) -> dict[str, Tensor | None]:
    """Return the maps under the names that linear layers have in a state."""
    pairs = {name: each._asdict() for name, each in maps.items()}
    return {f"{name}.{kind}": x for name, pair in pairs.items() for kind, x in pair.items()}


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
    copy = copied(norm, name, nn.Module, like)
    weight = getattr(copy, "weight", None)
    if isinstance(weight, Tensor) and tuple(weight.shape) != (width,):
        raise build(ArgumentError, name, f"a norm with weights (c={width},)", shape_of(weight))
    return copy


def same_kind(maps: Iterable[Map], name: str) -> None:
    """Raise unless all the tensors have one dtype and lie on one device."""
    every = [x for pair in maps for x in pair if x is not None]
    first = every[0]
    for x in every:
        if (x.dtype, x.device) != (first.dtype, first.device):
            expected = f"{first.dtype} on {first.device}, as the first weight"
            fix = "convert one of them with .to(…)"
            raise build(KindError, name, expected, f"{x.dtype} on {x.device}", fix=fix)


class AllOrNothing(nn.Module):
    """A module whose `load_state_dict` changes nothing unless every tensor fits.

    The base of our blocks and models. Your own module that contains such blocks loads part by part,
    as in PyTorch, unless it also has this base.

    >>> class Pair(AllOrNothing):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> Pair().load_state_dict({**Pair().state_dict(), "b.bias": torch.ones(2)})
    Traceback (most recent call last):
    ...
    intently.errors.CheckpointError: Pair: expected its own tensors; got size mismatch for b.bias: \
copying a param with shape torch.Size([2]) from checkpoint, the shape in current model is \
torch.Size([1]). Nothing was loaded.
    """

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Copy ``state_dict`` into the module; return the names that were missing or left over.

        ``strict`` and ``assign`` are those of `nn.Module`. Raises `CheckpointError` (a
        `RuntimeError`, as PyTorch's own) naming every tensor that is missing, unexpected or of
        a different shape, `KindError` if ``state_dict`` is not a mapping of names to tensors; the
        module is then unchanged.
        """
        _check_tensors(self.state_dict(), state_dict)
        _rehearse(self, state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)


def _check_tensors(own: Mapping[str, Any], state_dict: Mapping[str, Any]) -> None:
    expected = "a mapping of names to tensors"
    check_kind(state_dict, Mapping, "state_dict", expected)
    for name, x in state_dict.items():
        if not isinstance(name, str):
            raise build(KindError, "state_dict", expected, f"the name {name!r}")
        places = (own.get(place) for place in (name, *elsewhere(name)))
        if not isinstance(x, Tensor) and any(isinstance(place, Tensor) for place in places):
            got, fix = f"{type(x).__name__} under {name!r}", "arrays go through torch.tensor"
            raise build(KindError, "state_dict", expected, got, fix=fix)


def _rehearse(module: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> None:
    """Raise the errors of loading by loading only shapes: no number is read or written."""
    given = OrderedDict((name, _shape(x)) for name, x in state_dict.items())
    given._metadata = getattr(state_dict, "_metadata", None)  # pyright: ignore  # versions
    try:
        with warnings.catch_warnings(action="ignore"), _shapes_of(module):
            nn.Module.load_state_dict(module, given, strict)
    except RuntimeError as error:
        lines = (line.strip(" .") for line in str(error).split("\n\t", 1)[-1].split("\n\t"))
        name, got = type(module).__name__, "; ".join(lines)
        raise build(CheckpointError, name, "its own tensors", got, "nothing was loaded") from None


@contextmanager
def _shapes_of(module: nn.Module) -> Iterator[None]:
    """Replace the module's tensors by tensors without storage inside the block."""
    kept = [(part, part._parameters, part._buffers) for part in module.modules()]
    try:
        for part, parameters, buffers in kept:
            for name, tensors in (("_parameters", parameters), ("_buffers", buffers)):
                setattr(part, name, {key: _shape(x) for key, x in tensors.items()})
        yield
    finally:
        for part, parameters, buffers in kept:
            part._parameters, part._buffers = parameters, buffers


def _shape(x: Any) -> Any:
    return torch.empty(x.shape, dtype=x.dtype, device="meta") if isinstance(x, Tensor) else x


def restore(state_dict: dict[str, Any], prefix: str, sizes: tuple[int, ...], fused: bool) -> None:
    """Convert the maps of queries, keys and values to the layer's storage: one weight or three.

    If shapes do not fit, an entry of a wrong shape remains, which `wrong_shapes` reports.
    """
    for kind in ("weight", "bias"):
        joint = f"{prefix}qkv_{kind}"
        names = [f"{prefix}{letter}_{kind}" for letter in "qkv"]
        if fused and all(name in state_dict for name in names):
            parts = [state_dict.pop(name) for name in names]
            alike = len({x.shape[1:] for x in parts}) == 1
            state_dict[joint] = torch.cat(parts) if alike else parts[1]
        elif not fused and joint in state_dict:
            whole = state_dict.pop(joint)
            fits = len(whole) == sum(sizes)
            state_dict.update(zip(names, whole.split(sizes) if fits else [whole] * 3))


def wrong_shapes(part: nn.Module, state_dict: Mapping[str, Any], prefix: str) -> list[str]:
    """Say which parameters of a part have another shape in a checkpoint."""
    own = {prefix + name: shape_of(p) for name, p in part.named_parameters(recurse=False)}
    shapes = {name: shape_of(state_dict[name]) for name in sorted(own) if name in state_dict}
    cause = "the checkpoint is of a layer with other widths or heads"
    return [
        str(build(CheckpointError, name, own[name], got, cause))
        for name, got in shapes.items()
        if got != own[name]
    ]
