"""What the masks of a call mean: said, documented by its library, told by values, or by trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from intently.checker.calling.changes import changed_at
from intently.checker.calling.subject import Subject

MEANINGS = (
    *("attend", "ignore", "add", "bias", "lengths", "past", "positions", "x", "context"),
    "sequence first",
)
"""What an argument may be said to mean."""
DOCUMENTED: dict[str, str] = {"torch.nn.": "ignore", "transformers.": "attend"}
"""What True means in the boolean masks of a library, by where its modules are defined."""
LOW = -1e3
"""What is added to the scores of hidden keys is at most this."""


def sequence_first(subject: Any, meanings: dict[str, str], given: Mapping[str, Any]) -> bool:
    """Whether batch comes second: said, by the layer's own ``batch_first``, or by a padding mask.

    A mask (b, t) beside an input (t, b, c) of other sizes leaves no other reading.
    """
    if "sequence first" in meanings.values():
        return True
    own = getattr(subject, "batch_first", None)
    if any(isinstance(x, Tensor) and x.ndim > 3 for x in given.values()):
        own = True
    if own is None and type(subject).__module__.startswith("torch.nn."):
        own = next((m.batch_first for m in subject.modules() if hasattr(m, "batch_first")), None)
    if own is None:
        wide = [tuple(x.shape[:2]) for x in given.values() if isinstance(x, Tensor) and x.ndim == 3]
        flat = [
            tuple(given[n].shape)
            for n, m in meanings.items()
            if m in ("attend", "ignore") and isinstance(given.get(n), Tensor) and given[n].ndim == 2
        ]
        return any(m not in wide and m[::-1] in wide and m[0] != m[1] for m in flat)
    return own is False


def with_meanings(subject: Subject, given: Any) -> Subject:
    """The subject with the meaning of each mask, and a note on how it is known."""
    meanings, notes = dict(subject.meanings), list(subject.notes)
    for name in subject.of("mask"):
        x = subject.inputs.get(name)
        if name in meanings or not isinstance(x, Tensor):
            continue
        found, how = _meaning(subject, name, x, given)
        if found is None:
            notes.append(f"what `{name}` means is not known: say it in arguments=")
            continue
        meanings[name] = found
        notes.append(f"the meaning of `{name}` is {how}")
    if subject.sequence_first:
        notes.append("called with the sequence first")
    return replace(subject, meanings=meanings, notes=tuple(notes))


def _meaning(subject: Subject, name: str, x: Tensor, given: Any) -> tuple[str | None, str]:
    if x.is_floating_point():
        low = x[x < 0]
        if bool((x <= 0).all()) and bool((low <= LOW).all()) and len(low):
            return "add", "told by its values"
        return ("bias", "told by its values") if x.ndim >= 2 else (None, "")
    if x.ndim == 1 and x.dtype != torch.bool:
        return "lengths", "told by its values"
    if given is torch.nn.functional.scaled_dot_product_attention:
        return "attend", "documented"
    home = type(given).__module__ if isinstance(given, nn.Module) else ""
    for prefix, meaning in DOCUMENTED.items():
        if home.startswith(prefix):
            return meaning, "documented"
    return _by_trial(subject, x)


def _by_trial(subject: Subject, mask: Tensor) -> tuple[str | None, str]:
    """Which inputs an output depends on, beside where the mask is True."""
    true = mask != 0
    if bool(true.all()) or not bool(true.any()):
        return None, ""
    depends = _dependence(subject)
    if depends is None:
        return None, ""
    for shape in _shapes(true, *depends.shape):
        t, s = depends.shape[1:]
        own = torch.eye(t, s, dtype=torch.bool) if t == s else torch.zeros(t, s, dtype=torch.bool)
        for meaning, allowed in (("attend", shape), ("ignore", ~shape)):
            if bool((depends <= allowed | own).all()) and bool((depends & ~own).any()):
                return meaning, "found by trial"
    return None, ""


def _dependence(subject: Subject) -> Tensor | None:
    """Which outputs (b, t) depend on which inputs (b, s), False where they do not."""
    name = next(iter(subject.of("context", "k") or subject.of("x", "ids")), None)
    beside = subject.of("v")
    if name is None:
        return None
    first = subject.output()
    if first.ndim < 3:
        return None
    x = subject.inputs[name]
    axis = 1 if x.ndim == 3 or not x.is_floating_point() else x.ndim - 2
    columns = []
    for j in range(x.shape[axis]):
        changed = {n: changed_at(subject.inputs[n], axis, j) for n in (name, *beside)}
        off = (subject.output(**changed) - first).abs().nan_to_num(1.0)
        off = off.transpose(1, 2).flatten(2) if off.ndim == 4 else off
        columns.append(off.amax(-1) > 1e-6 * first.abs().nan_to_num(0.0).amax())
    return torch.stack(columns, -1)


def _shapes(mask: Tensor, b: int, t: int, s: int) -> Iterator[Tensor]:
    """The mask as (b, t, s), in the ways in which it may be laid out."""
    if tuple(mask.shape) == (b, s):
        yield mask[:, None].expand(b, t, s)
    if tuple(mask.shape) == (t, s):
        yield mask.expand(b, t, s)
    if mask.ndim == 3 and mask.shape[0] in (1, b) and mask.shape[1:] in ((1, s), (t, s)):
        yield mask.expand(b, t, s)
    if (
        mask.ndim == 4
        and mask.shape[0] in (1, b)
        and mask.shape[1] == 1
        and mask.shape[2] in (1, t)
        and mask.shape[-1] == s
    ):
        yield mask[:, 0].expand(b, t, s)
