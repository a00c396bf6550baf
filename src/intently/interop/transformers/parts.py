"""Parts that the families share: activations, rotary positions, tensors by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intently.interop.weights import Weights, check_options, learns, refuse
from intently.positions import Rotary
from intently.positions.scaling import DynamicNTK, Linear, Llama3, Scaling, YaRN

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}

Tensors = dict[str, Tensor | None]
"""Tensors of our block by our names; None stands for a tensor that the block must not have."""

Names = Mapping[str, str | tuple[str, str]]
"""Their names of tensors, by ours.

One of ours that ends with "." or "_" stands for a weight and, where they have one, a bias. A pair
of theirs becomes one of ours, the first above the second.
"""

HEAD: Names = {"head.": "lm_head"}
"""The head of a language model."""


class Activation(nn.Module):
    """One of the activations as a module, for heads."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of x, entry by entry."""
        return self.function(x)


def activation(name: Any) -> Callable[[Tensor], Tensor]:
    """Return the activation of a config; raise `ArgumentError` for one we do not have."""
    if name not in ACTIVATIONS:
        refuse(
            "config",
            "hidden_act",
            f"one of {', '.join(ACTIVATIONS)}",
            repr(name),
            "other activations have no counterpart",
        )
    return ACTIVATIONS[name]


def rotary(config: Any, d: int) -> Rotary:
    """Return the rotary positions of a config; raise `ArgumentError` for unknown scalings.

    Without a scaling, these families use only the base and rotate the whole head, ignoring
    ``partial_rotary_factor``; with a scaling, they rotate the whole head or fail.
    """
    given = dict(config.rope_parameters)
    kind, base = given.pop("rope_type", "default"), given.pop("rope_theta")
    if kind == "default":
        return Rotary(d, base=base)
    part = given.pop("partial_rotary_factor", None)
    take, most = given.pop, config.max_position_embeddings
    scalings: dict[str, Callable[[], Scaling]] = {
        "linear": lambda: Linear(take("factor")),
        "dynamic": lambda: DynamicNTK(take("factor"), most),
        "yarn": lambda: YaRN(
            take("factor"),
            take("original_max_position_embeddings", None) or most,
            beta_fast=take("beta_fast", None) or 32.0,
            beta_slow=take("beta_slow", None) or 1.0,
            attention=take("attention_factor", None),
            truncate=take("truncate", True),
        ),
        "llama3": lambda: Llama3(
            take("factor"),
            low=take("low_freq_factor"),
            high=take("high_freq_factor"),
            original=take("original_max_position_embeddings"),
        ),
    }
    check_options(
        "config",
        (
            "partial_rotary_factor",
            part in (None, 1),
            f"1 beside the scaling {kind!r}",
            part,
            "their own model cannot turn a part of each head",
        ),
        (
            "rope_parameters",
            kind in scalings,
            "default, linear, dynamic, yarn or llama3",
            repr(kind),
            "other scalings of rotary positions are not read",
        ),
    )
    scaling = scalings[kind]()
    left = [name for name, value in given.items() if value is not None]
    if left:
        refuse(
            "config",
            "rope_parameters",
            f"options of {kind!r} that are known",
            left,
            "the angles would differ",
        )
    return Rotary(d, base=base, scaling=scaling)


def renamed(weights: Weights, names: Names, theirs: str = "", ours: str = "") -> Tensors:
    """Take the tensors of ``names``, with a prefix before theirs and one before ours."""
    found: Tensors = {}
    for own, name in names.items():
        if isinstance(name, tuple):
            found |= _joined(weights, [f"{theirs}{half}" for half in name], f"{ours}{own}")
        elif own.endswith((".", "_")):
            found[f"{ours}{own}weight"] = weights.take(f"{theirs}{name}.weight")
            found[f"{ours}{own}bias"] = weights.optional(f"{theirs}{name}.bias")
        else:
            found[f"{ours}{own}"] = weights.take(f"{theirs}{name}")
    return found


def layers(weights: Weights, names: Names, count: int, theirs: str, ours: str = "stack") -> Tensors:
    """Take the tensors of ``count`` layers; ``names`` are those within a layer."""
    found: Tensors = {}
    for i in range(count):
        found |= renamed(weights, names, f"{theirs}.{i}.", f"{ours}.layers.{i}.")
    return found


def _joined(weights: Weights, theirs: Sequence[str], ours: str) -> Tensors:
    found: Tensors = {}
    for kind in ("weight", "bias"):
        halves = {f"{name}.{kind}": weights.optional(f"{name}.{kind}") for name in theirs}
        both = {name: x for name, x in halves.items() if x is not None}
        learns(f"{ours}{kind}", both)
        found[f"{ours}{kind}"] = torch.cat(list(both.values())) if len(both) == 2 else None
    return found
