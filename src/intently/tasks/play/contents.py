"""What a page needs of a translator: its description in plain values, and blocks of numbers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

import torch
from torch import Tensor

from intently.core.positions import sinusoidal
from intently.errors import ArgumentError, KindError, build
from intently.nn.models import Transformer
from intently.nn.models.kinds import kind_of
from intently.show.page.packing import NumberBlocks
from intently.tasks.text import Tokenizer
from intently.tasks.translation import Translator

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
    if not isinstance(translator, Translator):
        raise build(KindError, "translator", "a Translator, Translator.load() say", translator)
    for name, given in {"text": text, "title": title}.items():
        if given is not None and not isinstance(given, str):
            raise build(KindError, name, "a text, or None", repr(given)[:60])
    model = translator.model
    if type(model) is not Transformer:
        raise build(
            ArgumentError,
            "translator",
            "a Transformer",
            f"one of the architecture {kind_of(model.options)!r}",
            "the page computes attention of queries, keys and values, and no recurrent states",
            "watch it with `intently look`, or train one without --architecture",
        )
    parameters = dict(model.named_parameters(remove_duplicate=False))
    count = sum(x.numel() for x in model.parameters())
    if count > LARGEST:
        raise build(
            ArgumentError,
            "translator",
            f"at most {LARGEST:,} parameters",
            f"{count:,}",
            "the page multiplies them in JavaScript, for every word",
        )
    tensors = {name: x.detach().float().cpu() for name, x in parameters.items()}
    if model.options.positions == "sinusoidal":
        tensors["positions"] = sinusoidal(_longest(translator), model.options.width).float()
    blocks = NumberBlocks()
    weights = {name: blocks.add(x, _dtype(x)) for name, x in tensors.items()}
    embedded = _is_embedded(translator)
    opening = text if text is not None else SENTENCE if embedded else ""
    about = {
        "format": FORMAT,
        "title": title or "Intently: a translator in this page",
        "text": opening,
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


def _dtype(x: Tensor) -> str:
    """Return float16 if it holds these numbers exactly."""
    return "float16" if torch.equal(x.half().float(), x) else "float32"


def _longest(translator: Translator) -> int:
    """Return the most tokens that either side of a translator has, specials included."""
    return 2 * translator.max_length + 12


def _is_embedded(translator: Translator) -> bool:
    """Return whether the weights are those of the embedded translator."""
    own, other = translator.model.state_dict(), Translator.load().model.state_dict()
    if own.keys() != other.keys():
        return False
    return all(own[n].shape == other[n].shape and own[n].equal(other[n]) for n in own)


def _tokenizer(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the vocabulary in the order of its ids, and the pairs that subwords merge."""
    model = json.loads(tokenizer.backend.to_str())["model"]
    entries = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [
        pair if isinstance(pair, list) else pair.split(" ") for pair in model.get("merges", [])
    ]
    return {"kind": tokenizer.kind, "entries": entries, "merges": merges}
