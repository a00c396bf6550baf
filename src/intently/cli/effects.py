"""``intently effects``: what a model writes if heads are off or words unseen, and which heads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import torch

from intently import edits
from intently.cli.arguments import ModelAndText, model_with_text, option
from intently.core.matrix.labelling import crosses, side
from intently.errors import ArgumentError, build
from intently.foundation.tokens import bare
from intently.observe import edit, watch
from intently.observe import effects as measured
from intently.observe.watching.modules import matches
from intently.show.labels import visible
from intently.tasks.runners import OUTPUT, ModelOutput, output

if TYPE_CHECKING:
    from intently.observe.edits import Attending, Edit

    Changes = dict[str, Callable[..., Edit]]
    """For each layer what makes its edit: called with heads=…"""

ARROW = re.compile(r"\s*(?:→|->)\s*")


class Hidden(NamedTuple):
    """Keys that rows may not see; all rows, or the heads themselves off, where None."""

    row: str | None = None
    key: str | None = None


def effects(
    given: ModelAndText = None,
    forbid: Annotated[
        str | None,
        option(
            "'WORD → WORD'",
            "the first word may not look at the second (-> does, too); a word alone: "
            "nothing may look at it",
        ),
    ] = None,
    layer: Annotated[
        list[str] | None, option("PATTERN", "only these layers; may be repeated")
    ] = None,
    head: Annotated[
        list[int] | None, option("N", "only these heads; may be repeated", min=0)
    ] = None,
    score: Annotated[
        str | None, option("TEXT", "measure the log-probability of this output, not of its own")
    ] = None,
    against: Annotated[
        str | None, option("TEXT", "measure the logit difference to this output")
    ] = None,
    csv: Annotated[Path | None, option("FILE", "write the table")] = None,
    out: Annotated[Path | None, option("FILE", "draw the table: PNG, SVG or PDF")] = None,
) -> None:
    """Switch heads off, or hide words, and say what changes.

    Without --forbid heads are switched off. A translator translates; a language model writes its
    next token. The table has one row for each head that is changed alone, the strongest first, with
    the log-probability of the output, or its logit difference to another, before the change and
    after it.
    """
    example = 'intently effects "The animal was tired." --forbid "was → animal"'
    run = output(*model_with_text(given, example), score)
    changes = _changes(run, _hidden(forbid), layer, head)
    measure = run.log_probability if against is None else run.over(against)
    what = "log-probability" if against is None else f"logit difference to ‘{visible(against)}’"
    print(visible(run.text, OUTPUT))
    if forbid or layer or head:
        together = {name: change(heads=head) for name, change in changes.items()}
        _print_all_at_once(run, together, measure, what)
    print()

    def alone(at: Attending) -> Iterator[tuple[dict[str, Any], Edit]]:
        for n in range(at.heads) if at.name in changes else ():
            if head is None or n in head:
                yield {"head": n}, changes[at.name](heads=[n])

    each = edits.Each(run.model, alone)
    table = measured(run.model, run.logits, measure, edits=each).strongest()
    print(repr(table))
    if csv is not None:
        table.csv(csv)
    if out is not None:
        from intently import show

        how = "heads off" if forbid is None else f"{forbid} forbidden"
        show.heatmap(table, title=f"{how}: {what} of ‘{visible(run.text)}’", save=out)


def _print_all_at_once(
    run: ModelOutput, changed: dict[str, Edit], measure: Callable[[Any], Any], what: str
) -> None:
    """Print what the output becomes under all edits together, and how likely the old one is."""
    with torch.no_grad():
        before = float(measure(run.logits()))
        with edit(run.model, changed):
            after = float(measure(run.logits()))
        with edit(run.model, changed):
            print(f"becomes: {visible(run.write(), OUTPUT)}")
    fell = before - after
    difference = f"{abs(fell):.4f} nats {'lower' if fell >= 0 else 'higher'}"
    print(f"{what} of what it was: {before:z.4f} → {after:z.4f}, {difference}")


# --- what is changed ------------------------------------------------------------------------------


def _hidden(forbid: str | None) -> Hidden:
    """Return the words that ``WORD → WORD`` names."""
    if forbid is None:
        return Hidden()
    words = ARROW.split(forbid.strip())
    if len(words) > 2 or not all(words):
        raise build(ArgumentError, "--forbid", "'WORD → WORD' or 'WORD'", repr(forbid))
    return Hidden(*words) if len(words) == 2 else Hidden(None, words[0])


def _changes(
    run: ModelOutput, hidden: Hidden, layers: Sequence[str] | None, heads: Sequence[int] | None
) -> Changes:
    """Return the changes of all layers that attend to the hidden words."""
    with torch.no_grad(), watch(run.model, layers=layers, store="reference") as seen:
        run.logits()
    names = list(seen)
    changes: Changes = {}
    for name in names:
        if layers is None or any(matches(name, pattern) for pattern in layers):
            across = crosses(name, names, seen.entries(name)[0].across)
            change = _change(run, hidden, name, across)
            if change is not None:
                changes[name] = change
    if not changes and hidden.key is not None:
        known = " ".join(map(bare, [*run.source, *(run.target or ())]))
        got = f"{hidden.key!r}" if hidden.row is None else f"{hidden.row!r} and {hidden.key!r}"
        fix = "tokens of one word are written without a space"
        cause = f"the words are {visible(known, 400)}"
        raise build(ArgumentError, "--forbid", "words that a layer reads", got, cause, fix)
    if heads is not None:
        most = max((seen.entries(name)[0].shape[-3] for name in changes), default=0)
        if max(heads) >= most:
            raise build(ArgumentError, "--head", f"heads from 0 to {most - 1}", max(heads))
    return changes


def _change(
    run: ModelOutput, hidden: Hidden, name: str, across: bool | None
) -> Callable[..., Edit] | None:
    """Return what makes the edit of one layer; None if the words are not those that it reads."""
    if hidden.key is None:
        return edits.off
    rows = keys = list(run.source)
    if run.target is not None and (across or side(name) != "encoder"):
        rows = list(run.target)
        keys = keys if across else ["", *rows]  # the first key is the start of the output
    forbidden = _places(hidden.key, keys)
    looking = None if hidden.row is None else _places(hidden.row, rows)
    if not forbidden or looking == []:
        return None
    return lambda **where: edits.forbid(forbidden, rows=looking, **where)


def _places(word: str, tokens: Sequence[str]) -> list[int]:
    """Return the places of the tokens of a word, wherever it occurs.

    >>> _places("unbelievable", ["▁an", "▁un", "believ", "able", "▁un"])
    [1, 2, 3]
    """
    pieces = [bare(token).strip() for token in tokens]
    places: list[int] = []
    for first, joined in enumerate(pieces):
        last = first
        while pieces[first] and len(joined) < len(word) and last + 1 < len(pieces):
            last += 1
            joined += pieces[last]
        if joined == word:
            places += range(first, last + 1)
    return places
