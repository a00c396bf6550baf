"""``intently lengths`` and ``intently alignments``: experiments that train what they compare."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intently.cli.arguments import out_folder, plain_console
from intently.corpora import load_corpus
from intently.experiments import alignments as by_alignment
from intently.experiments import lengths as by_length

if TYPE_CHECKING:
    from rich.console import Console

Out = Annotated[
    Path,
    typer.Option(
        parser=out_folder, metavar="FOLDER", help="folder of the runs, numbers and figure"
    ),
]
Seed = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="random seed (default: the recipes')")
]
Steps = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="training steps, for a trial (default: the recipes')"),
]


def lengths(
    out: Out,
    corpus: Annotated[str, typer.Option(metavar="NAME", help="language or multi30k")] = "language",
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="local copy of the corpus (default: download it)"),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, metavar="N", help="hypotheses kept per step")] = 1,
    seed: Seed = None,
    steps: Steps = None,
) -> None:
    """Train three kinds of model, and score them by sentence length.

    The models use a fixed vector, recurrent attention, and a Transformer. Finished runs in the
    folder are reused; interrupted runs resume.
    """
    systems = [system.with_flags(seed=seed, steps=steps) for system in by_length.systems(corpus)]
    first = systems[0].recipe
    text = load_corpus(first.corpus, first.source, first.target, data_dir)
    console = plain_console()
    console.print(text.credit)
    result = by_length.compare(
        systems, text, out, console, edges=by_length.EDGES[corpus], beam=beam
    )
    _tell(result, by_length, out / "lengths.png", console)


def alignments(out: Out, seed: Seed = None, steps: Steps = None) -> None:
    """Train every kind of attention, and score how well each aligns.

    Finished runs in the folder are reused; interrupted runs resume.
    """
    systems = [system.with_flags(seed=seed, steps=steps) for system in by_alignment.systems()]
    first = systems[0].recipe
    text = load_corpus(first.corpus, first.source, first.target)
    console = plain_console()
    result = by_alignment.compare(systems, text, out, console)
    _tell(result, by_alignment, out / "alignments.png", console)


def _tell(result: dict[str, Any] | None, experiment: Any, figure: Path, console: Console) -> None:
    """Print the table of a result, or how to resume an interrupted experiment."""
    if result is None:
        console.print("interrupted. The same command resumes where it stopped")
        raise typer.Exit(1)
    experiment.table(result, console)
    console.print(f"{figure} is the figure, {figure.with_suffix('.json')} holds the numbers")
