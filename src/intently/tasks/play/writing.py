"""The page of a translator as one file: the views of any page, a worker, and the weights."""

from __future__ import annotations

import os
from pathlib import Path

from intently.foundation import files
from intently.show.page.script import joined, source, strict
from intently.show.page.writing import described, destination, head, scripts, style
from intently.tasks.play.contents import Contents, packed
from intently.tasks.translation import Translator


def save_play(
    translator: Translator,
    path: str | os.PathLike[str],
    *,
    text: str | None = None,
    title: str | None = None,
) -> Path:
    """Write a page in which a translator runs; ``text`` is the sentence it opens with.

    The numbers are those of Python: every weight and log-probability is within 10⁻⁴. Raises what
    `packed` raises, `ArgumentError` for a path that does not end in .html, and `WriteError` if the
    file cannot be written.

    >>> import tempfile
    >>> path = save_play(Translator.load(), tempfile.mkdtemp() + "/play.html")
    >>> path.stat().st_size < 4_000_000
    True
    """
    final = destination(path)
    contents = packed(translator, text, title)
    files.make_folder(final.parent)
    with files.replacing(final) as file:
        file.write(whole(contents))
    return final


def whole(contents: Contents) -> bytes:
    """Return the page; equal contents give equal bytes."""
    about, blocks = contents
    code, worker = strict(joined(["play"])), strict(joined(["worker"]))
    parts = (
        head(about["title"], style("live"), code, workers="blob:"),
        f"<body>\n{source('body.html').strip()}\n",
        f'<script type="application/json" id="intently-translator">{described(about)}</script>\n',
        f"<script>{code}</script>\n",
        f'<script type="text/plain" id="intently-worker">{worker}</script>\n',
        *scripts(blocks, range(len(blocks))),
        "</body>\n</html>\n",
    )
    return "".join(parts).encode()
