"""`watch`: a context manager that keeps what a model attends, and changes nothing."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Literal
from weakref import finalize

import torch
from torch import nn

from intently.errors import KernelError, build
from intently.observe.recording.labels import Tokens
from intently.observe.recording.recording import Recording
from intently.observe.watching.doors import FIX_COMPILED, listen
from intently.observe.watching.recorder import COMPILED, Recorder


class watch:  # noqa: N801 - used as a function: `with it.watch(model) as seen:`
    """Keep the queries and keys of every attention of ``model`` while the block runs.

    Without a model, all attention of this thread or task is kept. ``layers`` are names of modules
    or patterns such as "decoder.layers.*.self_attn" (a name includes all modules in it); ``tokens``
    label the matrices, ``(source, target)`` the two sides of an encoder and decoder, a list of
    these the rows of a batch, without padding, a tokenizer (of transformers, or ours) the ids that
    the model is called with, less those that its mask hides; ``store`` is "copy" (own copies of q
    and of new key rows), "reference" (the tensors themselves, refused once they were changed in
    place) or "disk" (a temporary file that is mapped into memory); ``dtype`` is a floating-point
    type to store in; ``gradients`` keeps v, and after a backward pass the gradient of the output.

    Attention that is written by hand is followed in the modules whose code makes weights; ``deep``
    follows every operation of the model, which makes it slower. Where queries and keys do not give
    the weights (b, h, t, s), the weights that met the values are kept, ``budget`` bytes at most,
    but in a file; calls beyond it are left out, and `Recording.coverage` names them.

    Outputs are the same bit for bit. With ``deep`` every operation passes through Python; the last
    bits differ if PyTorch picks another kernel because of that. A generator that holds a watch open
    shares it, while it waits, with whoever runs it, like `torch.no_grad`. A watch that is dropped
    without being left is undone when it is collected. Raises `ArgumentError` with the nearest names
    for patterns that match nothing, and `KernelError` for a compiled model, whose calls cannot be
    seen, for a watch that is entered twice, and for one that is left without being entered.

    >>> import torch, intently as it
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> x = torch.zeros(1, 3, 8)
    >>> with it.watch() as seen:
    ...     y = it.attention(x, x, x, mask=it.causal())
    >>> seen["attention"].dense()
    tensor([[[1.0000, 0.0000, 0.0000],
             [0.5000, 0.5000, 0.0000],
             [0.3333, 0.3333, 0.3333]]])
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        layers: str | Sequence[str] | None = None,
        tokens: Tokens | Any = None,
        store: Literal["copy", "reference", "disk"] = "copy",
        dtype: torch.dtype | None = None,
        gradients: bool = False,
        budget: int = 2 * 2**30,
        deep: bool = False,
    ) -> None:
        self._options = (model, layers, tokens, store, dtype, gradients, budget, deep)
        self._model, self._deep = model, deep
        self._recorder: Recorder | None = None
        self._doors = ExitStack()
        self._undo: finalize[..., watch] | None = None

    def __enter__(self) -> Recording:
        if self._recorder is not None:
            expected, got = "one block for each watch", "one that was entered before"
            fix = "write `with it.watch(model) as seen:` again"
            raise build(KernelError, "watch", expected, got, fix=fix)
        recorder, undo = Recorder(*self._options), self._doors
        self._undo = finalize(self, undo.close)  # also where it is dropped and never left
        self._undo.atexit = False
        try:
            undo.callback(recorder.close)
            listen(recorder, undo)
            if self._deep:
                from intently.observe.sources import by_hand

                undo.enter_context(by_hand.following(whole=True))
        except BaseException:
            undo.close()
            raise
        self._recorder = recorder
        return recorder.recording

    def __exit__(self, *raised: Any) -> None:
        if self._recorder is None or self._undo is None or not self._undo.alive:
            got = "one that was not entered" if self._recorder is None else "one that was left"
            fix = "write `with it.watch(model) as seen:`, which enters and leaves it"
            raise build(KernelError, "watch", "the end of a block that runs", got, fix=fix)
        self._doors.close()
        self._undo.detach()  # an interrupt before leaves it to the collector
        if not self._recorder.ran_compiled or raised[0] is not None:
            return
        if self._recorder.recording.calls:  # other modules attended, too
            warnings.warn(COMPILED, stacklevel=2)
            return
        expected, got = "attention that runs module by module", "none that could be seen"
        raise build(KernelError, "watch", expected, got, COMPILED, FIX_COMPILED)
