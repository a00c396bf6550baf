"""``intently explore`` and ``intently play``: a page that is served until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from intently.cli.arguments import Open, option
from intently.errors import DataError, build

if TYPE_CHECKING:
    from intently.show.page.server import Server

Port = Annotated[int, option("N", "port on this machine (0: any free one)", min=0, max=65535)]


def explore(
    recording: Annotated[
        Path, Argument(metavar="FILE", help="a recording that seen.save(…) wrote")
    ],
    port: Port = 0,
    opened: Open = False,
) -> None:
    """Look at a recording of any length in the browser.

    The address is printed; --open opens it in the browser, too. Ctrl-C stops the server. The
    numbers stay in the file; weights are computed when you look at them. Only this machine can
    reach the page, and only with the printed address, which holds a random token.
    """
    from intently.observe import load_recording
    from intently.show.page.items import items_of
    from intently.show.page.server import explorer

    seen = load_recording(recording)
    if not seen.calls:
        raise build(DataError, str(recording), "a recording of some attention", "an empty one")
    server = explorer(items_of(seen), recording.name, port)
    _until_interrupted(server, opened)
    if server.working:  # a thread inside PyTorch would abort the shutdown of the interpreter
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def play(
    model: Annotated[
        Path | None,
        Argument(help="folder of a run of intently train (default: the embedded translator)"),
    ] = None,
    out: Annotated[Path | None, option("FILE", "only write the page, one HTML file")] = None,
    text: Annotated[str | None, option("TEXT", "sentence that the page opens with")] = None,
    port: Port = 0,
    opened: Annotated[bool, Option("--open/--no-open", help="open the page in the browser")] = True,
) -> None:
    """Type in the browser, watch it translate, cross something out.

    The page is one file: the translator runs in it, without a server or a network. It is served to
    this machine until Ctrl-C, at the printed address, which holds a random token, and opened in
    the browser; with --out it is only written.
    """
    from intently.show.page.server import Server
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
    else:
        _until_interrupted(Server(whole(packed(translator, text)), port), opened)


def _until_interrupted(server: Server, opened: bool) -> None:
    """Print the address, open it in the browser if ``opened``, and serve until Ctrl-C."""
    try:
        print(server.address, flush=True)
        print("ctrl-C ends it", file=sys.stderr)
        if opened:
            webbrowser.open(server.address)
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print(file=sys.stderr)
    finally:
        server.server_close()
