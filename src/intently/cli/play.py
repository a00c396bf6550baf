"""``intently play``: a translator that runs in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intently.cli.serving import until_interrupted


def play(
    model: Annotated[
        Path | None,
        typer.Argument(help="folder of a run of intently train (default: the embedded translator)"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="only write the page, one HTML file")
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="sentence that the page opens with")
    ] = None,
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="N", help="port on this machine (0: any free one)"),
    ] = 0,
    opened: Annotated[
        bool, typer.Option("--open/--no-open", help="open the page in the browser")
    ] = True,
) -> None:
    """Type in the browser, watch it translate, cross something out.

    The page is one file: the translator runs in it, without a server or a network. It is served to
    this machine until Ctrl-C, at the printed address, which holds a random token, and opened in
    the browser; with --out it is only written.
    """
    from intently.show.page.writing import destination
    from intently.tasks.play import packed, save_play, whole
    from intently.tasks.recipes import example
    from intently.tasks.translation import Translator

    if out is not None:
        destination(out)
    translator = Translator.load(model)
    if text is None and model is not None:
        text = example(model)
    if out is not None:
        print(save_play(translator, out, text=text))
        return
    from intently.show.page.serving.server import Server

    until_interrupted(Server(whole(packed(translator, text)), port), opened)
