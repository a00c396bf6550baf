"""Axes and rows of inputs: where positions lie, which keys are padding, whose outputs count."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from intently.checker.calling.subject import Subject
from intently.checker.judging.sides import about


def first_row(x: Any, batch: int) -> Any:
    """The first row of the batch of an input; what has no rows as it is."""
    if isinstance(x, Tensor):
        return x[:1] if x.ndim and x.shape[0] == batch else x
    if isinstance(x, tuple) and all(isinstance(y, Tensor) for y in x):
        return tuple(first_row(y, batch) for y in x)
    return x


def padded_by(subject: Subject, name: str) -> list[str]:
    """The inputs that a mask of padding may be about."""
    where = about(subject, name)
    beside = subject.of("context", "k", "v") if where != {"self"} else []
    return beside + [n for n in subject.of("x", "ids") if "self" in where or not beside]


def nobodys(subject: Subject, y: Tensor) -> Tensor:
    """Which outputs (b, t, n) stand at padding: nobody reads them."""
    out = torch.zeros_like(y, dtype=torch.bool)
    for name, meaning in subject.meanings.items():
        if subject.main not in padded_by(subject, name) and not subject.of("q"):
            continue
        known = meaning in ("attend", "ignore", "lengths") and name in subject.inputs
        real = real_keys(subject.inputs[name], meaning, subject) if known else None
        if real is not None and tuple(real.shape) == tuple(y.shape[:2]):
            out = out | ~real[..., None]
    return out


def real_keys(mask: Any, meaning: str, subject: Subject) -> Tensor | None:
    """Which keys (b, s) of a padding mask are no padding; None if it is another mask."""
    if not isinstance(mask, Tensor):
        return None
    if meaning == "lengths":
        x = next(subject.inputs[n] for n in subject.of("context", "k", "x", "ids"))
        return torch.arange(x.shape[1]) < mask[:, None]
    real = mask != 0 if meaning == "attend" else mask == 0
    if real.ndim == 4 and real.shape[-2] == 1:
        real = real[:, 0, 0]
    return real if real.ndim == 2 and real.shape[0] == subject.batch else None
