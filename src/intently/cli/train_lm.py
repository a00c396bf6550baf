"""``intently train-lm``: a language model of any text, and the value of its context."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intently.cli.arguments import out_folder, plain_console, with_flags
from intently.errors import ArgumentError, build
from intently.show.labels import visible
from intently.show.style import LINES
from intently.tasks.language import comparison
from intently.tasks.language.runs import LanguageRun, fit, read_text
from intently.tasks.language.text_model import (
    Variant,
    language_flags,
    language_options,
    read_config,
    split,
)
from intently.tasks.text import Tokenizer
from intently.tasks.training import TrainingOptions, display

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
    text: Annotated[
        str, typer.Argument(help="a UTF-8 file, plain or gzip; or stories: generated text")
    ],
    out: Annotated[
        Path, typer.Option(parser=out_folder, metavar="FOLDER", help="folder of the run")
    ],
    against: Annotated[
        list[int] | None,
        typer.Option(
            min=1, metavar="N", help="also train a smaller window, and compare; at most two"
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML file of these options and more")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="texts to write at the end")
    ] = 2,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume the run: the same command and --resume")
    ] = False,
    **flags: Any,
) -> None:
    """Train a language model on any text.

    The end of the text is held out. Afterwards, its loss is printed by context: how well a token
    is predicted from 1, 2, 4, … tokens before it; context.json and context.png hold the same. With
    --against 8, a second model is trained that never sees more than 8 tokens, and both write
    samples. The command warns of models that are undertrained or contradict each other. Each takes
    one to three minutes by default.
    """
    given: dict[str, Any] = {} if config is None else read_config(config)
    given |= {name: value for name, value in flags.items() if value is not None}
    variant, rest = split(given)
    content = read_text(text)
    options = language_options(content, **rest)
    large, smaller = options.text.max_length, sorted(against or (), reverse=True)
    _check_smaller(smaller, large)
    console = plain_console()
    console.print(f"{len(content):,} characters from {text}; the last tenth is held out")
    run = _fit(content, options, out, variant, console, resume)
    runs = [run]
    for window in smaller:
        console.print(f"\nthe same with a window of {window}")
        few = language_options(content, **{**rest, "window": window})
        folder, known = out / f"window-{window}", run.text_model.tokenizer
        runs.append(_fit(content, few, folder, variant, console, resume, known))
    result = comparison.measure(runs, Path(text).name)
    comparison.write(result, out)
    console.print(report(result, runs, samples))
    console.print(f"\n{out}/context.png is the figure, context.json holds the numbers")
    console.print(f"kept: the weights of {run.history.kept()}")
    written = f'intently write {shlex.quote(str(out))} "The "'
    console.print(f"the model is in {out}/model. Now try:\n  {written}")


def _check_smaller(smaller: list[int], large: int) -> None:
    """Raise unless up to two different smaller windows are compared with the large one."""
    for window in smaller:
        if window >= large:
            raise build(ArgumentError, "--against", f"a window smaller than {large}", window)
    if len(set(smaller)) < len(smaller) or len(smaller) >= len(LINES):
        expected = f"at most {len(LINES) - 1} different windows"
        raise build(ArgumentError, "--against", expected, ", ".join(map(str, smaller)))


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


def report(result: Mapping[str, Any], runs: Sequence[LanguageRun], samples: int = 2) -> str:
    """Return the final report of the command: loss by context, samples, and warnings.

    ``result`` is that of `intently.tasks.language.comparison.measure` for these ``runs``.
    """
    kind = f"{result['tokenizer']} tokens, a vocabulary of {result['vocabulary']:,}"
    said = [f"\nheld-out loss by context, in nats per token ({kind}):", ""]
    said += _table(result) if len(runs) == 1 else _tables(result)
    for run in runs:
        said += _samples(run, samples)
    warnings = [f"warning: {warning}" for warning in result["warnings"]]
    return "\n".join([*said, *([""] if warnings else []), *warnings])


def _table(result: Mapping[str, Any]) -> list[str]:
    [model] = result["models"]
    most = max(loss for loss, *_ in model["losses"])
    said = ["  tokens before    loss"]
    for ends, (loss, *_) in zip(result["contexts"], model["losses"], strict=True):
        bar = "█" * round(40 * loss / most)
        said.append(f"  {comparison.span(*ends):>13}  {loss:6.3f}  {bar}")
    return said


def _tables(result: Mapping[str, Any]) -> list[str]:
    """Return the losses of all windows by context, ± their 95 % intervals; small ones end early."""
    models = result["models"]
    said = ["  tokens before" + "".join(f"  {_name(model):>14}" for model in models)]
    for row, ends in enumerate(result["contexts"]):
        line = f"  {comparison.span(*ends):>13}"
        for model in models:
            known = model["losses"][row : row + 1]
            cell = "".join(f"{loss:.3f} ± {high - loss:.3f}" for loss, _, high in known) or "–"
            line += f"  {cell:>14}"
        said.append(line)
    said += ["", "  with all of its context, a model has"]
    for model in models:
        loss = model["losses"][-1][0]
        choice = f"{math.exp(loss):.1f} equally likely tokens"
        said.append(f"  {_name(model):>13}  {loss:6.3f}, like a choice among {choice}")
    return said


def _name(model: Mapping[str, Any]) -> str:
    return f"window {model['window']}"


def _samples(run: LanguageRun, samples: int) -> list[str]:
    import torch

    generator = torch.Generator().manual_seed(run.text_model.options.run.seed)
    lines = run.held_out.strip().splitlines(keepends=True)
    beginning = "".join(lines[1:2] or lines)[:40]  # the first line is cut by the split
    said: list[str] = []
    window = run.text_model.options.text.max_length
    for number in range(samples):
        text = run.text_model.write(
            beginning, WRITTEN, temperature=0.8, top_p=0.95, generator=generator
        )
        said += ["", f"sample {number + 1} of window {window} (temperature 0.8, top-p 0.95):"]
        said += [f"  {visible(line, 1000)}" if line.strip() else "" for line in text.splitlines()]
    return said
