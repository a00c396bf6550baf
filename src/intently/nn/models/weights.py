"""The weights of a model by name: taken from it, compared, and copied into it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from intently.errors import CheckpointError, build, one_line


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and stored buffers of a model by name, tied ones once.

    >>> tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    >>> tied["b"] = tied["a"]
    >>> list(weights(tied))
    ['a.weight']
    """
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], where: str = "") -> None:
    """Copy ``tensors`` into the model they came from by :func:`weights`.

    Raises CheckpointError, naming the origin ``where``, if names, shapes or dtypes differ; the
    model is then unchanged.
    """
    own = weights(model)
    check_alike(own, tensors, "the weights are of a model with other options", where)
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def check_alike(
    own: Mapping[str, Tensor], other: Mapping[str, Tensor], cause: str, where: str = ""
) -> None:
    """Raise CheckpointError for ``cause`` unless the two have the same names and shapes.

    Floating-point numbers may differ in precision; other dtypes may not differ. Tensors may be on
    the device "meta".
    """
    for name in sorted(own.keys() | other.keys()):
        expected, got = (
            _form(group[name]) if name in group else "no such tensor" for group in (own, other)
        )
        if expected != got:
            place = f"{where}: {name}" if where else name
            raise one_line(build(CheckpointError, place, expected, got, cause))


def _form(x: Tensor) -> str:
    shape = f"shape {tuple(x.shape)}"
    return shape if x.is_floating_point() else f"{shape} of {x.dtype}"
