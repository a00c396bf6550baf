"""``intently train``, ``recipes`` and ``demo``: train a translator."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument, Option

from intently import show
from intently.cli.arguments import Out, option, plain_console, run_folder, with_flags
from intently.cli.evaluate import judge, write
from intently.errors import ArgumentError, DataError, build
from intently.nn.models.kinds import new_model
from intently.tasks import recipes as known
from intently.tasks.corpora import ParallelText
from intently.tasks.corpora.files import read_parallel
from intently.tasks.recipes import Files, Origin, keeping
from intently.tasks.training import TrainingOptions, display
from intently.tasks.training.checkpoint import Checkpoints
from intently.tasks.training.folder_lock import sole_writer
from intently.tasks.training.progress import counted
from intently.tasks.translation.runs import DEV_SENTENCES, WRITES, fit, links_of, read_links
from intently.tasks.translation.translator import Translator

if TYPE_CHECKING:
    from rich.console import Console


class RunPlan(NamedTuple):
    """What a run was begun with or is to begin with, as its folder and the command tell."""

    begun: bool
    origin: Origin | Files
    options: TrainingOptions


class Work(NamedTuple):
    """What is trained on: the origin of the text, the text, the dev set, and the test sets."""

    origin: Origin | Files
    text: ParallelText
    dev: ParallelText
    tests: Mapping[str, ParallelText] = {}


FEW = 100
"""Pairs too few to learn a translation from."""

OFTEN = (
    *("model", "width", "encoder_layers", "decoder_layers", "dropout", "steps", "seconds"),
    *("learning_rate", "batch_tokens", "device", "threads"),
)


@with_flags(TrainingOptions.flags(), OFTEN)
def train(
    source: Annotated[
        Path | None, Argument(help="source sentences, one per line; or a TSV with both sides")
    ] = None,
    target: Annotated[
        Path | None, Argument(help="their translations, line by line; none for a TSV")
    ] = None,
    *,
    out: Out,
    recipe: Annotated[
        str | None, option("NAME", "train on a recipe's corpus, with its options")
    ] = None,
    data_dir: Annotated[
        Path | None, option("FOLDER", "local copy of the recipe's corpus (default: download it)")
    ] = None,
    dev: Annotated[
        list[Path] | None,
        option(
            "FILE [FILE]",
            "dev set: source and target sentences, or a TSV (default: hold out pairs)",
        ),
    ] = None,
    guide: Annotated[
        Path | None,
        option("PATH", "word links that teach one head: a Pharaoh file, or a trained run"),
    ] = None,
    config: Annotated[Path | None, option("FILE", "TOML file of options")] = None,
    resume: Annotated[
        bool, Option("--resume", help="resume the run; --out alone is enough")
    ] = False,
    resume_from: Annotated[
        str | None, option("STEP", "resume from this checkpoint instead of the latest")
    ] = None,
    **flags: Any,
) -> None:
    """Train a translator on your files, or with a recipe.

    Files are two line-parallel texts or one TSV, plain or gzip. A recipe names a corpus and its
    options; flags override them. `intently recipes` lists the recipes. A run that was interrupted
    resumes with `intently train --out FOLDER --resume`: its folder knows its files and options.
    """
    again = resume_from or resume

    def planned() -> RunPlan:
        begun = Checkpoints(out / "checkpoints").begun(again)
        goes_on = bool(again) and (begun or source is None)
        where: Origin | Files | None = _origin(recipe, Origin.load(out) if goes_on else None)
        options = TrainingOptions()
        if where is None:
            _refuse({"--data-dir": data_dir}, "none without a recipe: SOURCE is a file")
            before = Files.load(out) if goes_on else None
            where = _files(source, target, dev or (), guide, before, out if begun else None)
        else:
            given = {"SOURCE": source, "--dev": dev and dev[0], "--config": config}
            _refuse(given, "none beside a recipe, which names its corpus and its options")
            where = where.read_from(data_dir)
        if config is not None:
            options = TrainingOptions.from_toml(config)
        elif goes_on and recipe is None and (out / "options.json").is_file():
            options = TrainingOptions.from_json(out / "options.json")
        elif isinstance(where, Origin):
            options = known.recipe(where.recipe or "").options
        return RunPlan(begun, where, options.with_flags(**flags))

    with sole_writer(out, WRITES) as here:
        console = plain_console(quiet=not here.first)
        begun, origin, options = here.from_first(planned)  # the first process reads the folder
        if again and not begun:
            console.print(f"{out} has no checkpoint to resume from: a new run begins")
        here.device(options.machine.device)  # refused before the corpus is read
        if isinstance(origin, Files):
            work = _from_files(origin, console)
        else:
            corpus = here.from_first(origin.read)  # and downloads
            pairs = f"{len(corpus.train):,} sentence pairs"
            console.print(f"recipe {origin.recipe}, {origin}: {pairs}\n{corpus.credit}")
            work = Work(origin, _guided(corpus.train, guide), corpus.dev, corpus.tests)
        if len(work.dev) > DEV_SENTENCES:
            console.print(f"the first {DEV_SENTENCES} of {len(work.dev):,} dev pairs are used")
        with display(console) as progress:
            run = fit(
                work.text,
                options,
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
        if isinstance(origin, Origin) and here.first:
            _judge(run.translator, origin, options, work.tests, out, console)
        drawn = f", its learning curves are {out}/training.png" if run.history.records else ""
        console.print(
            f"kept: the weights of {run.history.kept()}\n"
            f"the translator is in {out}/model{drawn}. Now try:\n"
            f"  intently translate {shlex.quote(str(out))} TEXT"
        )


def _refuse(given: dict[str, Path | None], expected: str) -> None:
    for argument, value in given.items():
        if value is not None:
            fix = "print a recipe by intently recipes NAME, to begin a --config with"
            raise build(ArgumentError, argument, expected, str(value), fix=fix)


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
    if source is not None:
        pair = str(source), target and str(target)
    elif before is not None:
        pair = before.source, before.target
    elif begun is not None:
        expected = f"the files that the run in {begun} is trained on"
        fix = "give the command that began it, with --resume"
        raise build(ArgumentError, "SOURCE", expected, "none", fix=fix)
    else:
        took = f"--dev took {' and '.join(map(str, dev))}" if len(dev) == 2 else None
        fix = "write SOURCE before --dev" if took else "see them by intently recipes"
        expected = "source sentences, or --recipe NAME"
        raise build(ArgumentError, "SOURCE", expected, "neither", took, fix)
    dev_files = [str(file) for file in dev] or (before.dev if before else [])
    return Files(*pair, dev_files, str(guide) if guide else before and before.guide)


def _guided(text: ParallelText, guide: Path | None) -> ParallelText:
    """Return the text with the links of a file, or of a trained translator."""
    if guide is None:
        return text
    if guide.is_dir():
        return replace(text, guides=links_of(Translator.load(guide), text))
    return replace(text, guides=read_links(guide, text))


def _from_files(files: Files, console: Console) -> Work:
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
        console.print(f"no --dev: held out the last {counted(len(dev), 'pair')}")
    else:
        expected, fix = "a pair to hold out, beside one to learn", "give --dev, or more pairs"
        raise build(DataError, files.source, expected, "1", fix=fix)
    if len(text) < FEW:
        few = counted(len(text), "pair")
        console.print(f"{few} to learn from: too few for a translator; thousands are usual")
    return Work(files, text, dev)


def _judge(
    translator: Translator,
    origin: Origin,
    options: TrainingOptions,
    tests: Mapping[str, ParallelText],
    out: Path,
    console: Console,
) -> None:
    """Score a recipe's translator on its corpus' tests; print the expected result, too."""
    write(judge(translator, tests, aligned=origin.corpus == "language"), out / "scores.json")
    one = next((each for each in known.recipes() if each.name == origin.recipe), None)
    if one is not None and one.result:
        changed = "" if options == one.options else " with its own options"
        console.print(f"\nexpected of {one.name}{changed}: {one.result}")


def recipes(
    name: Annotated[str | None, Argument(help="print this recipe's TOML, as a template")] = None,
) -> None:
    """List the recipes of `intently train --recipe`, or print one."""
    from rich.console import Console
    from rich.table import Table

    if name is not None:
        print(known.recipe_text(name), end="")
        return
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("recipe", no_wrap=True, min_width=max(len(x.name) for x in known.recipes()))
    table.add_column("parameters", justify="right", no_wrap=True, min_width=10)
    table.add_column("steps", justify="right", no_wrap=True, min_width=6)
    table.add_column("about")
    for each in known.recipes():
        size = f"≈ {parameters(each.options) / 1e6:.1f} M"
        table.add_row(each.name, size, f"{each.options.schedule.steps:,}", each.about)
    console.print(table)
    console.print("\nintently recipes NAME prints one: its corpus, its options and what it reached")


def parameters(options: TrainingOptions) -> int:
    """Return the number of parameters with vocabularies of the largest size."""
    import torch

    with torch.device("meta"):
        model = new_model(options.shape(options.text.source_size, options.text.target_size))
    return sum(parameter.numel() for parameter in model.parameters())


def demo(
    out: Annotated[Path, run_folder("folder for the model, pages and pictures")] = Path(
        "intently-demo"
    ),
    quick: Annotated[bool, Option("--quick", help="a third of the time, lower quality")] = False,
    thorough: Annotated[bool, Option("--thorough", help="a little longer, as embedded")] = False,
    resume: Annotated[bool, Option("--resume", help="resume an interrupted demo")] = False,
) -> None:
    """Train a translator before your eyes; draw what it attends to."""
    from rich.console import Console

    from intently.tasks.demo import QUICK, THOROUGH, USUAL, run, table

    if quick and thorough:
        raise build(ArgumentError, "--quick, --thorough", "one of them", "both")
    console = Console(soft_wrap=not sys.stdout.isatty())
    say = partial(console.print, highlight=False, markup=False)
    size = QUICK if quick else THOROUGH if thorough else USUAL
    result = run(size, out, console, resume=resume)
    quoted = shlex.quote(str(out))
    if result is None:
        again = f"intently demo --out {quoted}" + f" --{size.name}" * (size is not USUAL)
        say(f"interrupted; {out}/model is usable. Resume with:\n  {again} --resume")
        raise typer.Exit(1)
    table(result, console)
    say(
        f"\nAll of it is in {out}/index.html: scores, pictures and pages. Now try:\n"
        f'  intently translate "The road was too wide." --show\n'
        f'  intently look "The road was too wide."\n'
        f'  intently translate {quoted} "Mary gave Paul an apple." --pictures pictures\n'
        f"  intently train SOURCE.txt TARGET.txt --out my-run\n"
        f"  intently play {quoted}          (type in the browser, and cross something out)"
    )
