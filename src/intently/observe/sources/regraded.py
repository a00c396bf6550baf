"""Gradients of hand-written attention that edits change.

`Follow` sees operations below autograd, where a result can be changed but not its gradient. So if
gradients flow, the edit waits until the function that multiplied weights with values returns, and
that function runs again with the edited weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

from intently.core.attention import Attention
from intently.core.matrix import LazyMatrix
from intently.observe.edits.rules import of_weights
from intently.observe.watching.call import Call
from intently.observe.watching.inputs import storage_of
from intently.observe.watching.scope import current, tell

NO_GRADIENT = "where gradients flow, edits need the weights and the output as tensors of the model"

Waiting = tuple[nn.Module | None, Callable[[], Call | str]]


class Regraded(TorchFunctionMode):
    """Tells the calls that are ``waiting`` as soon as the function that made them returns."""

    def __init__(self, source: str, waiting: list[Waiting]) -> None:
        super().__init__()
        self._source, self._waiting = source, waiting

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        again = partial(func, **(kwargs or {}))
        result = again(*args)
        while self._waiting:
            module, make = self._waiting.pop()
            made = partial(_differentiable, make, again, args, result)
            result = tell(current(), self._source, module, made, result)
        return result


def _differentiable(
    make: Callable[[], Call | str], again: Callable[..., Any], args: Any, result: Any
) -> Call | str:
    """The call of ``again(*args)``, with weights through which gradients flow."""
    call = make()
    if isinstance(call, str):
        return call
    real, y = call.real, call.y
    weights = next(_sharing(real, args), None)
    if weights is None or not isinstance(real, Tensor) or not isinstance(y, Tensor):
        return NO_GRADIENT
    if not isinstance(result, Tensor) or next(_sharing(y, result), None) is None:
        return NO_GRADIENT

    def put(edited: Tensor, matrix: LazyMatrix) -> Tensor:
        other = weights.clone()
        _part(other, real).copy_(matrix.dense())
        own = tree_map_only(Tensor, lambda x: other if x is weights else x, args)
        found, before = again(*own), _part(result, y)
        new = _part(found, y)
        new = new if torch.allclose(new, edited, rtol=1e-4, atol=1e-6) else edited
        put_in = result.clone()
        _part(put_in, y).copy_(torch.where((edited != before).any(-1, True), new, before))
        return put_in

    p = of_weights(_part(weights, real))
    given = Attention(p)
    how = replace(call.how, score=None, mask=p.mask, bias=p.bias, scale=1.0, softcap=None)
    how = replace(how, sinks=None)
    return replace(call, q=given.q, k=given.k, how=how, put=put, as_weights=None)


def _sharing(x: Any, given: Any) -> Iterator[Tensor]:
    """The tensors among those ``given`` that lie in the memory of x."""
    place = storage_of(x) if isinstance(x, Tensor) else None
    if place is not None:
        for other in tree_iter(given):
            storage = storage_of(other) if isinstance(other, Tensor) else None
            if storage is not None and storage.data_ptr() == place.data_ptr():
                yield other


def _part(x: Tensor, like: Tensor) -> Tensor:
    """The part of x that a tensor in memory of the same layout is."""
    return x.as_strided(like.shape, like.stride(), like.storage_offset())
