"""``intently watch``: the attention of every head on a text, and the content of a recording."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from intently.cli.arguments import Layers, model_and_text
from intently.errors import ArgumentError, build
from intently.observe import load_recording
from intently.observe.recording.coverage import aligned
from intently.observe.recording.labels import sides
from intently.observe.recording.recording import Entry
from intently.runners.texts import runner
from intently.runners.watched import check_seen, unsure
from intently.show.labels import visible

SHOWN = 12
"""Tokens of a recording listed."""


def watch(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL] [TEXT]",
            help="a folder (a translator, a language model, or one of transformers; the embedded "
            "translator if left out), and what it reads",
            show_default=False,
        ),
    ] = None,
    layers: Layers = None,
    beam: Annotated[
        int, typer.Option(min=1, help="of our translators: hypotheses followed at once")
    ] = 1,
    save: Annotated[Path | None, typer.Option(help="write the recording, as safetensors")] = None,
    listed: Annotated[
        Path | None, typer.Option("--list", metavar="FILE", help="list the content of a recording")
    ] = None,
) -> None:
    """Run a model on a text and print what each head attends to.

    The model runs unchanged; the table is checked against the model's outputs. From a transformers
    folder, only safetensors are read, and none of its code is run.
    """
    if listed is not None:
        if given or layers or save:
            raise build(ArgumentError, "--list", "a recording alone", "something to watch, too")
        print(_listing(listed))
        return
    example = 'intently watch "The road was too wide.", or intently watch MODEL "a text"'
    model, text = model_and_text(given or [], example)
    if text is None:
        fix = f"write {example}"
        raise build(ArgumentError, "TEXT", "one text in quotes", "a folder alone", fix=fix)
    found = runner(model)(model, text, layers, beam)
    check_seen("watch", found.seen)
    if save is not None:
        found.seen.save(save)
    table = found.seen.summary()
    for line in (*found.told, table, *unsure(found.seen, table.left_out)):
        print(line)
    if save is not None:
        again = f"it.load_recording({str(save)!r})"
        print(f"{save}: {save.stat().st_size:,} bytes. In Python: {again}", file=sys.stderr)


# --- what is printed ------------------------------------------------------------------------------


def _listing(path: Path) -> str:
    """Return the content of a recording, one line for each call."""
    seen = load_recording(path)
    said = [
        f"{path}: {_count(len(seen), 'layer')}, {_count(len(seen.calls), 'call')}, "
        f"{path.stat().st_size:,} bytes"
    ]
    for side in filter(len, sides(seen.tokens)):
        shown = " ".join(visible(token) for token in side[:SHOWN])
        said.append(f"{_count(len(side), 'token')}: {shown}{' …' * (len(side) > SHOWN)}")
    rows = [("layer", "call", "b×h×t×s", "dtype", "source", "bytes", "verified")]
    rows += [_row(entry) for entry in seen.calls]
    return "\n".join([*said, *aligned(rows, right=(1, 5)), *unsure(seen)])


def _row(entry: Entry) -> tuple[str, ...]:
    matrix = entry.attention()
    verdict = {True: "yes", False: "NO", None: "not compared"}[entry.verified]
    size = sum(x.nbytes for x in matrix.problem.tensors())
    return (
        visible(entry.name, 200),
        str(entry.index),
        "×".join(map(str, matrix.shape)),
        str(matrix.dtype).removeprefix("torch."),
        visible(entry.source),
        f"{size:,}",
        verdict,
    )


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"
