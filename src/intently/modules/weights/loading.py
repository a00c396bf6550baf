"""Checkpoints load completely or not at all: no model is left half loaded."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import CheckpointError, KindError, build, shape_of


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
        own = self.state_dict()
        _check_tensors(own, state_dict)
        _rehearse(self, own, state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)


def _no_tensor(x: object, name: str | None = None) -> KindError:
    got = type(x).__name__ + ("" if name is None else f" under {name!r}")
    fix = None if name is None else "arrays go through torch.tensor"
    return build(KindError, "state_dict", "a mapping of names to tensors", got, fix=fix)


def _check_tensors(own: Mapping[str, Any], state_dict: object) -> None:
    if not isinstance(state_dict, Mapping):
        raise _no_tensor(state_dict)
    for name in state_dict:
        if not isinstance(name, str):
            got = f"the name {name!r}"
            raise build(KindError, "state_dict", "a mapping of names to tensors", got)
    for name, ours in own.items():
        x = state_dict.get(name, ours)
        if isinstance(ours, Tensor) and not isinstance(x, Tensor):
            raise _no_tensor(x, name)


class _Unread:
    """Placeholder for a non-tensor under an unexpected key; raises when it is read.

    The loading of `Projected` reads keys of its other storage; it never reads keys left over.
    """

    def __init__(self, x: object, name: str) -> None:
        self._error = _no_tensor(x, name)

    def __getattr__(self, name: str) -> Any:
        raise self._error

    def __len__(self) -> int:
        raise self._error


def _rehearse(
    module: nn.Module, own: Mapping[str, Any], state_dict: Mapping[str, Any], strict: bool
) -> None:
    """Raise the errors of loading by loading only shapes: no number is read or written."""
    given: OrderedDict[str, Any] = OrderedDict(
        (name, _shape(x) if name in own or isinstance(x, Tensor) else _Unread(x, name))
        for name, x in state_dict.items()
    )
    given._metadata = getattr(state_dict, "_metadata", None)  # pyright: ignore  # versions
    try:
        with warnings.catch_warnings(action="ignore"), _shapes_of(module):
            nn.Module.load_state_dict(module, given, strict)
    except RuntimeError as error:
        found = (line.strip(" .") for line in str(error).split("\n\t", 1)[-1].split("\n\t"))
        raise build(
            CheckpointError,
            type(module).__name__,
            "its own tensors",
            "; ".join(found),
            "nothing was loaded",
        ) from None


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
    if not isinstance(x, Tensor):
        return x
    return torch.empty(x.shape, dtype=x.dtype, device="meta")


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
    found = {name: shape_of(state_dict[name]) for name in sorted(own) if name in state_dict}
    cause = "the checkpoint is of a layer with other widths or heads"
    return [
        str(build(CheckpointError, name, own[name], got, cause))
        for name, got in found.items()
        if got != own[name]
    ]
