"""``intently train-lm``: a language model from any text, and what its context is worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from intently.language_runs import LanguageRun

WRITTEN = 200
"""Tokens of a sample."""


def train_lm(
    file: Annotated[Path, typer.Argument(help="any text in UTF-8, or gzip of it")],
    out: Annotated[Path, typer.Option(help="the folder of the run")],
    window: Annotated[
        int | None, typer.Option(min=1, help="tokens read at once (default 128)")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="character (default up to 10 million characters), subword or word"),
    ] = None,
    size: Annotated[int | None, typer.Option(help="largest vocabulary, in tokens")] = None,
    width: Annotated[int | None, typer.Option(help="model width c (default 128)")] = None,
    heads: Annotated[int | None, typer.Option(help="attention heads (default 4)")] = None,
    layers: Annotated[int | None, typer.Option(help="layers (default 2)")] = None,
    dropout: Annotated[float | None, typer.Option(help="while training (default 0.1)")] = None,
    steps: Annotated[int | None, typer.Option(help="of the optimiser (default 2000)")] = None,
    seconds: Annotated[float | None, typer.Option(help="stop after that much time")] = None,
    batch_tokens: Annotated[int | None, typer.Option(help="of a step (default 1536)")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="the highest (default 0.002)")] = None,
    optimiser: Annotated[str | None, typer.Option(help="adamw (default) or muon")] = None,
    seed: Annotated[int | None, typer.Option(help="of all that is random (default 1)")] = None,
    threads: Annotated[int | None, typer.Option(help="of PyTorch")] = None,
    samples: Annotated[int, typer.Option(min=0, help="texts written at the end")] = 2,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run")] = False,
) -> None:
    """Train a language model on any text; see what a longer context is worth.

    The end of the text is held out. Afterwards its loss is printed by position: how well a token is
    foretold from 1, 2, 4, … tokens before it. Train with a small --window and with a large one, and
    compare.
    """
    from rich.console import Console

    from intently.language_runs import fit, language_options, read_text
    from intently.training import display

    text = read_text(file)
    options = language_options(
        text, max_length=window, target_tokenizer=tokenizer, target_size=size, width=width,
        heads=heads, decoder_layers=layers, dropout=dropout, steps=steps, seconds=seconds,
        batch_tokens=batch_tokens, learning_rate=learning_rate, optimiser=optimiser, seed=seed,
        threads=threads,
    )  # fmt: skip
    console = Console(soft_wrap=not sys.stdout.isatty(), markup=False, highlight=False)
    console.print(f"{len(text):,} characters from {file}; the last tenth is held out")
    with display(console) as progress:
        run = fit(text, options, out, progress=progress, resume=resume)
    if run.history.stopped == "interrupted":
        console.print(
            f"interrupted; {out}/model is the best so far. Go on with the same command and --resume"
        )
        raise typer.Exit(1)
    console.print(report(run, samples))
    console.print(f"\nthe model is in {out}/model")


def report(run: LanguageRun, samples: int = 2) -> str:
    """Return what the command prints at the end: loss by position, and samples."""
    import torch

    from intently.language_runs import by_context
    from intently.show.labels import visible

    text_model = run.text_model
    window, tokens = text_model.options.text.max_length, text_model.tokenizer
    kind = f"{tokens.kind} tokens, a vocabulary of {tokens.size:,}"
    said = [f"\nheld-out loss by position, in nats per token ({kind}, window {window}):", ""]
    said.append("  tokens before    loss")
    table = by_context(run.losses)
    most = max(loss for *_, loss in table)
    for first, last, loss in table:
        name = str(first) if first == last else f"{first}–{last}"
        said.append(f"  {name:>13}  {loss:6.3f}  {'█' * round(40 * loss / most)}")
    said.append(f"  {'all':>13}  {float(run.losses.mean()):6.3f}")
    generator = torch.Generator().manual_seed(text_model.options.run.seed)
    beginning = "".join(run.held_out.lstrip().splitlines(keepends=True)[:1])[:40]
    for number in range(samples):
        text = text_model.write(
            beginning, WRITTEN, temperature=0.8, top_p=0.95, generator=generator
        )
        said += ["", f"sample {number + 1} (temperature 0.8, top-p 0.95):"]
        said += [f"  {visible(line, 1000)}" if line.strip() else "" for line in text.splitlines()]
    return "\n".join(said)
