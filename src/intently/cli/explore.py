"""``intently explore``: the page of a recording of any length, served to this machine alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from intently.cli.serving import until_interrupted
from intently.errors import DataError, build
from intently.observe import load_recording
from intently.show.page.items import items_of
from intently.show.page.server import explorer


def explore(
    recording: Annotated[
        Path, typer.Argument(metavar="FILE", help="a recording that seen.save(…) wrote")
    ],
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, metavar="N", help="port on this machine (0: any free one)"),
    ] = 0,
    opened: Annotated[
        bool, typer.Option("--open", help="open the page in the browser of this machine")
    ] = False,
) -> None:
    """Look at a recording of any length in the browser.

    The address is printed; --open opens it in the browser, too. Ctrl-C stops the server. The
    numbers stay in the file; weights are computed when you look at them. Only this machine can
    reach the page, and only with the printed address, which holds a random token.
    """
    seen = load_recording(recording)
    if not seen.calls:
        raise build(DataError, str(recording), "a recording of some attention", "an empty one")
    server = explorer(items_of(seen), recording.name, port)
    until_interrupted(server, opened)
    if server.working:  # a thread inside PyTorch would abort the shutdown of the interpreter
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
