"""``intently write``: a language model continues a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intently.tasks.language import TextModel


def write(
    model: Annotated[Path, typer.Argument(help="folder of a run of intently train-lm")],
    text: Annotated[str, typer.Argument(help="how the text begins")] = "",
    tokens: Annotated[
        int, typer.Option(min=0, max=100_000, metavar="N", help="tokens to write")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(metavar="X", help="below 1 safer, above 1 wilder; 0: the likeliest token"),
    ] = 0.8,
    top_k: Annotated[
        int | None, typer.Option(metavar="N", help="draw from the N likeliest tokens only")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(metavar="X", help="draw from the likeliest tokens, X of the probability"),
    ] = 0.95,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**31 - 1, metavar="N", help="draw the same text each time"),
    ] = None,
) -> None:
    """Continue a text with a language model.

    The model is one that `intently train-lm` wrote. It sees its last window of tokens, so it can
    write for as long as you like.
    """
    import torch

    written = TextModel.load(model)
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    print(
        written.write(
            text, tokens, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator
        )
    )
