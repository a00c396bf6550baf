"""The folder of a translator: read with every check, written whole or not at all.

It holds ``translator.json``, ``model.safetensors``, ``source.json`` and ``target.json``. Nothing in
it is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from intently.errors import CheckpointError, build
from intently.files import replace_file

FORMAT = 1
"""Version of the folder's format; a folder with a higher one is refused."""

KIND = "intently translator"
ABOUT, WEIGHTS = "translator.json", "model.safetensors"


def embedded() -> Path:
    """Return the folder of the translator that is part of the package."""
    return Path(str(files("intently") / "embedded"))


def find(folder: Path) -> Path:
    """Return the folder, or the one named model in it, that holds a translator."""
    for path in (folder, folder / "model"):
        if (path / ABOUT).is_file():
            return path
    cause = None
    if not folder.exists():
        got = "no such folder"
    elif not folder.is_dir():
        got = "a file"
    else:
        names = sorted(path.name for path in folder.iterdir())
        got = f"a folder with {', '.join(names[:4])}{', …' * (len(names) > 4)}"
        got = got if names else "an empty folder"
        if "checkpoints" in names:
            cause = "its run has not ended; the command that began it ends it with --resume"
        elif "config.json" in names:
            cause = "it seems to hold a model of another library"
    raise build(
        CheckpointError, str(folder), f"a folder with {ABOUT}, or a run with model/{ABOUT}", got,
        cause, "give the folder that `intently train --out` or `intently demo --out` wrote",
    )  # fmt: skip


def about(path: Path) -> dict[str, Any]:
    """Return what the JSON file of a translator says."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise build(
            CheckpointError, str(path), f'JSON of kind "{KIND}"',
            "another kind of file", "it was made by another program",
        )  # fmt: skip
    version = found.get("format")
    if type(version) is not int or version < 1:
        raise damaged(path, f"format {version!r}")
    if version > FORMAT:
        raise build(
            CheckpointError, str(path), f"format {FORMAT}", f"format {version}",
            "it was written by a newer version of Intently", "upgrade intently",
        )  # fmt: skip
    return found


def tensors(path: Path, digest: str | None) -> dict[str, Tensor]:
    """Return the weights in a file, whose SHA-256 is ``digest``; halves become float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = path.read_bytes()
        found = load(content)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise damaged(path, str(error)) from None
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise damaged(path, f"another checksum than {ABOUT} holds")
    return {name: x.float() if x.dtype is torch.float16 else x for name, x in found.items()}


def write(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Put files into the folder, the one that describes them last.

    All are written under other names first, so that a full disk costs nothing. A kill leaves the
    old translator, the new one, or a folder that `about` refuses: never a mixture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drafts = {folder / name: folder / f".new-{name}" for name in contents if name != ABOUT}
    drafts[folder / ABOUT] = folder / f".new-{ABOUT}"
    try:
        for final, draft in drafts.items():
            replace_file(draft, contents[final.name])
    except BaseException:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
            draft.with_name(f".writing-{draft.name}").unlink(missing_ok=True)
        raise
    (folder / ABOUT).unlink(missing_ok=True)  # until it is there again, the folder is refused
    for final, draft in drafts.items():
        os.replace(draft, final)


def damaged(path: Path, what: str) -> CheckpointError:
    """Return the error that says what is wrong with a file."""
    return build(CheckpointError, str(path), "a file as `save` wrote it", what, "it is damaged")
