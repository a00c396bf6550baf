"""The command line: ``intently demo``, ``train``, ``translate``, ``evaluate``.

Every error that Intently raises on purpose is printed as one line and ends with status 2 (1 where a
run was interrupted); anything else is a bug and shows its traceback.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from intently.errors import DataError, IntentlyError, build

app = typer.Typer(
    help="Attention you can compute, see and trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    from intently.translator import TranslationWarning

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any
    ) -> None:
        if issubclass(category, TranslationWarning):
            print(f"intently: {message}", file=sys.stderr)
        else:
            print(warnings.formatwarning(message, category, filename, lineno), file=sys.stderr)

    warnings.showwarning = show
    warnings.simplefilter("always", TranslationWarning)
    try:
        app()
    except IntentlyError as error:
        print(f"intently: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(1) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="where model, result.json and pictures go")] = Path(
        "intently-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="40 seconds, lower quality")] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="20 minutes, as embedded")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted demo")] = False,
) -> None:
    """Watch an attention model learn to translate, translate, and show what it attended to."""
    from rich.console import Console

    from intently import demo as steps
    from intently.errors import ArgumentError

    if quick and thorough:
        raise build(ArgumentError, "--quick, --thorough", "one of them", "both")
    console = Console(soft_wrap=not sys.stdout.isatty())
    size = steps.QUICK if quick else steps.THOROUGH if thorough else steps.USUAL
    result = steps.run(size, out, console, resume=resume)
    again = f"intently demo --out {out}" + (f" --{size.name}" if size.name != "usual" else "")
    if result is None:
        console.print(f"interrupted; {out}/model is usable as it is. Go on with:\n  {again} --resume")
        raise typer.Exit(1)
    steps.table(result, console)
    console.print(
        f"\nPictures are in {out}/pictures. Now try:\n"
        f'  intently translate "The road was too wide." --show\n'
        f'  intently translate {out} "Mary gave Paul an apple." --pictures pictures\n'
        f"  intently train SOURCE.txt TARGET.txt --out my-run",
        highlight=False,
    )


@app.command()
def translate(
    model_and_text: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] [TEXT|FILE|-]",
            help="a model's folder (the embedded translator if left out), and what to translate",
            show_default=False,
        ),
    ],
    beam: Annotated[int, typer.Option(min=1, help="hypotheses followed at once; 1 is greedy")] = 5,
    n_best: Annotated[int, typer.Option(min=1, help="translations printed of each line")] = 1,
    length_penalty: Annotated[float, typer.Option(help="α of Wu et al. 2016, equation 14")] = 0.6,
    show: Annotated[bool, typer.Option("--show", help="print the alignment as blocks")] = False,
    pictures: Annotated[
        Optional[Path], typer.Option(help="a folder for a picture of each alignment")  # noqa: UP045
    ] = None,
) -> None:
    """Translate a text, the lines of a file, or standard input (-)."""
    from intently import show as figures
    from intently.decoding import SearchOptions
    from intently.translator import CHUNK, Translator

    model, text = _model_and_text(model_and_text)
    options = SearchOptions(beam=max(beam, n_best), n_best=n_best, length_penalty=length_penalty)
    translator = Translator.load(model)
    number = 0
    for lines in _chunks(_lines(text), CHUNK):
        for made in translator.translate(lines, options):
            number += 1
            for rank, one in enumerate((made, *made.alternatives)):
                print(one.text if n_best == 1 else f"{number}\t{one.score:.4f}\t{one.text}")
                if show and one.text:
                    print(figures.blocks(one.alignment))
                if pictures and one.text:
                    name = f"alignment-{number:04d}" + (f"-{rank + 1}" if rank else "")
                    figures.alignment(one.alignment, save=pictures / f"{name}.png")


def _model_and_text(given: list[str]) -> tuple[Path | None, str]:
    from intently.errors import ArgumentError

    if len(given) > 2:
        raise build(
            ArgumentError, "TEXT", "one text in quotes", f"{len(given)} words",
            fix='write intently translate "The road was too wide."',
        )  # fmt: skip
    if len(given) == 2:
        return Path(given[0]), given[1]
    only = Path(given[0])
    looks_like_a_path = "/" in given[0] and not any(map(str.isspace, given[0]))
    if only.is_dir() or (looks_like_a_path and not only.exists()):
        return only, "-"
    return None, given[0]


def _lines(text: str) -> Iterable[str]:
    if text == "-":
        yield from _decoded(sys.stdin.buffer, "standard input")
        return
    path = Path(text)
    try:
        is_file = path.is_file()
    except OSError:
        is_file = False
    if not is_file:
        yield from text.split("\n")
        return
    with path.open("rb") as file:
        yield from _decoded(file, str(path))


def _decoded(file: Iterable[bytes], name: str) -> Iterable[str]:
    for number, line in enumerate(file, 1):
        try:
            yield line.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise build(
                DataError, f"{name}:{number}", "UTF-8", f"byte {error.object[error.start]:#04x} "
                f"at byte {error.start + 1} of the line",
                fix="convert the file, for example with iconv -t UTF-8",
            ) from None  # fmt: skip


def _chunks(lines: Iterable[str], size: int) -> Iterable[list[str]]:
    chunk: list[str] = []
    for line in lines:
        chunk.append(line)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="the folder of a model or a run")],
    source: Annotated[
        Optional[Path], typer.Argument(help="source sentences, or a TSV; none: the built-in language")  # noqa: UP045
    ] = None,
    target: Annotated[Optional[Path], typer.Argument(help="their references")] = None,  # noqa: UP045
    beam: Annotated[int, typer.Option(min=1, help="hypotheses followed at once")] = 5,
    sentences: Annotated[int, typer.Option(min=1, help="of each built-in split")] = 1000,
) -> None:
    """Print BLEU and chrF with their signatures, and alignment error where gold exists."""
    from intently.corpora import sample
    from intently.corpora.files import read_parallel
    from intently.decoding import SearchOptions
    from intently.evaluation import alignment_errors
    from intently.evaluation import evaluate as score
    from intently.translator import Translator

    translator = Translator.load(model)
    options = SearchOptions(beam=beam)
    if source is not None:
        text = read_parallel(source, target)
        print(text.report)
        _print_scores(score(translator, text.sources, text.targets, options)[0])
        return
    for split in ("test", "novel", "deeper"):
        pairs = sample(split, sentences)
        print(f"\n{split}: {len(pairs):,} sentences of the built-in language")
        _print_scores(
            score(translator, [p.source for p in pairs], [p.target for p in pairs], options)[0]
        )
    errors = alignment_errors(translator, sample("test", min(sentences, 300)))
    print("\nalignment error rate of each head, on test:")
    for (layer, head), error in sorted(errors.items(), key=lambda item: item[1]):
        print(f"  {layer}, head {head}: {error:.3f}")


def _print_scores(scores: Any) -> None:
    print(f"exact match {scores.exact:.1%}")
    print(scores.bleu)
    print(scores.chrf)


def _train(
    source: Path,
    target: Path | None,
    out: Path,
    dev: tuple[Path, Path] | None,
    config: Path | None,
    resume: bool,
    **flags: Any,
) -> None:
    """Train a translator on two line-parallel files, or on a TSV (either may be gzip)."""
    from rich.console import Console

    from intently.corpora.files import read_parallel
    from intently.runs import fit
    from intently.training import TrainingOptions, display

    base = TrainingOptions() if config is None else TrainingOptions.from_toml(config)
    options = base.with_flags(**{name: value for name, value in flags.items() if value is not None})
    text = read_parallel(source, target)
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(text.report, highlight=False)
    if dev is None:
        text, held_out = text.split_off(min(1000, max(1, len(text) // 20)))
        console.print(f"no --dev: the last {len(held_out):,} pairs are held out", highlight=False)
    else:
        held_out = read_parallel(*dev)
        console.print(held_out.report, highlight=False)
    with display(console) as progress:
        run = fit(text, options, out, dev=held_out, progress=progress, resume=resume)
    console.print(
        f"{run.pairs:,} pairs; {run.too_long:,} with more than {options.text.max_length} tokens "
        f"on a side were skipped",
        highlight=False,
    )
    if run.history.stopped == "interrupted":
        console.print(f"interrupted; {out}/model is the best so far. Go on with the same command and --resume")
        raise typer.Exit(1)
    console.print(f"the translator is in {out}/model. Now try:\n  intently translate {out} TEXT")


def _with_training_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Give ``function`` one flag for each training option, beside its own arguments."""
    from intently.training import TrainingOptions

    def parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
        )

    own = [
        parameter("source", Annotated[Path, typer.Argument(help="source sentences, or a TSV")], ...),
        parameter(
            "target", Annotated[Optional[Path], typer.Argument(help="target sentences")], None  # noqa: UP045
        ),
        parameter("out", Annotated[Path, typer.Option(help="the folder of the run")], ...),
        parameter(
            "dev",
            Annotated[Optional[tuple[Path, Path]], typer.Option(help="dev SOURCE TARGET")],  # noqa: UP045
            None,
        ),
        parameter("config", Annotated[Optional[Path], typer.Option(help="options as TOML")], None),  # noqa: UP045
        parameter(
            "resume", Annotated[bool, typer.Option("--resume", help="go on with the run")], False
        ),
    ]
    flags = [
        parameter(
            name,
            Annotated[
                Optional[_plain(flag.type)],  # noqa: UP045
                typer.Option(
                    help=f"{flag.help} [{flag.default}]", show_default=False,
                    rich_help_panel=flag.group.capitalize(),
                ),
            ],
            None,
        )
        for name, flag in TrainingOptions.flags().items()
    ]  # fmt: skip

    def command(**given: Any) -> None:
        function(**given)

    command.__doc__ = function.__doc__
    command.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    return command


def _plain(kind: Any) -> Any:
    """Return the type of an option without its None."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return next(part for part in typing.get_args(kind) if part is not type(None))
    return kind


def _register_train() -> None:
    app.command(name="train")(_with_training_flags(_train))


_register_train()

if __name__ == "__main__":
    main()
