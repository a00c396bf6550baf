"""Runs the model in a folder on a text under `watch`, and reports on what was seen."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from intently.errors import DataError, KernelError, build
from intently.observe import Recording, watch
from intently.show.labels import visible
from intently.show.page.items import Side
from intently.tasks.decoding import SearchOptions
from intently.tasks.language import TextModel
from intently.tasks.translation import model_folder
from intently.tasks.translation.translator import TranslationWarning, Translator

T = TypeVar("T")


class Watched(NamedTuple):
    """A recording, and lines to print with it, such as a translation or a note on a cut text."""

    seen: Recording
    told: Sequence[str] = ()
    sides: Sequence[Side] = ()
    """The sides of its matrices, if they are not the tokens of the recording."""
    guided: tuple[str, int] | None = None
    """The module and the head that were taught by links, see `intently.tasks.training.loss`."""


def check_seen(command: str, seen: Recording) -> None:
    """Raise `KernelError` with the reason if nothing was recorded."""
    if not seen.calls:
        cause = "; ".join(unsure(seen)).removeprefix("; ") or "no module of it attended"
        raise build(KernelError, command, "attention to be seen", "none", cause)


def fitting(ids: Sequence[int], limit: int | None) -> tuple[Sequence[int], list[str]]:
    """The tokens that fit into a model, and a note if there were more."""
    if not ids:
        raise build(DataError, "TEXT", "a text of at least one token", "none")
    if limit is None or len(ids) <= limit:
        return ids, []
    return ids[:limit], [f"{len(ids):,} tokens, cut after {limit:,}, all the model takes", ""]


def unsure(seen: Recording, told: Iterable[str] = ()) -> Iterator[str]:
    """Report layers that were not seen, cannot be read or are unverified, except those ``told``."""
    found, known = seen.coverage(), {name.partition("[")[0] for name in told}
    lines = [
        f"{'not compared' if line.verified is None else 'UNVERIFIED'}: {line.name}: {line.why}"
        for line in found.seen
        if line.verified is not True and line.name not in known
    ]
    lines += [f"not seen: {name}: {why}" for name, why in found.unseen.items()]
    lines += found.notes
    yield from ["", *(visible(line, 1000) for line in lines)] if lines else ()


def in_folder(folder: Path, kinds: Mapping[str, T]) -> T:
    """Return what ``kinds`` has for the file that a folder holds; raise `DataError` for none."""
    for name, run in kinds.items():
        known = model_folder.holding(folder, name)
        if known is not None and (name != "config.json" or known == folder):
            return run
    expected = f"a folder with one of {', '.join(kinds)}"
    fix = "give what `intently train`, `intently train-lm` or save_pretrained wrote"
    raise build(DataError, str(folder), expected, model_folder.listing(folder), fix=fix)


def run_translation(folder: Path | None, text: str, layers: list[str] | None, beam: int) -> Watched:
    """The translation of a text by the translator of a folder, or the embedded one."""
    return translated(Translator.load(folder), text, layers, beam)


def translated(
    translator: Translator, text: str, layers: list[str] | None = None, beam: int = 1
) -> Watched:
    """Watch a translator translate a text, labelled with the tokens of both sides.

    With a ``beam`` above 1, only the source is labelled. The notes of the translation follow it.
    """
    with watch(translator.model, layers=layers) as seen, warnings.catch_warnings():
        warnings.simplefilter("ignore", TranslationWarning)  # its notes are told
        (made,) = translator.translate([text], SearchOptions(beam=beam))
    fitting(made.sides[0].ids, None)
    source = [*translator.source_tokenizer.tokens(made.sides[0].ids), "</s>"]
    produced = translator.target_tokenizer.tokens(made.hypothesis.ids)
    end = ["</s>"] * made.hypothesis.ended  # an output cut at its limit has none
    target = ["<s>", *produced, *end] if beam == 1 else []  # each beam has its own
    seen.tokens = source, target
    told = [visible(made.text, 100_000), *made.notes, ""]
    return Watched(seen, told, guided=translator.guided)


def run_language(folder: Path, text: str, layers: list[str] | None, beam: int) -> Watched:
    """One pass of a language model over a text, cut to the positions of the model."""
    made = TextModel.load(folder)
    ids = made.tokenizer.encode(text)
    ids, told = fitting(ids, made.model.max_length)
    with (
        torch.inference_mode(),
        watch(made.model, layers=layers, tokens=made.tokenizer.tokens(ids)) as seen,
    ):
        made.model(torch.tensor([ids]))
    return Watched(seen, told)
