"""Runs our own models on a text and watches them; the runner for a folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from intently.decoding import SearchOptions
from intently.errors import DataError, build
from intently.language import TextModel
from intently.observe import watch
from intently.runners.pretrained import run_text
from intently.runners.watched import Watched, fitting
from intently.show.labels import visible
from intently.translation.translator import TranslationWarning, Translator

T = TypeVar("T")


def runner(folder: Path | None) -> Callable[..., Watched]:
    """Return the function that runs the model in a folder."""
    kinds = {"translator.json": _translation, "language.json": _language, "config.json": run_text}
    return _translation if folder is None else in_folder(folder, kinds)


def in_folder(folder: Path, kinds: Mapping[str, T]) -> T:
    """Return what ``kinds`` has for the file that a folder holds; raise `DataError` for none."""
    for name, run in kinds.items():
        inside = () if name == "config.json" else (folder / "model",)
        if any((path / name).is_file() for path in (folder, *inside)):
            return run
    if not folder.is_dir():
        got = "a file" if folder.exists() else "no such folder"
    else:
        names = sorted(path.name for path in folder.iterdir())
        got = f"a folder with {', '.join(names[:4])}" if names else "an empty folder"
    expected = f"a folder with one of {', '.join(kinds)}"
    fix = "give what `intently train`, `intently train-lm` or save_pretrained wrote"
    raise build(DataError, str(folder), expected, got, fix=fix)


def _translation(folder: Path | None, text: str, layers: list[str] | None, beam: int) -> Watched:
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


def _language(folder: Path, text: str, layers: list[str] | None, beam: int) -> Watched:
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
