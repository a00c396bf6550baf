"""The folder of a trained model: verified on reading, written completely or not at all.

It holds ``model.safetensors``, tokenizers, and a description (``translator.json``,
``language.json``) with the checksums of these files and of itself. Nothing is ever unpickled, and
no model is built before its sizes are checked against the weights.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import intently
from intently.errors import CheckpointError, DataError, IntentlyError, build, one_line
from intently.foundation.files import File, digest, replace_files, sealed
from intently.nn.models.shared import check_alike, load_weights, weights
from intently.tasks.text import Tokenizer

FORMAT = 2
"""Version of the format; higher ones are refused, version 1 has fewer checksums."""

WEIGHTS = "model.safetensors"
SHA256 = re.compile("[0-9a-f]{64}")

SHOWN = 200
"""Characters of a cause that are shown."""

HEADER = 2**20
"""Largest header of the weights, in bytes: enough for thousands of layers."""

LEAST = 4
"""Tensors in the smallest layer."""

OTHERS = {
    "language.json": (
        "it holds a language model, not a translator",
        'continue a text with it: intently write {0} "TEXT". See what it attends to: '
        'intently watch {0} "TEXT"',
    ),
    "translator.json": (
        "it holds a translator, not a language model",
        'translate with it: intently translate {0} "TEXT"',
    ),
}
"""What another kind of model is, and what it is for, by its description."""

M = TypeVar("M", bound=nn.Module)


def file(path: Path) -> File:
    """Return a file of a model's folder, with the texts of its error messages."""
    return File(path, "a file as `save` wrote it", fix="train again, or take another copy")


def holding(folder: Path, name: str) -> Path | None:
    """Return the folder that holds the file ``name``: this one, ``model`` in it, or None."""
    return next((path for path in (folder, folder / "model") if file(path / name).exists()), None)


def listing(folder: Path) -> str:
    """Return what a folder holds, for messages."""
    found = file(folder)
    if not found.is_folder():
        return "a file" if found.exists() else "no such folder"
    names = found.names()
    more = ", …" * (len(names) > 4)
    return f"a folder with {', '.join(names[:4])}{more}" if names else "an empty folder"


def find(folder: Path, name: str) -> Path:
    """Return the folder that holds the description ``name``: this one, or ``model`` in it."""
    path = holding(folder, name)
    if path is not None:
        return path
    cause, fix = None, "give the folder that `--out` named when it was trained"
    other = next((n for n in OTHERS if n != name and holding(folder, n)), None)
    if other is not None:
        cause, fix = OTHERS[other]
        fix = fix.format(shlex.quote(str(folder)))
    elif file(folder / "checkpoints").exists():
        cause = "its run has not ended; the command that began it ends it with --resume"
    elif file(folder / "config.json").exists():
        cause = "it seems to hold a model of another library"
    expected = f"a folder with {name}, or a run with model/{name}"
    raise one_line(build(CheckpointError, str(folder), expected, listing(folder), cause, fix))


def about(path: Path, shape: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a model, with the checksums of its files.

    ``shape`` is its shape without "format", "files", "versions" and its own checksum; ``before`` is
    the shape of format 1.
    """
    described = file(path)
    content = described.read()
    found = described.json({str: object}, content)
    kind, version = shape.get("kind"), found.get("format")
    if kind and not any(found.get("kind") == known for known in kind):
        raise build(
            CheckpointError,
            str(path),
            f"JSON of kind {' or '.join(map(repr, kind))}",
            "another kind of file",
            "it was made by another program",
        )
    if type(version) is int and version > FORMAT:
        raise build(
            CheckpointError,
            str(path),
            f"format {FORMAT} or older",
            f"format {version}",
            "it was written by a newer version of Intently",
            "upgrade intently",
        )
    if type(version) is int and version == 1:
        described.check(found, {**before, "format": range(1, 2), "versions?": {str: str}})
        return {"files": {}, **found}
    more = {"format": range(1, FORMAT + 1), "files": {str: SHA256}, "versions": {str: str}}
    return described.sealed({**shape, **more}, content)


def tokenizer(path: Path, check: str | None) -> Tokenizer:
    """Return the tokenizer in a file whose SHA-256 is ``check``."""
    try:
        found = Tokenizer.load(path)
    except DataError as error:
        raise CheckpointError(str(error)) from error.__cause__
    _check(file(path), file(path).read(most=None), check)
    return found


def model(path: Path, check: str | None, make: Callable[[], M], layers: int) -> M:
    """Return the model from ``make``, with the weights in a file whose SHA-256 is ``check``.

    The model has this number of ``layers``. Before it is built, the names and sizes of its weights
    are compared with the header of the file, so a small file never causes a large model.
    """
    stored = file(path)
    header = stored.header(most=HEADER)
    if layers * LEAST > len(header.tensors):
        raise stored.refusal(f"{len(header.tensors)} tensors", f"the model has {layers:,} layers")
    cause = "the weights are of a model with other options"
    try:
        with torch.device("meta"):
            blank = weights(make())
    except (IntentlyError, RuntimeError, MemoryError, OverflowError, TypeError) as error:
        first = str(error).partition("\n")[0][:SHOWN]  # PyTorch adds the C++ stack below
        raise stored.refusal("others", f"{cause}, of which none can be made ({first})") from None
    check_alike(blank, header.blank(), cause, str(path))
    content = stored.read(most=None)
    _check(stored, content, check)
    made = make()
    load_weights(made, stored.tensors(content), str(path))
    return made


def write(folder: Path, name: str, said: Mapping[str, Any], contents: Mapping[str, bytes]) -> None:
    """Put a model's files and their description ``name`` into a folder; raises WriteError.

    A full disk or a kill leaves the old model, the new one, or a folder that is refused, but never
    a mixture.
    """
    told = {
        **said,
        "format": FORMAT,
        "files": {each: digest(content) for each, content in contents.items()},
        "versions": {"intently": intently.__version__, "torch": torch.__version__},
    }
    replace_files(folder, {**contents, name: sealed(told)}, last=name)


def _check(stored: File, content: bytes, check: str | None) -> None:
    if check is not None and digest(content) != check:
        raise stored.damaged("another checksum than the description beside it holds")
