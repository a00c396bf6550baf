"""``intently train`` and ``intently recipes``: a translator from files, or by a recipe."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from intently import recipes as known
from intently import show
from intently.cli.arguments import out_folder, plain_console, with_flags
from intently.cli.evaluate import judge, write
from intently.corpora import Corpus, ParallelText
from intently.corpora.files import read_parallel
from intently.errors import ArgumentError, DataError, build
from intently.models.kinds import new_model
from intently.recipes.origin import Origin, keeping
from intently.training import TrainingOptions, display
from intently.training.checkpoint import Checkpoints
from intently.training.processes import Processes, joined
from intently.training.writer import sole_writer
from intently.translation.links import links_of, read_links
from intently.translation.runs import DEV_SENTENCES, WRITES, fit
from intently.translation.translator import Translator

if TYPE_CHECKING:
    from rich.console import Console


def recipes(
    name: Annotated[
        str | None, typer.Argument(help="print this recipe's TOML, as a template")
    ] = None,
) -> None:
    """List the recipes of `intently train --recipe`, or print one."""
    from rich.console import Console
    from rich.table import Table

    if name is not None:
        print(known.recipe_text(name), end="")
        return
    console = Console(soft_wrap=not sys.stdout.isatty())
    listed = Table(box=None, pad_edge=False)
    listed.add_column("recipe", no_wrap=True)
    listed.add_column("parameters", justify="right", no_wrap=True)
    listed.add_column("steps", justify="right", no_wrap=True)
    listed.add_column("about", no_wrap=not sys.stdout.isatty())
    for each in known.recipes():
        size = f"≈ {_parameters(each.options) / 1e6:.1f} M"
        listed.add_row(each.name, size, f"{each.options.schedule.steps:,}", each.about)
    console.print(listed)
    console.print("\nintently recipes NAME prints one: its corpus, its options and what it reached")


def _parameters(options: TrainingOptions) -> int:
    """Return the number of parameters with vocabularies of the largest size."""
    import torch

    with torch.device("meta"):
        model = new_model(options.shape(options.text.source_size, options.text.target_size))
    return sum(parameter.numel() for parameter in model.parameters())


class Work(NamedTuple):
    """A training run: the text, the dev set, the options, and the test sets."""

    text: ParallelText
    dev: ParallelText
    options: TrainingOptions
    tests: Mapping[str, ParallelText]


OFTEN = (
    *("model", "width", "encoder_layers", "decoder_layers", "dropout", "steps", "seconds"),
    *("learning_rate", "batch_tokens", "device", "threads"),
)


@with_flags(TrainingOptions.flags(), OFTEN)
def train(
    source: Annotated[Path | None, typer.Argument(help="source sentences, or a TSV")] = None,
    target: Annotated[Path | None, typer.Argument(help="target sentences")] = None,
    *,
    out: Annotated[Path, typer.Option(parser=out_folder, help="the folder of the run")],
    recipe: Annotated[
        str | None, typer.Option(help="corpus and options in place of SOURCE")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="a local copy of its corpus; none: it is downloaded")
    ] = None,
    dev: Annotated[tuple[Path, Path] | None, typer.Option(help="dev SOURCE TARGET")] = None,
    guide: Annotated[
        Path | None,
        typer.Option(help="word links (Pharaoh), or a trained run, that teach one head"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="options as TOML")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run")] = False,
    resume_from: Annotated[
        str | None, typer.Option(help="resume from this checkpoint, not the latest")
    ] = None,
    **flags: Any,
) -> None:
    """Train a translator on your files, or with a recipe.

    Files are two line-parallel texts or one TSV, gzip or not. A recipe names its corpus and its
    options; flags override the options. `intently recipes` lists the recipes.
    """
    again = resume_from or resume
    with joined(out) as here, sole_writer(out, WRITES) as writer:
        console = plain_console(quiet=not here.first)
        begun = here.from_first(partial(Checkpoints(out / "checkpoints").begun, again))
        if again and not begun:
            console.print(f"{out} has no checkpoint to resume from: a new run begins")
        here.device(flags["device"] or "auto")  # refused before the corpus is read
        kept = here.from_first(partial(Origin.load, out)) if again else None
        if source is not None and not begun:
            kept = None  # of a run without checkpoints
        origin = here.from_first(partial(_origin, recipe, kept))
        if origin is None:
            if source is None and begun:
                raise build(
                    ArgumentError,
                    "SOURCE",
                    f"the files that the run in {out} is trained on",
                    "none",
                    fix="give the command that began it, with --resume",
                )
            if source is None:
                fix = "see them by intently recipes"
                expected = "source sentences, or --recipe NAME"
                raise build(ArgumentError, "SOURCE", expected, "neither", fix=fix)
            _refuse({"--data-dir": data_dir}, "none without a recipe: SOURCE is a file")
            work = _from_files(source, target, dev, config, guide, flags, console)
        else:
            files = {"SOURCE": source, "--dev": dev and dev[0], "--config": config}
            _refuse(files, "none beside a recipe, which names its corpus and its options")
            origin = origin.read_from(data_dir)
            stored = out / "options.json" if again and recipe is None else None
            work = _from_corpus(here, origin, stored, guide, flags, console)
        if len(work.dev) > DEV_SENTENCES:
            console.print(f"the first {DEV_SENTENCES} of {len(work.dev):,} dev pairs are used")
        with display(console) as progress:
            run = fit(
                work.text,
                work.options,
                out,
                dev=work.dev,
                progress=keeping(origin, out, progress),
                resume=again,
            )
        if writer is not None:
            writer.check()
        if run.history.records and here.first:
            show.training(run.history.rows(), save=out / "training.png")
        if run.history.stopped == "interrupted":
            console.print(
                f"interrupted; {out}/model is the best so far. "
                "Resume with the same command and --resume"
            )
            here.wait()  # torchrun kills late processes
            raise typer.Exit(1)
        if origin is not None and here.first:
            _judge(run.translator, origin, work, out, console)
        drawn = f", its learning curves are {out}/training.png" if run.history.records else ""
        console.print(
            f"the translator is in {out}/model{drawn}. Now try:\n  intently translate {out} TEXT"
        )


def _refuse(given: dict[str, Path | None], expected: str) -> None:
    for argument, value in given.items():
        if value is not None:
            raise build(
                ArgumentError,
                argument,
                expected,
                str(value),
                fix="print a recipe by intently recipes NAME, to begin a --config with",
            )


def _origin(recipe: str | None, kept: Origin | None) -> Origin | None:
    """Return the corpus of the recipe, ``kept`` where its run resumes, None for files."""
    if kept is not None:
        if recipe is not None and recipe != kept.recipe:
            expected = f"{kept.recipe}, with which the run began"
            raise build(ArgumentError, "--recipe", expected, recipe)
        return kept
    if recipe is None:
        return None
    one = known.recipe(recipe)
    return Origin(one.corpus, one.source, one.target, recipe=one.name)


def _from_corpus(
    here: Processes,
    origin: Origin,
    stored: Path | None,
    guide: Path | None,
    flags: dict[str, Any],
    console: Console,
) -> Work:
    """Read the corpus of a recipe; a resumed run has ``stored`` options."""

    def begin() -> tuple[
        TrainingOptions, Corpus
    ]:  # only the first process reads the folder and downloads
        if stored is not None and stored.is_file():
            options = TrainingOptions.from_json(stored)
        else:
            options = known.recipe(origin.recipe or "").options
        return options.with_flags(**flags), origin.read()

    options, corpus = here.from_first(begin)
    console.print(f"recipe {origin.recipe}, {origin}: {len(corpus.train):,} sentence pairs")
    console.print(corpus.credit)
    return Work(_guided(corpus.train, guide), corpus.dev, options, corpus.tests)


def _guided(text: ParallelText, guide: Path | None) -> ParallelText:
    """Return the text with the links of a file, or of a trained translator."""
    if guide is None:
        return text
    if guide.is_dir():
        return replace(text, guides=links_of(Translator.load(guide), text))
    return replace(text, guides=read_links(guide, text))


def _judge(translator: Translator, origin: Origin, work: Work, out: Path, console: Console) -> None:
    """Score a recipe's translator on its corpus' tests; print the expected result, too."""
    write(judge(translator, work.tests, aligned=origin.corpus == "language"), out / "scores.json")
    one = next((each for each in known.recipes() if each.name == origin.recipe), None)
    if one is not None and one.result:
        own = "" if work.options == one.options else " with its own options"
        console.print(f"\nexpected of {one.name}{own}: {one.result}")


def _from_files(
    source: Path,
    target: Path | None,
    dev: tuple[Path, Path] | None,
    config: Path | None,
    guide: Path | None,
    flags: dict[str, Any],
    console: Console,
) -> Work:
    """Read files; without a dev set, hold out pairs."""
    base = TrainingOptions() if config is None else TrainingOptions.from_toml(config)
    options = base.with_flags(**flags)
    text = _guided(read_parallel(source, target), guide)
    console.print(text.report)
    if dev is not None:
        held_out = read_parallel(*dev)
        console.print(held_out.report)
    elif len(text) > 1:
        text, held_out = text.split_off(min(DEV_SENTENCES, max(1, len(text) // 20)))
        console.print(f"no --dev: the last {len(held_out):,} pairs are held out")
    else:
        fix = "give --dev, or more pairs"
        raise build(DataError, str(source), "a pair to hold out, beside one to learn", "1", fix=fix)
    return Work(text, held_out, options, {})
