"""``intently demo``: an attention model that learns to translate, before your eyes."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from intently.cli.arguments import out_folder
from intently.errors import ArgumentError, build
from intently.tasks import demo as steps


def demo(
    out: Annotated[
        Path,
        typer.Option(
            parser=out_folder, metavar="FOLDER", help="folder for the model, pages and pictures"
        ),
    ] = Path("intently-demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="a third of the time, lower quality")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="a little longer, as embedded")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="resume an interrupted demo")] = False,
) -> None:
    """Train a translator before your eyes; draw what it attends to."""
    from rich.console import Console

    if quick and thorough:
        raise build(ArgumentError, "--quick, --thorough", "one of them", "both")
    console = Console(soft_wrap=not sys.stdout.isatty())
    size = steps.QUICK if quick else steps.THOROUGH if thorough else steps.USUAL
    result = steps.run(size, out, console, resume=resume)
    quoted = shlex.quote(str(out))
    again = f"intently demo --out {quoted}" + (f" --{size.name}" if size.name != "usual" else "")
    if result is None:
        console.print(
            f"interrupted; {out}/model is usable. Resume with:\n  {again} --resume", markup=False
        )
        raise typer.Exit(1)
    steps.table(result, console)
    console.print(
        f"\nAll of it is in {out}/index.html: scores, pictures and pages. Now try:\n"
        f'  intently translate "The road was too wide." --show\n'
        f'  intently look "The road was too wide."\n'
        f'  intently translate {quoted} "Mary gave Paul an apple." --pictures pictures\n'
        f"  intently train SOURCE.txt TARGET.txt --out my-run\n"
        f"  intently play {quoted}          (type in the browser, and cross something out)",
        highlight=False,
        markup=False,
    )
