"""What an operation makes of scores, or of the weights made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from intently.observe.sources.followed import Lost, Scores, Stage

NO_PRODUCT = "the scores of its softmax are no product of queries and keys"
NOT_THEIR_SUM = "exponentials of scores are divided by something that is not their sum"
MIXES = ("weights", "exponentials")
BECOMES: dict[tuple[Stage, str], Stage] = {
    ("scores", "_softmax"): "weights",
    ("scores", "_safe_softmax"): "weights",
    ("scores", "_log_softmax"): "logarithms",
    ("scores", "exp"): "exponentials",
    ("scores", "exp2"): "exponentials",
    ("logarithms", "exp"): "weights",
}
_VIEWS = ("view", "_unsafe_view", "reshape", "expand", "squeeze", "unsqueeze")
_MOVES = ("permute", "transpose", "t")
_CHANGES = ("native_dropout", "masked_fill", "where", "mul", "div", "add", "sub", "neg", "tanh")
_SAME = ("clone", "detach", "alias", "_to_copy", "lift_fresh", "nan_to_num")
_PARTS = ("cat", "stack", "slice", "select", "split", "split_with_sizes", "unbind", "index")
GOES_ON = frozenset((*_SAME, *_VIEWS, *_MOVES, *_CHANGES, *_PARTS))
_CHOOSES = ("topk", "sort", "max", "gather")


def after(
    name: str, found: Scores | Lost, at: int, args: Any, kwargs: Any, outs: Sequence[Tensor]
) -> Scores | Lost | None:
    """The scores, or the weights made of them, after an operation; None if it ends them."""
    stage: Stage = found.stage
    becomes = BECOMES.get((stage, name), stage)
    axes: tuple[int, ...] = ()
    if becomes == "exponentials" and stage == "scores":  # of scores less their logsumexp
        axes = axes_of_ones(outs[0], max(1e-4, 4 * torch.finfo(outs[0].dtype).eps), least=2)
    elif stage == "exponentials" and name in ("div", "mul"):
        axes = axes_of_ones(outs[0])
    if axes:
        becomes = "weights"
    if isinstance(found, Lost):
        if becomes != stage:
            return Lost(found.why, becomes)
        if stage == "exponentials" and name == "div":
            return Lost(NOT_THEIR_SUM, stage)
        return found if stage in MIXES or name in GOES_ON else None
    try:
        if becomes == "exponentials" == stage and name in ("div", "mul"):
            return _divided(name, found, at, args)
        if (stage, name) in BECOMES or axes or "softmax" in name:
            scores = found.powers_of_two() if name == "exp2" else found
            axes = (args[1],) if "softmax" in name else axes
            return scores.over_keys(axes, becomes) if axes else replace(scores, stage=becomes)
        return _step(name, found, at, args, kwargs, outs[0])
    except Lost as lost:
        where = "" if "aten." in lost.why else f" (aten.{name})"
        return Lost(lost.why + where, becomes)
    except Exception as error:  # whatever a model does to its scores
        return Lost(f"{type(error).__name__} in aten.{name}: {error}", becomes)


def _divided(name: str, found: Scores, at: int, args: Any) -> Scores:
    """Exponentials times or by something that does not make them sum to 1."""
    other = args[1 - at]
    if name == "div":
        raise Lost(NOT_THEIR_SUM)
    return found.weighed(other)


def as_they_are(lost: Lost, name: str, args: Any, weights: Tensor) -> Scores | Lost:
    """The weights of a softmax whose scores went out of sight."""
    axes = (args[1],) if name.endswith("softmax") else axes_of_ones(weights)
    if not axes:
        return lost
    try:
        return replace(Scores.given(weights, *axes), why=lost.why)
    except Lost as other:
        return Lost(other.why, "weights")


def axes_of_ones(weights: Tensor, gap: float = 0.02, least: int = 1) -> tuple[int, ...]:
    """The axes along which weights sum to 1, none if there are none; hidden rows are 0 or NaN.

    There are ``least`` weights to a row.
    """
    n = weights.ndim
    single = [(axis,) for axis in range(-1, -n - 1, -1)]
    several = [axes for axes in ((-2, -1), (-3, -2), (-3, -2, -1)) if n > -axes[0]]
    for axes in (*single, *several):
        sums = weights.sum(axes)
        some = weights.numel() >= max(1, least * sums.numel()) and bool((sums > 0).any())
        if some and bool(((sums - 1).abs() <= gap).logical_or_(~(sums > 0)).all()):
            return axes
    return ()


def leaves(name: str, args: Any, at: int, out: Tensor) -> bool:
    """Whether weights are lost: selected from, or mixed with values entry by entry."""
    weights = args[at]
    if name in _CHOOSES or not isinstance(weights, Tensor):
        return name in _CHOOSES
    others = [x for x in args if isinstance(x, Tensor) and x.numel() > weights.numel()]
    return bool(others) and out.numel() > weights.numel()


def _step(name: str, found: Scores, at: int, args: Any, kwargs: Any, out: Tensor) -> Scores:
    """The scores after an operation on them as its argument ``at``; raises `Lost`."""
    if name in _VIEWS:
        return found.viewed(tuple(out.shape))
    if name in _SAME:
        return found
    if name in _MOVES:
        return found.permuted(_order(name, args, out.ndim))
    if name == "slice" and found.stage == "weights":
        return found.cut(args[1] if len(args) > 1 else 0, out.shape, *args[2:])
    what = {"exponentials": "exponentials of scores", "logarithms": "logarithms of weights"}
    passes = f"{what.get(found.stage, found.stage)} pass through aten.{name}"
    if not isinstance(args[at], Tensor) or out.shape != args[at].shape:
        raise Lost(passes)
    if name == "native_dropout":
        on = args[2] is None or args[2]
        return replace(found, dropout=args[1]) if on and found.stage == "weights" else found
    if name == "masked_fill":
        return found.hidden(args[1], args[2])
    if name == "where" and at > 0:
        return found.hidden(~args[0] if at == 1 else args[0], args[3 - at])
    if name == "mul" and found.stage == "weights":
        return replace(found, dropout=_dropped(args[1 - at]))
    other: Any = args[1 - at] if len(args) > 1 and at < 2 else None
    if found.stage == "scores":
        if name == "mul":
            return found.times(other)
        if name == "div" and at == 0 and not kwargs.get("rounding_mode"):
            return found.times(1 / other)
        if name == "add":
            return found.plus(other, kwargs.get("alpha", 1) if at == 0 else 1)
        if name == "sub" and at == 0:
            return found.plus(other, -kwargs.get("alpha", 1))
        if name == "neg":
            return found.times(-1)
        if name == "tanh":
            return found.bounded()
    raise Lost(passes)


def _dropped(factor: Any) -> float:
    """The dropout that a tensor of zeros and 1 / (1 − p) stands for."""
    top = float(factor.max()) if isinstance(factor, Tensor) and factor.numel() else 0.0
    if top <= 1 or bool(((factor != 0) & (factor != factor.max())).any()):
        raise Lost("weights are multiplied with something that is not dropout")
    return 1 - 1 / top


def _order(name: str, args: Any, n: int) -> list[int]:
    """For each axis of the result, the axis of the argument."""
    if name == "permute":
        return [axis % n for axis in args[1]]
    order = list(range(n))
    i, j = args[1:3] if name == "transpose" else (0, n - 1)
    order[i], order[j] = order[j], order[i]
    return order
