"""``intently train-lm``: a language model of any text, and the value of its context."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intently.cli.arguments import out_folder, plain_console, with_flags
from intently.errors import ArgumentError, build
from intently.language.runs import LanguageRun, fit, read_text
from intently.language.settings import language_flags, language_options, read_config, split
from intently.language.text_model import Variant
from intently.language.windows import by_context
from intently.show.labels import visible
from intently.text import Tokenizer
from intently.training import TrainingOptions, display

if TYPE_CHECKING:
    from rich.console import Console


WRITTEN = 200
"""Tokens of a sample."""

FLAGS = (
    *("window", "tokenizer", "size", "width", "heads", "kv_heads", "positions", "layers"),
    *("dropout", "steps", "seconds", "batch_tokens", "learning_rate", "optimiser", "seed"),
    "threads",
)
"""Options with a flag; a file may hold all options."""

OFTEN = (
    *("window", "tokenizer", "width", "heads", "layers", "steps", "seconds", "batch_tokens"),
    *("learning_rate", "threads"),
)


@with_flags({name: language_flags()[name] for name in FLAGS}, OFTEN)
def train_lm(
    file: Annotated[Path, typer.Argument(help="any text in UTF-8, or gzip of it")],
    out: Annotated[Path, typer.Option(parser=out_folder, help="the folder of the run")],
    against: Annotated[
        int | None,
        typer.Option(min=1, help="train a smaller window too, and print both side by side"),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="these options and more, as TOML")] = None,
    samples: Annotated[int, typer.Option(min=0, max=100, help="texts written at the end")] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="resume the run")] = False,
    **flags: Any,
) -> None:
    """Train a language model on any text.

    The end of the text is held out. Afterwards, its loss is printed by position: how well a token
    is predicted from 1, 2, 4, … tokens before it. With --against 8, a second model is trained that
    never sees more than 8 tokens, and both write samples. Each takes one to three minutes by
    default.
    """
    given: dict[str, Any] = {} if config is None else read_config(config)
    given |= {name: value for name, value in flags.items() if value is not None}
    variant, rest = split(given)
    text = read_text(file)
    options = language_options(text, **rest)
    large = options.text.max_length
    if against is not None and against >= large:
        raise build(ArgumentError, "--against", f"a window smaller than {large}", against)
    console = plain_console()
    console.print(f"{len(text):,} characters from {file}; the last tenth is held out")
    run = _fit(text, options, out, variant, console, resume)
    small = None
    if against is not None:
        console.print(f"\nthe same with a window of {against}")
        few = language_options(text, **{**rest, "window": against})
        folder, known = out / f"window-{against}", run.text_model.tokenizer
        small = _fit(text, few, folder, variant, console, resume, known)
    console.print(report(run, samples, small))
    console.print(f"\nthe model is in {out}/model. In Python:\n  {_in_python(out)}")


def _fit(
    text: str,
    options: TrainingOptions,
    out: Path,
    variant: Variant,
    console: Console,
    resume: bool,
    tokenizer: Tokenizer | None = None,
) -> LanguageRun:
    """Train with live progress; exit where it is interrupted."""
    with display(console) as progress:
        run = fit(
            text,
            options,
            out,
            variant=variant,
            tokenizer=tokenizer,
            progress=progress,
            resume=resume,
        )
    if run.history.stopped == "interrupted":
        console.print(
            f"interrupted; {out}/model is the best yet. Resume with the same command and --resume"
        )
        raise typer.Exit(1)
    return run


def _in_python(out: Path) -> str:
    load = f"TextModel.load({str(out)!r})"
    return f'from intently.language import TextModel; print({load}.write("The ", 200))'


def report(run: LanguageRun, samples: int = 2, small: LanguageRun | None = None) -> str:
    """Return the final report of the command: loss by position, and samples.

    A run with a ``small`` window is compared with it.
    """
    tokens = run.text_model.tokenizer
    kind = f"{tokens.kind} tokens, a vocabulary of {tokens.size:,}"
    said = [f"\nheld-out loss by position, in nats per token ({kind}, window {_window(run)}):", ""]
    said += _table(run) if small is None else _two_tables(run, small)
    for one in (run,) if small is None else (run, small):
        said += _samples(one, samples)
    return "\n".join(said)


def _window(run: LanguageRun) -> int:
    return run.text_model.options.text.max_length


def _named(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}–{last}"


def _table(run: LanguageRun) -> list[str]:

    table = by_context(run.losses)
    most = max(loss for *_, loss in table)
    said = ["  tokens before    loss"]
    for first, last, loss in table:
        bar = "█" * round(40 * loss / most)
        said.append(f"  {_named(first, last):>13}  {loss:6.3f}  {bar}")
    return [*said, f"  {'all':>13}  {float(run.losses.mean()):6.3f}"]


def _two_tables(run: LanguageRun, small: LanguageRun) -> list[str]:
    """Return the losses of both windows by position; the small one ends earlier."""
    names = [f"window {_window(one)}" for one in (run, small)]
    said = [f"  tokens before  {names[0]:>12}  {names[1]:>12}"]
    for first, last, loss in by_context(run.losses):
        part = small.losses[first - 1 : last]
        other = f"{float(part.mean()):12.3f}" if len(part) else f"{'–':>12}"
        said.append(f"  {_named(first, last):>13}  {loss:12.3f}  {other}")
    ends = [by_context(one.losses)[-1][2] for one in (run, small)]
    choices = [f"{math.exp(loss):.1f}" for loss in ends]
    return [
        *said,
        "",
        f"  at the end of its window the larger one has {ends[0]:.3f}, the smaller {ends[1]:.3f}:",
        f"  a choice among {choices[0]} tokens as likely as each other, or among {choices[1]}",
    ]


def _samples(run: LanguageRun, samples: int) -> list[str]:
    import torch

    generator = torch.Generator().manual_seed(run.text_model.options.run.seed)
    lines = run.held_out.strip().splitlines(keepends=True)
    beginning = "".join(lines[1:2] or lines)[:40]  # the first line is cut by the split
    said: list[str] = []
    for number in range(samples):
        text = run.text_model.write(
            beginning, WRITTEN, temperature=0.8, top_p=0.95, generator=generator
        )
        said += ["", f"sample {number + 1} of window {_window(run)} (temperature 0.8, top-p 0.95):"]
        said += [f"  {visible(line, 1000)}" if line.strip() else "" for line in text.splitlines()]
    return said
