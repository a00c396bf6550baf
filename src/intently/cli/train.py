"""``intently train`` and ``intently recipes``: a translator from files, or by a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from intently import show
from intently.cli.arguments import out_folder, plain_console, with_flags
from intently.cli.evaluate import judge, write
from intently.errors import ArgumentError, DataError, build
from intently.nn.models.kinds import new_model
from intently.tasks import recipes as known
from intently.tasks.corpora import Corpus, ParallelText
from intently.tasks.corpora.files import read_parallel
from intently.tasks.recipes import Files, Origin, keeping
from intently.tasks.training import TrainingOptions, display
from intently.tasks.training.checkpoint import Checkpoints
from intently.tasks.training.processes import Processes, sole_writer
from intently.tasks.training.progress import counted
from intently.tasks.translation.links import links_of, read_links
from intently.tasks.translation.runs import DEV_SENTENCES, WRITES, fit
from intently.tasks.translation.translator import Translator

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
    console = Console()
    listed = Table(box=None, pad_edge=False)
    listed.add_column("recipe", no_wrap=True, min_width=max(len(x.name) for x in known.recipes()))
    listed.add_column("parameters", justify="right", no_wrap=True, min_width=10)
    listed.add_column("steps", justify="right", no_wrap=True, min_width=6)
    listed.add_column("about")
    for each in known.recipes():
        size = f"≈ {parameters(each.options) / 1e6:.1f} M"
        listed.add_row(each.name, size, f"{each.options.schedule.steps:,}", each.about)
    console.print(listed)
    console.print("\nintently recipes NAME prints one: its corpus, its options and what it reached")


def parameters(options: TrainingOptions) -> int:
    """Return the number of parameters with vocabularies of the largest size."""
    import torch

    with torch.device("meta"):
        model = new_model(options.shape(options.text.source_size, options.text.target_size))
    return sum(parameter.numel() for parameter in model.parameters())


class Work(NamedTuple):
    """A training run: where its text is from, the text, the dev set, the options, the test sets."""

    origin: Origin | Files
    text: ParallelText
    dev: ParallelText
    options: TrainingOptions
    tests: Mapping[str, ParallelText]


FEW = 100
"""Pairs too few to learn a translation from."""


OFTEN = (
    *("model", "width", "encoder_layers", "decoder_layers", "dropout", "steps", "seconds"),
    *("learning_rate", "batch_tokens", "device", "threads"),
)


@with_flags(TrainingOptions.flags(), OFTEN)
def train(
    source: Annotated[
        Path | None, typer.Argument(help="source sentences, one per line; or a TSV with both sides")
    ] = None,
    target: Annotated[
        Path | None, typer.Argument(help="their translations, line by line; none for a TSV")
    ] = None,
    *,
    out: Annotated[
        Path, typer.Option(parser=out_folder, metavar="FOLDER", help="folder of the run")
    ],
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="train on a recipe's corpus, with its options"),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="local copy of the recipe's corpus (default: download it)"
        ),
    ] = None,
    dev: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE [FILE]",
            help="dev set: source and target sentences, or a TSV (default: hold out pairs)",
        ),
    ] = None,
    guide: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="word links that teach one head: a Pharaoh file, or a trained run"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of options")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume the run; --out alone is enough")
    ] = False,
    resume_from: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="resume from this checkpoint instead of the latest"),
    ] = None,
    **flags: Any,
) -> None:
    """Train a translator on your files, or with a recipe.

    Files are two line-parallel texts or one TSV, plain or gzip. A recipe names a corpus and its
    options; flags override them. `intently recipes` lists the recipes. A run that was interrupted
    resumes with `intently train --out FOLDER --resume`: its folder knows its files and options.
    """
    again = resume_from or resume
    with sole_writer(out, WRITES) as here:
        console = plain_console(quiet=not here.first)
        begun = here.from_first(partial(Checkpoints(out / "checkpoints").begun, again))
        if again and not begun:
            console.print(f"{out} has no checkpoint to resume from: a new run begins")
        here.device(flags["device"] or "auto")  # refused before the corpus is read
        kept = here.from_first(partial(Origin.load, out)) if again else None
        if source is not None and not begun:
            kept = None  # of a run without checkpoints
        origin = here.from_first(partial(_origin, recipe, kept))
        known_run = again and (begun or source is None)
        stored = out / "options.json" if known_run and recipe is None else None
        if origin is None:
            _refuse({"--data-dir": data_dir}, "none without a recipe: SOURCE is a file")
            before = here.from_first(partial(Files.load, out)) if known_run else None
            files = _files(source, target, dev or (), guide, before, out if begun else None)
            options = here.from_first(partial(_options, stored, config, flags))
            work = _from_files(files, options, console)
        else:
            given = {"SOURCE": source, "--dev": dev and dev[0], "--config": config}
            _refuse(given, "none beside a recipe, which names its corpus and its options")
            work = _from_corpus(here, origin.read_from(data_dir), stored, guide, flags, console)
        if len(work.dev) > DEV_SENTENCES:
            console.print(f"the first {DEV_SENTENCES} of {len(work.dev):,} dev pairs are used")
        with display(console) as progress:
            run = fit(
                work.text,
                work.options,
                out,
                dev=work.dev,
                progress=keeping(work.origin, out, progress),
                resume=again,
            )
        if run.history.records and here.first:
            show.curves(run.history.rows(), save=out / "training.png")
        if run.history.stopped == "interrupted":
            console.print(
                f"interrupted; {out}/model has the weights of {run.history.kept()}. Resume with\n"
                f"  intently train --out {shlex.quote(str(out))} --resume"
            )
            here.wait()  # torchrun kills late processes
            raise typer.Exit(1)
        if isinstance(work.origin, Origin) and here.first:
            _judge(run.translator, work.origin, work, out, console)
        console.print(f"kept: the weights of {run.history.kept()}")
        drawn = f", its learning curves are {out}/training.png" if run.history.records else ""
        console.print(
            f"the translator is in {out}/model{drawn}. Now try:\n"
            f"  intently translate {shlex.quote(str(out))} TEXT"
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
    return Work(origin, _guided(corpus.train, guide), corpus.dev, options, corpus.tests)


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


def _files(
    source: Path | None,
    target: Path | None,
    dev: Sequence[Path],
    guide: Path | None,
    before: Files | None,
    begun: Path | None,
) -> Files:
    """Return the files of a run: those given, and what is not given from the run ``before``.

    ``begun`` is the folder of a run that resumes.
    """
    if len(dev) > 2:
        expected = "one TSV, or source and target sentences"
        raise build(ArgumentError, "--dev", expected, f"{len(dev)} files")
    pair = (source and str(source), target and str(target))
    if source is None and before is not None:
        pair = before.source, before.target
    if pair[0] is None:
        took = f"--dev took {' and '.join(map(str, dev))}" if len(dev) == 2 else None
        if begun is not None:
            expected = f"the files that the run in {begun} is trained on"
            fix = "give the command that began it, with --resume"
            raise build(ArgumentError, "SOURCE", expected, "none", fix=fix)
        fix = "write SOURCE before --dev" if took else "see them by intently recipes"
        expected = "source sentences, or --recipe NAME"
        raise build(ArgumentError, "SOURCE", expected, "neither", took, fix)
    return Files(
        pair[0],
        pair[1],
        [str(file) for file in dev] or (before.dev if before else []),
        str(guide) if guide else before and before.guide,
    )


def _options(stored: Path | None, config: Path | None, flags: Mapping[str, Any]) -> TrainingOptions:
    """Return the options of a file, of the resumed run, or the defaults; flags replace some."""
    if config is not None:
        base = TrainingOptions.from_toml(config)
    elif stored is not None and stored.is_file():
        base = TrainingOptions.from_json(stored)
    else:
        base = TrainingOptions()
    return base.with_flags(**flags)


def _from_files(files: Files, options: TrainingOptions, console: Console) -> Work:
    """Read files; without a dev set, hold out pairs."""
    text = read_parallel(files.source, files.target)
    text = _guided(text, Path(files.guide) if files.guide else None)
    console.print(text.report)
    files = replace(files, pairs=len(text))
    if files.dev:
        dev = files.read_dev()
        console.print(dev.report)
    elif len(text) > 1:
        text, dev = text.split_off(min(DEV_SENTENCES, max(1, len(text) // 20)))
        files = replace(files, held_out=len(dev))
        verb = "is" if len(dev) == 1 else "are"
        console.print(f"no --dev: the last {counted(len(dev), 'pair')} {verb} held out")
    else:
        fix = "give --dev, or more pairs"
        expected = "a pair to hold out, beside one to learn"
        raise build(DataError, files.source, expected, "1", fix=fix)
    if len(text) < FEW:
        few = counted(len(text), "pair")
        console.print(f"{few} to learn from: too few for a translator; thousands are usual")
    return Work(files, text, dev, options, {})
