"""Parameters that do not learn on one side do not learn on the other."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from intently.errors import ArgumentError, build


def copy_requires_grad(module: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Let each parameter of the module learn where the tensors that it was made of do.

    ``given`` are those tensors by name, the maps of queries, keys and values in one or apart.
    Raises `ArgumentError` where a parameter is made of some that learn and some that do not.

    >>> import torch
    >>> layer = nn.Linear(2, 1)
    >>> freeze(layer, {"weight": torch.ones(1, 2), "bias": torch.ones(1, requires_grad=True)})
    >>> layer.weight.requires_grad, layer.bias.requires_grad
    (False, True)
    """
    for name, p in module.named_parameters():
        found = {n: given[n] for n in (name, *_elsewhere(name)) if n in given}
        p.requires_grad_(learns(f"{type(module).__name__}.{name}", found))


def learns(name: str, parts: Mapping[str, Tensor]) -> bool:
    """Say whether the parts of a parameter learn; raise `ArgumentError` where only some do."""
    frozen = sorted(part for part, x in parts.items() if not x.requires_grad)
    if 0 < len(frozen) < len(parts):
        raise build(
            ArgumentError,
            name,
            f"all or none of {', '.join(parts)} frozen",
            f"{', '.join(frozen)} frozen alone",
            "they become one tensor, which learns or does not",
            "freeze, or let learn, all of them there and load again",
        )
    return not frozen


def _elsewhere(name: str) -> list[str]:
    """What holds a map of queries, keys and values where it is stored the other way."""
    path, _, last = name.rpartition(".")
    which, _, kind = last.partition("_")
    others = {"qkv": ("q", "k", "v"), "q": ("qkv",), "k": ("qkv",), "v": ("qkv",)}.get(which, ())
    return [f"{path}.{other}_{kind}".removeprefix(".") for other in others]
