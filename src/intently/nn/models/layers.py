"""Factories of the models' layers, and checks of their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from intently.errors import KindError, build
from intently.foundation.checks import check_kind, probability, whole_number
from intently.nn.feed_forward import FeedForward
from intently.nn.options import AttentionOptions
from intently.nn.projected import Projections

Factory = Callable[[int], nn.Module]
"""Makes a part of a layer from the model width c: ``nn.LayerNorm``, ``nn.RMSNorm``, `mlp`."""


@dataclass(frozen=True)
class _FeedForwards:
    """Makes feed-forward layers; a class, so that models that hold one can be pickled."""

    inner: int | None
    activation: Callable[[Tensor], Tensor]

    def __call__(self, width: int) -> FeedForward:
        inner = 4 * width if self.inner is None else self.inner
        return FeedForward(width, inner, activation=self.activation)


def mlp(inner: int | None = None, activation: Callable[[Tensor], Tensor] = F.gelu) -> Factory:
    """Return a factory of feed-forward layers, ``inner`` (4c unless given) wide inside.

    >>> mlp()(8).up.out_features
    32
    """
    return _FeedForwards(inner, activation)


FOURFOLD = mlp()
"""GELU inside, four times as wide as the model: Radford et al. 2019 and Dosovitskiy et al. 2021."""


def check_options(options: Any) -> None:
    """Raise for invalid options that all layers of a model share: sizes, factories, values."""
    o = options
    for name, least in (("width", 1), ("heads", 1), ("layers", 0)):
        whole_number(getattr(o, name), name, least)
    for name in ("norm", "feed_forward"):
        factory = getattr(o, name)
        if isinstance(factory, nn.Module) or not callable(factory):
            raise build(
                KindError,
                name,
                "a function that makes the part from the width c",
                type(factory).__name__,
                fix="write nn.RMSNorm, say, not nn.RMSNorm(c)",
            )
    for name, kind in (("attention", AttentionOptions), ("projections", Projections)):
        check_kind(getattr(o, name), kind, name, f"intently.nn.{kind.__name__}(…)")
    probability(o.dropout, "dropout")
