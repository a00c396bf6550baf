"""`gradients=True`: v of each call, and the gradient of A @ v from a backward pass."""

from __future__ import annotations

import torch
from torch import Tensor

from intently.observe.recording.coverage import Coverage
from intently.observe.recording.recording import Entry
from intently.observe.storage.stores import Store
from intently.observe.watching.call import Call, operand
from intently.observe.watching.scope import alone

NO_GRAPH = (
    "the call ran without gradients: under torch.no_grad, from parameters and inputs that need "
    "none, or in a reentrant checkpoint whose backward pass ran outside of the block, or in a "
    "thread of its own as on GPUs"
)

ROUNDING = 16
"""Units in the last place, of the largest entry, by which equal operands may differ."""


class Gradients:
    """Keeps values and gradients; its hooks hold the store, not the model."""

    def __init__(self, store: Store, covered: Coverage) -> None:
        self._store, self._covered = store, covered
        self._waiting: dict[str, list[Entry]] = {}

    def keep(self, entry: Entry, call: Call) -> None:
        """Keep v now, and the gradient when it comes; raises `OSError` if the disk is full."""
        entry.values = self._store.keep(call.v)
        if not self._wait(entry, call):
            entry.ungraded = NO_GRAPH
            self._waiting.setdefault(entry.name, []).append(entry)

    def again(self, name: str, call: Call) -> None:
        """Take the graph of a call that a backward pass computes again.

        A reentrant checkpoint ran the call without a graph first; its backward pass begins with the
        last call.
        """
        waiting = self._waiting.get(name, [])
        given = operand(call.q), operand(call.k)
        for entry in reversed(waiting):
            if all(map(_close, given, entry.rows.operands())) and self._wait(entry, call):
                entry.ungraded = None
                waiting.remove(entry)
                return

    def _wait(self, entry: Entry, call: Call) -> bool:
        """Whether a gradient may come."""
        y, back = call.y if call.handed is None else call.handed, call.back
        store, covered = self._store, self._covered
        if not isinstance(y, Tensor) or not y.requires_grad:
            return False

        def keep(grad: Tensor) -> None:
            try:
                with alone(grad.device):
                    grad = grad if back is None else back(grad)
                    entry.gradient = store.own(grad, store.dtype)
            except Exception as error:  # no backward pass fails by being watched
                entry.ungraded = f"it could not be kept: {error}"
                covered.note(f"The gradient of {entry.name} was not kept: {error}")

        y.register_hook(keep)
        return True


def _close(x: Tensor, y: Tensor) -> bool:
    """Whether the first rows of an operand are y, up to rounding."""
    if x.shape[:-2] != y.shape[:-2]:
        return False
    far = (x[..., : y.shape[-2], :].to(y.dtype) - y).abs().max()
    return bool(far <= ROUNDING * torch.finfo(y.dtype).eps * y.abs().max())
