"""The first module of a model in which a property breaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.subject import Subject

Apart = Callable[[Tensor, Tensor], bool]
"""Whether the outputs of one module in two runs break the property."""


def first_module(subject: Subject, changed: Mapping[str, Any], apart: Apart) -> str:
    """The innermost module that is the first to break it, "" if none can be told.

    The subject runs twice, with its inputs as they are and ``changed``; outputs of modules are
    compared in the order in which they are made.
    """
    if subject.module is None:
        return ""
    try:
        one, two = (_outputs(subject, subject.module, x) for x in ({}, changed))
    except Exception:  # code that refuses to run so
        return ""
    if [n for n, _ in one] != [n for n, _ in two]:
        return ""
    for (name, a), (_, b) in zip(one, two):
        if a.shape == b.shape and apart(a, b):
            return name or type(subject.module).__name__
    return ""


def _outputs(
    subject: Subject, module: nn.Module, changed: Mapping[str, Any]
) -> list[tuple[str, Tensor]]:
    """What each module makes in a run, in order."""
    made: list[tuple[str, Tensor]] = []

    def keep(name: str, *call: Any) -> None:
        out = call[-1]
        first = (
            next((x for x in out if isinstance(x, Tensor)), None) if isinstance(out, tuple) else out
        )
        if isinstance(first, Tensor) and first.is_floating_point():
            made.append((name, first.detach().clone()))

    hooks = [m.register_forward_hook(partial(keep, n)) for n, m in module.named_modules()]
    try:
        with torch.no_grad():
            subject.output(**changed)
    finally:
        for hook in hooks:
            hook.remove()
    return made


def earlier_than(j: int, t: int, same: float) -> Apart:
    """Whether outputs before position j differ, of modules whose outputs are (b, t, …)."""

    def apart(a: Tensor, b: Tensor) -> bool:
        if a.ndim < 2 or a.shape[1] != t:
            return False
        return _off(a[:, :j], b[:, :j]) > same

    return apart


def of_row(row: int, batch: int, same: float) -> Apart:
    """Whether the outputs of a row of the batch differ, of modules whose outputs are (b, …)."""

    def apart(a: Tensor, b: Tensor) -> bool:
        return a.ndim > 1 and a.shape[0] == batch and _off(a[row], b[row]) > same

    return apart


def _off(a: Tensor, b: Tensor) -> float:
    size = b.abs().nan_to_num(0.0).amax().clamp(min=1e-12) if b.numel() else 1.0
    return float(((a - b).abs() / size).nan_to_num(0.0).amax()) if a.numel() else 0.0
