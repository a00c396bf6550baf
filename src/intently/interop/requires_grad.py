"""Copy ``requires_grad`` between libraries."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from intently.errors import ArgumentError, build


def copy_requires_grad(module: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Set ``requires_grad`` of each parameter to that of the tensors it was made of.

    ``given`` are those tensors by name, with queries, keys and values fused or separate. Raises
    `ArgumentError` where a parameter is made of frozen and trainable tensors.

    >>> import torch
    >>> layer = nn.Linear(2, 1)
    >>> bias = torch.ones(1, requires_grad=True)
    >>> copy_requires_grad(layer, {"weight": torch.ones(1, 2), "bias": bias})
    >>> layer.weight.requires_grad, layer.bias.requires_grad
    (False, True)
    """
    for name, p in module.named_parameters():
        found = {n: given[n] for n in (name, *_elsewhere(name)) if n in given}
        p.requires_grad_(learns(f"{type(module).__name__}.{name}", found))


def learns(name: str, parts: Mapping[str, Tensor]) -> bool:
    """Say whether the parts of a parameter require grad; raise `ArgumentError` if only some do."""
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
    """The names of the same projection where it is fused, or separate."""
    path, _, last = name.rpartition(".")
    which, _, kind = last.partition("_")
    others = {"qkv": ("q", "k", "v"), "q": ("qkv",), "k": ("qkv",), "v": ("qkv",)}.get(which, ())
    return [f"{path}.{other}_{kind}".removeprefix(".") for other in others]
