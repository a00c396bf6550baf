"""``intently effects``: what a model writes if heads are off or words unseen, and which heads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch
import typer

from intently import edits
from intently.cli.arguments import model_and_text
from intently.core.matrix.labelling import crosses, side
from intently.errors import ArgumentError, build
from intently.foundation.tokens import bare
from intently.observe import edit, watch
from intently.observe import effects as measured
from intently.observe.watching.naming import matches
from intently.show.labels import visible
from intently.tasks.runners.outputs import Output, output

if TYPE_CHECKING:
    from intently.observe.edits import Attending, Edit

ARROW = re.compile(r"\s*(?:→|->)\s*")
PRINTED = 100_000
"""Characters printed of an output."""


class Hidden(NamedTuple):
    """Keys that rows may not see; all rows, or the heads themselves off, where None."""

    row: str | None = None
    key: str | None = None


def effects(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [TEXT]",
            help="a folder (a translator, a language model, or one of transformers; the embedded "
            "translator if left out), and what it reads",
            show_default=False,
        ),
    ] = None,
    forbid: Annotated[
        str | None,
        typer.Option(
            metavar="'WORD → WORD'",
            help="the first word may not look at the second (-> does, too); a word alone: "
            "nothing may look at it",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="only these layers; may be given again"),
    ] = None,
    head: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="N", help="only these heads; may be given again"),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="measure the log-probability of this output, not of its own"
        ),
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="write the table")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="draw the table: PNG, SVG or PDF")
    ] = None,
) -> None:
    """Switch heads off, or hide words, and say what changes.

    Without --forbid heads are switched off. A translator translates; a language model writes its
    next token. The table has one row for each head that is changed alone, the strongest first, with
    the log-probability of the output before the change and after it.
    """
    example = 'intently effects "The animal was tired." --forbid "was → animal"'
    model, text = model_and_text(given or [], example)
    if text is None:
        fix = f"write {example}"
        raise build(ArgumentError, "TEXT", "one text in quotes", "a folder alone", fix=fix)
    found = output(model, text, score)
    changes = _changes(found, _hidden(forbid), layer, head)
    whole = forbid is not None or layer is not None or head is not None
    print(visible(found.text, PRINTED))
    if whole:
        for line in _changed(found, changes, head):
            print(line)
    print()
    table = measured(
        found.model, found.logits, found.log_probability, edits=_each(found, changes, head)
    ).strongest()
    print(repr(table))
    if csv is not None:
        table.csv(csv)
    if out is not None:
        from intently import show

        what = "heads off" if forbid is None else f"{forbid} forbidden"
        show.heatmap(table, title=f"{what}: log-probability of ‘{visible(found.text)}’", save=out)


# --- what is changed ------------------------------------------------------------------------------


def _hidden(forbid: str | None) -> Hidden:
    """The words that ``WORD → WORD`` names."""
    if forbid is None:
        return Hidden()
    words = ARROW.split(forbid.strip())
    if len(words) > 2 or not all(words):
        raise build(ArgumentError, "--forbid", "'WORD → WORD' or 'WORD'", repr(forbid))
    return Hidden(words[0], words[1]) if len(words) == 2 else Hidden(None, words[0])


def _changes(
    found: Output, hidden: Hidden, layers: Sequence[str] | None, heads: Sequence[int] | None
) -> dict[str, Callable[..., Edit]]:
    """For each layer that is to be changed what makes its edit: called with heads=…"""
    with torch.no_grad(), watch(found.model, layers=layers, store="reference") as seen:
        found.logits()
    names = list(seen)
    made: dict[str, Callable[..., Edit]] = {}
    for name in names:
        if layers is None or any(matches(name, pattern) for pattern in layers):
            across = crosses(name, names, seen.entries(name)[0].across)
            change = _change(found, hidden, name, across)
            if change is not None:
                made[name] = change
    if not made and hidden.key is not None:
        known = " ".join(map(bare, [*found.source, *(found.target or ())]))
        got = f"{hidden.key!r}" if hidden.row is None else f"{hidden.row!r} and {hidden.key!r}"
        fix = "tokens of one word are written without a space"
        cause = f"the words are {visible(known, 400)}"
        raise build(ArgumentError, "--forbid", "words that a layer reads", got, cause, fix)
    if heads is not None:
        most = max((seen.entries(name)[0].shape[-3] for name in made), default=0)
        if max(heads) >= most:
            raise build(ArgumentError, "--head", f"heads from 0 to {most - 1}", max(heads))
    return made


def _change(
    found: Output, hidden: Hidden, name: str, across: bool | None
) -> Callable[..., Edit] | None:
    """What makes the edit of one layer; None if the words are not those that it reads."""
    if hidden.key is None:
        return edits.off
    source, target = list(found.source), found.target
    if target is None or (not across and side(name) == "encoder"):
        rows, keys = source, source
    elif across:
        rows, keys = list(target), source
    else:
        rows, keys = list(target), ["", *target]  # the first key is the start of the output
    at = _places(hidden.key, keys)
    over = None if hidden.row is None else _places(hidden.row, rows)
    if not at or over == []:
        return None
    return lambda **where: edits.forbid(at, rows=over, **where)


def _places(word: str, tokens: Sequence[str]) -> list[int]:
    """Where the tokens of a word stand, all of them, wherever it occurs.

    >>> _places("unbelievable", ["▁an", "▁un", "believ", "able", "▁un"])
    [1, 2, 3]
    """
    parts = [bare(token).strip() for token in tokens]
    found: list[int] = []
    for first, part in enumerate(parts):
        last, said = first, part
        while part and len(said) < len(word) and last + 1 < len(parts):
            last += 1
            said += parts[last]
        if said == word:
            found += range(first, last + 1)
    return found


def _each(
    found: Output, changes: dict[str, Callable[..., Edit]], heads: Sequence[int] | None
) -> edits.Each:
    """The same change of each head alone."""

    def places(at: Attending) -> Iterator[tuple[dict[str, Any], Edit]]:
        for n in range(at.heads) if at.name in changes else ():
            if heads is None or n in heads:
                yield {"head": n}, changes[at.name](heads=[n])

    return edits.Each(found.model, places)


# --- what is printed ------------------------------------------------------------------------------


def _changed(
    found: Output, changes: dict[str, Callable[..., Edit]], heads: Sequence[int] | None
) -> list[str]:
    """What the output becomes if all heads are changed together, and how likely the old one is."""
    given = {name: change(heads=heads) for name, change in changes.items()}
    with torch.no_grad():
        before = float(found.log_probability(found.logits()))
        with edit(found.model, given):
            after = float(found.log_probability(found.logits()))
        with edit(found.model, given):
            made = found.write()
    fell = before - after
    how = f"{fell:.4f} nats lower" if fell >= 0 else f"{-fell:.4f} nats higher"
    numbers = f"{before:z.4f} → {after:z.4f}, {how}"
    return [f"becomes: {visible(made, PRINTED)}", f"log-probability of what it was: {numbers}"]
