"""Inputs inside lists and mappings, by names of their own, and ids that are NumPy's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as tree


def unpacked(inputs: Mapping[str, Any]) -> tuple[Callable[[Any], Any], Mapping[str, Any]]:
    """Arrays that stand inside lists and mappings only, by names, and a change of code to suit."""
    if any(map(_is_array, inputs.values())):
        return lambda subject: subject, inputs
    found, spec = tree.tree_flatten_with_path(dict(inputs), is_leaf=_is_ids)
    names = [".".join(str(getattr(k, "key", getattr(k, "idx", k))) for k in p) for p, _ in found]
    leaves = {n: np.asarray(x) if _is_ids(x) else x for n, (_, x) in zip(names, found)}
    if not any(map(_is_array, leaves.values())):
        return lambda subject: subject, inputs

    def suited(subject: Any) -> Any:
        def packed(**given: Any) -> Any:
            return subject(**tree.tree_unflatten([given.get(n, leaves[n]) for n in names], spec))

        return packed

    return suited, leaves


def with_arrays(subject: Callable[..., Any], inputs: Mapping[str, Any]) -> Callable[..., Any]:
    """A module that takes whole numbers as arrays of NumPy, as one that takes tensors."""
    whole = [n for n, x in inputs.items() if isinstance(x, np.ndarray) and x.dtype.kind in "iub"]

    def fed(**given: Any) -> Any:
        arrays = {n: x.numpy() for n, x in given.items() if n in whole and isinstance(x, Tensor)}
        return subject(**{**given, **arrays})

    return fed


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype")


def _is_ids(x: Any) -> bool:
    """Whether it is a list of several whole numbers, as of token ids."""
    return isinstance(x, list) and len(x) > 1 and all(type(y) is int for y in x)
