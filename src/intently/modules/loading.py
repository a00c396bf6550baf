"""Checkpoints load whole or not at all: no model is left half its own and half another's."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from intently.errors import CheckpointError, KindError, build


class AllOrNothing(nn.Module):
    """A module whose `load_state_dict` changes nothing unless every tensor fits.

    The base of our blocks and models. A module of your own that holds them loads as PyTorch's do,
    part by part, unless it has this base, too.

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
        `RuntimeError`, as PyTorch's own) naming every tensor that is missing, foreign or of
        another shape, `KindError` where ``state_dict`` maps no names to tensors; the module is
        unchanged then.
        """
        _check_tensors(self, state_dict)
        _rehearse(self, state_dict, strict)
        return super().load_state_dict(state_dict, strict, assign)


def _check_tensors(module: nn.Module, state_dict: object) -> None:
    expected, got = "a mapping of names to tensors", type(state_dict).__name__
    if not isinstance(state_dict, Mapping):
        raise build(KindError, "state_dict", expected, got)
    for name, own in module.state_dict().items():
        x = state_dict.get(name, own)
        if isinstance(own, Tensor) and not isinstance(x, Tensor):
            got = f"{type(x).__name__} under {name!r}"
            raise build(
                KindError, "state_dict", expected, got, fix="arrays go through torch.tensor"
            )


def _rehearse(module: nn.Module, state_dict: Mapping[str, Any], strict: bool) -> None:
    """Raise what loading would, after loading shapes into shapes: no number is read or written."""
    given = OrderedDict((name, _shape(x)) for name, x in state_dict.items())
    given._metadata = getattr(state_dict, "_metadata", None)  # pyright: ignore  # versions
    try:
        with warnings.catch_warnings(action="ignore"), _shapes_of(module):
            nn.Module.load_state_dict(module, given, strict)
    except RuntimeError as error:
        found = (line.strip(" .") for line in str(error).split("\n\t", 1)[-1].split("\n\t"))
        raise build(
            CheckpointError, type(module).__name__, "its own tensors", "; ".join(found),
            "nothing was loaded",
        ) from None  # fmt: skip


@contextmanager
def _shapes_of(module: nn.Module) -> Iterator[None]:
    """Put tensors without storage in the place of the module's own, for the time of the block."""
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
