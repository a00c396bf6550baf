"""Edits as people write them without `it.edit`: hooks on a model's plain attention formula."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PROJECTIONS = ("c_proj", "o_proj", "out_proj", "o")
"""Names of the output projection within a module that attends."""


@dataclass
class Run:
    """What one module attended: q (b, h, t, d), k, v, weights (b, h, t, s), y (b, h, t, e)."""

    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    y: Tensor


@contextmanager
def formula(model: Any, name: str, change: Callable[..., Any]) -> Iterator[None]:
    """Run the plain formula, for one module as ``change(formula, q, k, v, mask, kwargs)``."""
    attention = model.get_submodule(name)
    file: Any = sys.modules[type(attention).__module__]
    plain, before = file.eager_attention_forward, model.config._attn_implementation

    def hooked(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        *a: Any,
        **k: Any,
    ) -> Any:
        def run(q: Tensor, k_: Tensor, v: Tensor, mask: Any) -> Any:
            return plain(module, q, k_, v, mask, *a, **k)

        if module is attention:
            return change(run, query, key, value, attention_mask)
        return run(query, key, value, attention_mask)

    model.set_attn_implementation("eager")
    file.eager_attention_forward = hooked
    try:
        yield
    finally:
        file.eager_attention_forward = plain
        model.set_attn_implementation(before)


def captured(model: Any, name: str, run: Callable[[], Any]) -> Run:
    """What one module attends while the model runs."""
    found: list[Run] = []

    def keep(plain: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        y, weights = plain(q, k, v, mask)
        found.append(Run(q, k, v, weights, y.transpose(1, 2)))
        return y, weights

    with torch.no_grad(), formula(model, name, keep):
        run()
    return found[-1]


@contextmanager
def outputs(model: Any, name: str, over: Tensor, given: Tensor | float) -> Iterator[None]:
    """Give the rows ``over`` (h, t) outputs (b, h, t, e), by a hook on the output projection."""
    attention = model.get_submodule(name)
    projection = next((getattr(attention, x) for x in PROJECTIONS if hasattr(attention, x)), None)
    if projection is None:  # BERT's is beside it
        projection = model.get_submodule(name.rpartition(".")[0]).output.dense

    def before(module: Any, args: tuple[Tensor, ...]) -> Any:
        y = args[0].unflatten(-1, (len(over), -1))
        new = given.transpose(1, 2) if isinstance(given, Tensor) else given
        y = torch.where(over.T[..., None], torch.as_tensor(new, dtype=y.dtype), y)
        return (y.flatten(-2), *args[1:])

    hook = projection.register_forward_pre_hook(before)
    kept = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        hook.remove()
        model.set_attn_implementation(kept)


def hidden(model: Any, name: str, cells: Tensor) -> Any:
    """Hide ``cells`` (h, t, s): −∞ is added to their scores."""

    def hide(plain: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        added = torch.zeros(cells.shape, dtype=q.dtype).masked_fill(cells, -torch.inf)
        return plain(q, k, v, added if mask is None else mask + added)

    return formula(model, name, hide)


def operands(model: Any, name: str, over: Tensor, other: Run, part: str) -> Any:
    """Take queries, keys or values of the rows ``over`` (h or g, steps) from another run."""

    def take(plain: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        given = {"queries": q, "keys": k, "values": v}
        theirs = {"queries": other.q, "keys": other.k, "values": other.v}
        given[part] = torch.where(over[..., None], theirs[part], given[part])
        return plain(*given.values(), mask)

    return formula(model, name, take)


def weighed(model: Any, name: str, over: Tensor, given: Tensor) -> Any:
    """Take the weights (b, h, t, s) that are given in the rows ``over`` (h, t)."""

    def weigh(plain: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        _, weights = plain(q, k, v, mask)
        weights = torch.where(over[..., None], given, weights)
        v = v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
        return (weights @ v).transpose(1, 2), weights

    return formula(model, name, weigh)
