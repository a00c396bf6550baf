"""A translator inside a page: type, watch it translate, and change what it attends to.

`save_play` writes one HTML file in which the translator itself runs, without a server or a network;
``intently play`` serves the same page to this machine.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from intently.core.positions import sinusoidal
from intently.errors import ArgumentError, KindError, build
from intently.foundation import files
from intently.nn.models import Transformer
from intently.nn.models.kinds import kind_of
from intently.show.page.packing import NumberBlocks
from intently.show.page.script import joined, source, strict
from intently.show.page.writing import described, destination, head, scripts, style
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

__all__ = ["LARGEST", "Contents", "packed", "save_play", "whole"]

FORMAT = "intently-play-1"

LARGEST = 20_000_000
"""Most parameters of a translator in a page: a browser answers within a second or two."""

SENTENCE = "The animal didn't cross the road because it was too wide."
"""The sentence that a page of the embedded translator opens with."""


class Contents(NamedTuple):
    """A translator before it is written: ``about`` in plain values, ``blocks`` of numbers."""

    about: dict[str, Any]
    blocks: list[bytes]


def packed(translator: Translator, text: str | None = None, title: str | None = None) -> Contents:
    """Describe a translator and pack its numbers, float16 where that loses nothing, else float32.

    ``text`` is the sentence that the page opens with. Raises `KindError` for anything but a
    `Translator` and strings, `ArgumentError` for a recurrent translator and for one with more than
    20 million parameters.

    >>> contents = packed(Translator.load())
    >>> contents.about["options"]["width"], sum(map(len, contents.blocks)) < 3_000_000
    (128, True)
    """
    _check(translator, text, title)
    model = translator.model
    parameters = model.named_parameters(remove_duplicate=False)
    tensors = {name: x.detach().float().cpu() for name, x in parameters}
    if model.options.positions == "sinusoidal":
        longest = 2 * translator.max_length + 12  # tokens on either side, specials included
        tensors["positions"] = sinusoidal(longest, model.options.width).float()
    blocks = NumberBlocks()
    weights = {
        name: blocks.add(x, "float16" if torch.equal(x.half().float(), x) else "float32")
        for name, x in tensors.items()
    }
    embedded = _is_embedded(translator)
    about = {
        "format": FORMAT,
        "title": title or "Intently: a translator in this page",
        "text": text if text is not None else SENTENCE if embedded else "",
        "embedded": embedded,
        "options": dataclasses.asdict(model.options),
        "max_length": translator.max_length,
        "alignment_head": translator.alignment_head,
        "guided": translator.guided,
        "source": _tokenizer(translator.source_tokenizer),
        "target": _tokenizer(translator.target_tokenizer),
        "weights": weights,
        "blocks": blocks.kinds,
    }
    return Contents(about, blocks.packed)


def _check(translator: Translator, text: str | None, title: str | None) -> None:
    """Refuse what is no translator, and one that a page cannot compute."""
    if not isinstance(translator, Translator):
        raise build(KindError, "translator", "a Translator, Translator.load() say", translator)
    for name, value in {"text": text, "title": title}.items():
        if value is not None and not isinstance(value, str):
            raise build(KindError, name, "a text, or None", repr(value)[:60])
    model = translator.model
    if type(model) is not Transformer:
        raise build(
            ArgumentError,
            "translator",
            "a Transformer",
            f"one of the architecture {kind_of(model.options)!r}",
            "the page computes attention of queries, keys and values, and no recurrent states",
            "watch it with `intently look`, or train one without --model recurrent",
        )
    count = sum(x.numel() for x in model.parameters())
    if count > LARGEST:
        expected = f"at most {LARGEST:,} parameters"
        why = "the page multiplies them in JavaScript, for every word"
        raise build(ArgumentError, "translator", expected, f"{count:,}", why)


def _is_embedded(translator: Translator) -> bool:
    """Return whether the weights are those of the embedded translator."""
    weights, embedded = translator.model.state_dict(), Translator.load().model.state_dict()
    return weights.keys() == embedded.keys() and all(
        torch.equal(weights[name], x) for name, x in embedded.items()
    )


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the vocabulary in the order of its ids, and the pairs that subwords merge."""
    model = json.loads(tokenizer.backend.to_str())["model"]
    entries = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [
        pair if isinstance(pair, list) else pair.split(" ") for pair in model.get("merges", [])
    ]
    return {"kind": tokenizer.kind, "entries": entries, "merges": merges}


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
