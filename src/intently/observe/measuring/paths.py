"""`path_effects`: what one head tells another, measured by runs on two texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from intently.errors import ArgumentError, build
from intently.foundation.checks import check_word
from intently.foundation.process import late_bar
from intently.observe.edits import Edit, replace
from intently.observe.edits.edit import Axis, Steps
from intently.observe.edits.editor import edit
from intently.observe.measuring.effects import Effects, as_number, check_functions
from intently.observe.recording.recording import Recording
from intently.observe.watching.modules import matches
from intently.observe.watching.watch import watch

Heads: TypeAlias = "Mapping[str, Steps]"
"""Heads by the names of their layers, or patterns; None for all heads of a layer."""

Read: TypeAlias = Literal["queries", "keys", "values"]
READ: tuple[Read, ...] = ("queries", "keys", "values")


def path_effects(
    model: nn.Module,
    clean: Callable[[], Any],
    corrupted: Callable[[], Any],
    score: Callable[[Any], Any],
    *,
    senders: Heads | None = None,
    receivers: Heads | None = None,
    parts: Sequence[Read] = READ,
) -> Effects:
    """Return what each sender alone changes in the score through the receivers: path patching.

    ``clean`` and ``corrupted`` run the model on two texts of one length. For each sender, a pass
    over the clean text takes that head's output from the corrupted run and those of all other heads
    from the clean one, so that only the direct path from the sender (and what lies between heads)
    changes; the ``parts`` that the receivers read in this pass are then put into a clean run, whose
    score is in the table. Without ``receivers`` the model's output is the receiver.

    Senders and receivers are heads by the names of their layers, or patterns; all heads send unless
    named. Nothing has gradients. Raises `ArgumentError` for layers that did not attend, and what
    `intently.edit` and `edits.replace` raise.

    Source: Wang et al. 2022, "Interpretability in the Wild", section 3.1; Goldowsky-Dill et al.
    2023, "Localizing Model Behavior with Path Patching".

    >>> import torch, intently as it
    >>> _ = torch.manual_seed(0)
    >>> layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> x, y = torch.randn(2, 1, 3, 8)
    >>> table = it.path_effects(
    ...     layer, lambda: layer(x, x, x)[0], lambda: layer(y, y, y)[0], lambda z: z[0, -1, 0]
    ... )
    >>> table["head"]
    [0, 1]
    """
    for part in parts:
        check_word(part, "parts", READ)
    check_functions(clean=clean, corrupted=corrupted, score=score)
    with torch.no_grad(), late_bar() as tell:
        with watch(model, gradients=True) as own:
            plain = as_number(score(clean()))
        with watch(model, gradients=True) as other:
            corrupted()
        places = _places(own, {"*": None} if senders is None else senders, "senders")
        reading = None if receivers is None else _places(own, receivers, "receivers")
        rows = []
        for n, (layer, head) in enumerate(places):
            tell("following paths", n, len(places))
            frozen = _frozen(own, other, layer, head)
            with edit(model, frozen), watch(model, gradients=True) as seen:
                made = clean()
            if reading is not None:
                with edit(model, _read(seen, reading, parts)):
                    made = clean()
            found = as_number(score(made))
            numbers = {"before": plain, "after": found, "difference": found - plain}
            rows.append({"layer": layer, "head": head, **numbers})
    return Effects(rows, ("layer", "head", "before", "after", "difference"))


def _places(seen: Recording, given: Heads, argument: str) -> list[tuple[str, int]]:
    """The layers and heads that are named."""
    found = []
    for pattern, heads in given.items():
        layers = [name for name in seen if matches(name, pattern)]
        if not layers:
            expected = f"layers that attended: {', '.join(seen)}"
            raise build(ArgumentError, argument, expected, repr(pattern))
        for name in layers:
            shape = seen.entries(name)[0].shape
            h = shape[-3] if len(shape) > 2 else 1
            chosen = Axis.of("heads", h).chosen(heads)
            found += [(name, head) for head in chosen.nonzero()[:, 0].tolist()]
    return list(dict.fromkeys(found))


def _frozen(own: Recording, other: Recording, layer: str, head: int) -> dict[str, Edit]:
    """All heads as in the clean run, but the sender as in the corrupted one."""
    found: dict[str, Edit] = {name: replace(own, "outputs") for name in own}
    found[layer] = found[layer] & replace(other, "outputs", heads=[head])
    return found


def _read(
    seen: Recording, reading: Sequence[tuple[str, int]], parts: Sequence[Read]
) -> dict[str, Edit]:
    """What receivers read, as in another pass."""
    found: dict[str, Edit] = {}
    for layer in dict.fromkeys(name for name, _ in reading):
        heads = [head for name, head in reading if name == layer]
        for part in parts:
            one = replace(seen, part, heads=heads)
            found[layer] = found[layer] & one if layer in found else one
    return found
