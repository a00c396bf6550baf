"""``intently train-lm`` and ``intently write``: a language model of any text."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from intently.cli.arguments import Out, option, plain_console, with_flags
from intently.errors import ArgumentError, build
from intently.show.labels import visible
from intently.show.style import LINES
from intently.tasks.language import TextModel, comparison
from intently.tasks.language.runs import LanguageRun, fit, read_text
from intently.tasks.language.text_model import FLAGS, language_options, read_config, split
from intently.tasks.training import display

if TYPE_CHECKING:
    from rich.console import Console

WRITTEN = 200
"""Tokens of a sample."""

NAMES = (
    *("window", "tokenizer", "size", "width", "heads", "kv_heads", "positions", "layers"),
    *("dropout", "steps", "seconds", "batch_tokens", "learning_rate", "optimiser", "seed"),
    "threads",
)
"""Options with a flag; a file may hold all options."""

OFTEN = (
    *("window", "tokenizer", "width", "heads", "layers", "steps", "seconds", "batch_tokens"),
    *("learning_rate", "threads"),
)


@with_flags({name: FLAGS[name] for name in NAMES}, OFTEN)
def train_lm(
    text: Annotated[str, Argument(help="a UTF-8 file, plain or gzip; or stories: generated text")],
    out: Out,
    against: Annotated[
        list[int] | None,
        option("N", "also train a smaller window, and compare; at most two", min=1),
    ] = None,
    config: Annotated[Path | None, option("FILE", "TOML file of these options and more")] = None,
    samples: Annotated[int, option("N", "texts to write at the end", min=0, max=100)] = 2,
    resume: Annotated[
        bool, Option("--resume", help="resume the run: the same command and --resume")
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
    smaller = _smaller_windows(against or (), options.text.max_length)
    console = plain_console()
    console.print(f"{len(content):,} characters from {text}; the last tenth is held out")
    run = _fit(console, content, options, out, variant=variant, resume=resume)
    runs = [run]
    for window in smaller:
        console.print(f"\nthe same with a window of {window}")
        few = language_options(content, **{**rest, "window": window})
        settings = {"variant": variant, "resume": resume, "tokenizer": run.text_model.tokenizer}
        runs.append(_fit(console, content, few, out / f"window-{window}", **settings))
    result = comparison.measure(runs, Path(text).name)
    comparison.write(result, out)
    console.print(report(result, runs, samples))
    console.print(
        f"\n{out}/context.png is the figure, context.json holds the numbers\n"
        f"kept: the weights of {run.history.kept()}\n"
        f"the model is in {out}/model. Now try:\n"
        f'  intently write {shlex.quote(str(out))} "The "'
    )


def _smaller_windows(against: Sequence[int], large: int) -> list[int]:
    """Return up to two different windows smaller than the large one, the larger first."""
    for window in against:
        if window >= large:
            raise build(ArgumentError, "--against", f"a window smaller than {large}", window)
    smaller = sorted(against, reverse=True)
    if len(set(smaller)) < len(smaller) or len(smaller) >= len(LINES):
        expected = f"at most {len(LINES) - 1} different windows"
        raise build(ArgumentError, "--against", expected, ", ".join(map(str, smaller)))
    return smaller


def _fit(console: Console, text: str, options: Any, out: Path, **settings: Any) -> LanguageRun:
    """Train with live progress; exit where it is interrupted."""
    with display(console) as progress:
        run = fit(text, options, out, progress=progress, **settings)
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
    lines = [f"\nheld-out loss by context, in nats per token ({kind}):", ""]
    lines += _table(result) if len(runs) == 1 else _tables(result)
    for run in runs:
        lines += _samples(run, samples)
    warnings = [f"warning: {warning}" for warning in result["warnings"]]
    return "\n".join([*lines, *([""] if warnings else []), *warnings])


def _table(result: Mapping[str, Any]) -> list[str]:
    [model] = result["models"]
    most = max(loss for loss, *_ in model["losses"])
    return ["  tokens before    loss"] + [
        f"  {comparison.span(*ends):>13}  {loss:6.3f}  {'█' * round(40 * loss / most)}"
        for ends, (loss, *_) in zip(result["contexts"], model["losses"], strict=True)
    ]


def _tables(result: Mapping[str, Any]) -> list[str]:
    """Return the losses of all windows by context, ± their 95 % intervals; small ones end early."""
    models = {f"window {model['window']}": model["losses"] for model in result["models"]}
    lines = ["  tokens before" + "".join(f"  {name:>14}" for name in models)]
    for row, ends in enumerate(result["contexts"]):
        line = f"  {comparison.span(*ends):>13}"
        for losses in models.values():
            cell = "".join(f"{x:.3f} ± {high - x:.3f}" for x, _, high in losses[row : row + 1])
            line += f"  {cell or '–':>14}"
        lines.append(line)
    lines += ["", "  with all of its context, a model has"]
    for name, losses in models.items():
        loss = losses[-1][0]
        choice = f"{math.exp(loss):.1f} equally likely tokens"
        lines.append(f"  {name:>13}  {loss:6.3f}, like a choice among {choice}")
    return lines


def _samples(run: LanguageRun, samples: int) -> list[str]:
    import torch

    options = run.text_model.options
    generator = torch.Generator().manual_seed(options.run.seed)
    held_out = run.held_out.strip().splitlines(keepends=True)
    beginning = "".join(held_out[1:2] or held_out)[:40]  # the first line is cut by the split
    lines: list[str] = []
    for number in range(1, samples + 1):
        text = run.text_model.write(
            beginning, WRITTEN, temperature=0.8, top_p=0.95, generator=generator
        )
        window = f"window {options.text.max_length} (temperature 0.8, top-p 0.95)"
        lines += ["", f"sample {number} of {window}:"]
        lines += [f"  {visible(line, 1000)}" if line.strip() else "" for line in text.splitlines()]
    return lines


def write(
    model: Annotated[Path, Argument(help="folder of a run of intently train-lm")],
    text: Annotated[str, Argument(help="how the text begins")] = "",
    tokens: Annotated[int, option("N", "tokens to write", min=0, max=100_000)] = 200,
    temperature: Annotated[
        float, option("X", "below 1 safer, above 1 wilder; 0: the likeliest token")
    ] = 0.8,
    top_k: Annotated[int | None, option("N", "draw from the N likeliest tokens only")] = None,
    top_p: Annotated[
        float | None, option("X", "draw from the likeliest tokens, X of the probability")
    ] = 0.95,
    seed: Annotated[
        int | None, option("N", "draw the same text each time", min=0, max=2**31 - 1)
    ] = None,
) -> None:
    """Continue a text with a language model.

    The model is one that `intently train-lm` wrote. It sees its last window of tokens, so it can
    write for as long as you like.
    """
    import torch

    text_model = TextModel.load(model)
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    print(text_model.write(text, tokens, generator=generator, **chosen))
