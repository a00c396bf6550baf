"""`edit`: a context manager in which a model attends what edits say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import finalize

from torch import nn

from intently.errors import KernelError, KindError, build
from intently.observe.editing.editor import Applied, Editor
from intently.observe.edits import Edit
from intently.observe.recording.labels import Tokens
from intently.observe.watching.doors import listen
from intently.observe.watching.modules import check_module


class edit:  # noqa: N801 - used as a function: `with it.edit(model, edits.off(heads=[3])):`
    """Change what ``model`` attends while the block runs.

    ``edits`` is one edit for all layers, or a mapping from names of modules, or patterns such as
    "decoder.layers.*.self_attn", to edits. ``tokens`` are the texts by which edits name rows and
    keys, ``(source, target)`` for an encoder and a decoder. The model runs its own kernel; only the
    rows and heads that an edit names are computed again and put in place, all others stay the same
    bit for bit up to the output projection. ``str`` of what the block gets says what was computed.

    A `intently.watch` around or within keeps the edited weights, and says so. Every call is
    verified before it is changed: weights that do not give the model's output raise
    `UnverifiedError`. Raises `ArgumentError` for patterns, heads and texts that match nothing,
    `KernelError` for a compiled model, for a call that edits cannot change, with the operation that
    prevents it, and at the end of the block for an edit that changed no call, with what may have
    attended unseen.

    >>> import torch, intently as it
    >>> from intently import edits
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x = torch.ones(1, 3, 8)
    >>> with torch.no_grad(), it.edit(layer, edits.off(heads=[0])) as done:
    ...     y, _ = layer(x, x, x)
    >>> print(done)
    MultiheadAttention  1 call  off(heads=[0])
    """

    def __init__(
        self, model: nn.Module, edits: Edit | Mapping[str, Edit], *, tokens: Tokens | None = None
    ) -> None:
        check_module(model)
        self._model, self._edits, self._tokens = model, _mapping(edits), tokens
        self._editor: Editor | None = None
        self._doors = ExitStack()
        self._undo: finalize[..., edit] | None = None

    def __enter__(self) -> Edited:
        if self._editor is not None:
            fix = "write `with it.edit(model, edits):` again"
            expected, got = "one block for each edit", "one that was entered before"
            raise build(KernelError, "edit", expected, got, fix=fix)
        editor = Editor(self._model, self._edits, self._tokens)
        undo = self._doors
        self._undo = finalize(self, undo.close)
        self._undo.atexit = False
        try:
            undo.callback(editor.close)
            listen(editor, undo)
        except BaseException:
            undo.close()
            raise
        self._editor = editor
        return Edited(editor.applied)

    def __exit__(self, *raised: Any) -> None:
        editor = self._editor
        if editor is None or self._undo is None or not self._undo.alive:
            fix = "write `with it.edit(model, edits):`, which enters and leaves it"
            got = "one that was not entered, or was left"
            raise build(KernelError, "edit", "the end of a block that runs", got, fix=fix)
        left = [pattern for pattern in self._edits if pattern not in editor.used]
        unseen = editor.unseen(left) if left else {}
        self._doors.close()
        self._undo.detach()  # an interrupt before leaves it to the collector
        if editor.failed is not None and raised[1] is not editor.failed:
            raise editor.failed  # an operator of Python tells no TypeError
        if left and raised[0] is None:
            ran = ", ".join(editor.applied) or "none"
            got = "none for " + ", ".join(f"{x!r}: {self._edits[x]!r}" for x in left)
            told = (f"{name}: {why}" for name, why in unseen.items())
            cause = "; ".join([f"calls that were changed: {ran}", *told])
            fix = "watch(model) lists the layers that attend; heads and rows have to exist in them"
            raise build(KernelError, "edits", "calls that each edit changes", got, cause, fix)


class Edited(Mapping[str, Applied]):
    """What edits did, by the name of the module: which heads and rows, how they were computed."""

    def __init__(self, applied: Mapping[str, Applied]) -> None:
        self._applied = applied

    def __getitem__(self, name: str) -> Applied:
        return self._applied[name]

    def __iter__(self) -> Any:
        return iter(self._applied)

    def __len__(self) -> int:
        return len(self._applied)

    def plan(self) -> str:
        """Say what was computed again, and how."""
        return "\n".join(map(str, self._applied.values())) or "nothing was changed"

    __str__ = plan


def _mapping(edits: Any) -> dict[str, Edit]:
    found = {"*": edits} if isinstance(edits, Edit) else edits
    expected = "an edit such as edits.off(heads=[3]), or a mapping from names of modules to edits"
    if not isinstance(found, Mapping) or not found:
        raise build(KindError, "edits", expected, repr(edits))
    for x in found.values():
        if not isinstance(x, Edit):
            raise build(KindError, "edits", expected, repr(x))
    return dict(found)
