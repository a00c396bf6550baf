"""Checkpoints that survive a kill: complete or absent, never partial.

A checkpoint is a folder ``step-000123`` with its tensors (safetensors), its state (JSON) and a
manifest that holds the size and SHA-256 of each file. It is written under a temporary name, synced
to the disk, renamed, and only then does the file ``latest`` point to it. There is one checkpoint
per step, the last written.

    checkpoints/
      latest                 "step-000200" and a checksum of it
      step-000100/           kept, the best so far
      step-000200/
        manifest.json  model.safetensors  training.safetensors  state.json
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor

import intently
from intently.errors import ArgumentError, CheckpointError, WriteError, build
from intently.foundation.files import (
    File,
    digest,
    plain,
    replace_file,
    sealed,
    sync_folder,
    unwritten,
    write_synced,
)
from intently.kernels.native import instructions

FORMAT, VERSION = "intently-checkpoint", 1
MANIFEST, STATE = "manifest.json", "state.json"
MODEL, TRAINING = "model.safetensors", "training.safetensors"
NAME = re.compile(r"step-(\d{6,})(?:-(\d+))?")  # the second number occurs in older runs
LEFTOVER = re.compile(rf"\.writing-latest(-[0-9a-f]{{8}})?|\.(writing|removed)-{NAME.pattern}")
LATEST = re.compile(r"(\S+)(?: ([0-9a-f]{16}))?\s*")  # name, checksum (newer runs)
ABOUT_FILE = {"bytes": range(2**63), "sha256": re.compile("[0-9a-f]{64}")}
ABOUT = {
    "format": {FORMAT},
    "version": range(1, VERSION + 1),
    "best": (str, None),
    "versions": {str: str},
    "files": {MODEL: ABOUT_FILE, TRAINING: ABOUT_FILE, STATE: ABOUT_FILE},
}
"""The shape of a manifest, without its own checksum."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: weights, tensors of the training, and a state of plain values.

    ``source`` is the folder it was read from, for messages.
    """

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]
    source: str = "the checkpoint"


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def names(self) -> list[str]:
        """Return the names of the complete checkpoints, oldest first."""
        found = File(self.folder, "a folder of checkpoints").names()
        found = [name for name in found if NAME.fullmatch(name)]
        return sorted(filter(self._there, found), key=_order)

    def begun(self, resume: bool | str) -> bool:
        """Return whether a run has left checkpoints here.

        Raises `ArgumentError` if there are checkpoints and the caller does not ``resume``,
        `CheckpointError` if the checkpoint to resume from does not exist. Only the sole writer may
        call this: it also restores the latest checkpoint if a kill interrupted its replacement.
        """
        self._put_back()
        names = self.names()
        if names and not resume:
            raise build(
                ArgumentError,
                "out",
                "a folder without a run",
                f"{self.folder.parent} with {names[-1]}",
                fix="resume it (--resume, in Python resume=True), or choose another folder",
            )
        if isinstance(resume, str) and resume not in names:
            raise self._missing(resume)
        return bool(names)

    def save(self, name: str, checkpoint: Checkpoint, best: str | None = None) -> Path:
        """Write a checkpoint, make it the latest, and return its folder.

        It replaces an earlier checkpoint of the same step. ``best`` is the name of the best
        checkpoint so far, which may be this one.
        """
        final, draft = self.folder / name, self.folder / f".writing-{name}"
        before = self.folder / f".removed-{name}"
        contents = {
            MODEL: bytes_from_tensors(checkpoint.model),
            TRAINING: bytes_from_tensors(checkpoint.training),
            STATE: plain(checkpoint.state),
        }
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "best": best,
            "versions": versions(),
            "files": {n: {"bytes": len(c), "sha256": digest(c)} for n, c in contents.items()},
        }
        with self.surviving():
            try:
                self.folder.mkdir(exist_ok=True)
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir()
                for file, content in {**contents, MANIFEST: sealed(manifest)}.items():
                    write_synced(draft / file, content)
                sync_folder(draft)
                if final.exists():
                    shutil.rmtree(before, ignore_errors=True)
                    os.rename(final, before)  # `begun` repairs a kill before the next line
                os.rename(draft, final)
                sync_folder(self.folder)
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                self._put_back()
                raise unwritten(final, error) from error
            replace_file(self.folder / "latest", f"{name} {digest(name.encode())[:16]}".encode())
        shutil.rmtree(before, ignore_errors=True)
        for other in self.names():
            if other != name and step_of(other) == step_of(name):
                self._remove(other)
        return final

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Add to a `WriteError` the last complete checkpoint, and how to resume."""
        try:
            yield
        except WriteError as error:
            last = self.last()
            told = "No checkpoint is complete yet: begin again when there is room."
            if last is not None:
                told = (
                    f"The last complete checkpoint is {self.folder / last}: continue with --resume."
                )
            raise WriteError(f"{error} {told}") from error.__cause__

    def load(self, name: str | None = None, state: Any = dict) -> Checkpoint:
        """Return the checkpoint ``name``, by default the latest.

        ``state`` is the shape that its state must have, see `files.fault`. Raises CheckpointError
        if it is missing, damaged, foreign or of a newer version, and names the newest good one;
        nothing is deleted. A checkpoint that cannot be read is not called damaged.
        """
        name = self.latest() if name is None else name
        try:
            contents = self._verified(name)
            return Checkpoint(
                self._file(name, MODEL).tensors(contents[MODEL]),
                self._file(name, TRAINING).tensors(contents[TRAINING]),
                self._file(name, STATE).json(state, contents[STATE]),
                str(self.folder / name),
            )
        except CheckpointError as error:
            absent = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            if isinstance(error.__cause__, OSError) and not absent:
                raise
            good = self._newest_good(but=name)
            advice = (
                good and f" The newest good checkpoint is {good}: continue with {_resume(good)}."
            )
            raise CheckpointError(f"{error}{advice or ''}") from error.__cause__

    def latest(self) -> str:
        """Return the name of the last written checkpoint.

        Raises CheckpointError if there is none.
        """
        names = self.names()
        if not names:
            found = "a folder without a complete one" if self.folder.is_dir() else "no such folder"
            raise build(CheckpointError, str(self.folder), "a folder of checkpoints", found)
        pointer = File(self.folder / "latest", "the name of a checkpoint")
        if not pointer.exists():  # killed between the first checkpoint and its pointer
            return names[-1]
        content = pointer.read()
        name = _named(content)
        if name is None:
            good = self._newest_good()
            fix = f"continue with {_resume(good)}" if good else None
            raise pointer.refusal(repr(content[:80]), "it is damaged", fix)
        return name

    def last(self) -> str | None:
        """Return the name of the last written checkpoint, None where there is none."""
        try:
            return self.latest()
        except CheckpointError:
            return None

    def best(self) -> str:
        """Return the name of the best checkpoint recorded in the latest one, else the latest."""
        latest = self.latest()
        best = self._manifest(latest)["best"]
        return best if isinstance(best, str) and best in self.names() else latest

    def prune(self, keep: int, upto: int, every: int = 1) -> None:
        """Remove checkpoints up to step ``upto`` except the ``keep`` newest and their best.

        Before ``upto``, only steps that ``every`` divides are kept: all other checkpoints exist
        only because a run was stopped there.
        """
        names = [name for name in self.names() if step_of(name) <= upto]
        by_step = {step_of(name): name for name in names if step_of(name) % every == 0}
        kept = {*list(by_step.values())[-keep:], *names[-1:]}
        for name in tuple(kept):
            try:
                kept.add(str(self._manifest(name)["best"]))
            except CheckpointError:
                continue
        for name in names:
            if name not in kept:
                self._remove(name)

    def remove(self) -> None:
        """Remove every checkpoint; another file in the folder stays, and the folder with it."""
        for name in self.names():
            self._remove(name)
        (self.folder / "latest").unlink(missing_ok=True)
        self.clean()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def clean(self) -> None:
        """Remove the leftovers of interrupted writes."""
        for leftover in self.folder.glob(".*"):
            if LEFTOVER.fullmatch(leftover.name):
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

    def _remove(self, name: str) -> None:
        removed = self.folder / f".removed-{name}"  # renamed first, so that it vanishes at once
        os.rename(self.folder / name, removed)
        shutil.rmtree(removed)

    def _put_back(self) -> None:
        """Restore the latest checkpoint if `save` was killed while replacing it."""
        with suppress(OSError, CheckpointError):
            name = _named(File(self.folder / "latest", "the name of a checkpoint").read())
            if name and not (self.folder / name).exists():
                os.rename(self.folder / f".removed-{name}", self.folder / name)

    def _newest_good(self, but: str | None = None) -> str | None:
        for name in reversed(self.names()):
            if name != but:
                try:
                    self._verified(name)
                except CheckpointError:
                    continue
                return name
        return None

    def _missing(self, name: str) -> CheckpointError:
        there = ", ".join(self.names()) or "none"
        return build(CheckpointError, name, f"one of the checkpoints here ({there})", "no such")

    def _manifest(self, name: str) -> dict[str, Any]:
        """Return the manifest of a checkpoint, its own checksum checked."""
        folder, file = self.folder / name, self._file(name, MANIFEST)
        if not NAME.fullmatch(name) or not self._there(name):
            raise self._missing(name)
        if not file.exists():
            expected = f"a checkpoint of Intently, with a file {MANIFEST}"
            raise build(CheckpointError, str(folder), expected, _listing(folder))
        content = file.read()
        manifest = file.json(dict, content)
        if manifest.get("format") != FORMAT:
            expected, got = f"a checkpoint of Intently ({FORMAT!r})", repr(manifest.get("format"))
            raise build(CheckpointError, str(file.path), expected, got[:80], "it is foreign")
        version, maker = manifest.get("version"), manifest.get("versions")
        if type(version) is int and version > VERSION:
            expected = f"a checkpoint of format version {VERSION} or older"
            name = maker.get("intently", "unknown") if isinstance(maker, dict) else "unknown"
            cause = f"it was written by a newer Intently, {str(name)[:20]!r}"
            got = f"version {version}"
            raise build(CheckpointError, str(file.path), expected, got, cause, "update Intently")
        return file.sealed(ABOUT, content)

    def _verified(self, name: str) -> dict[str, bytes]:
        """Return the contents of the files of a checkpoint, sizes and checksums checked."""
        listed, contents = self._manifest(name)["files"], {}
        for each in (MODEL, TRAINING, STATE):  # our own file names, never those from the manifest
            file, about = self._file(name, each), listed[each]
            contents[each] = file.read(most=None, exactly=about["bytes"])
            if digest(contents[each]) != about["sha256"]:
                raise file.damaged("another checksum than it was written with")
        return contents

    def _there(self, name: str) -> bool:
        return File(self.folder / name, "the folder of a checkpoint").is_folder()

    def _file(self, name: str, file: str) -> File:
        return File(self.folder / name / file, "a file of a checkpoint as it was written")


def _named(pointer: bytes) -> str | None:
    """Return the name in the file ``latest``, None if the file was changed."""
    found = LATEST.fullmatch(pointer.decode(errors="replace"))
    name, check = found.groups() if found else ("", None)
    right = NAME.fullmatch(name) and check in (None, digest(name.encode())[:16])
    return name if right else None


def _resume(name: str) -> str:
    """Return how to resume from the checkpoint ``name``, for messages."""
    return f"--resume-from {name}, in Python resume={name!r}"


def versions() -> dict[str, str]:
    """Return what the last bits of a run depend on: libraries, and the native kernel's vectors."""
    return {
        "intently": intently.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "native": instructions() or "none",
    }


def name_of(step: int) -> str:
    """Return the name of the checkpoint after ``step`` steps.

    >>> name_of(123)
    'step-000123'
    """
    return f"step-{step:06d}"


def step_of(name: str) -> int:
    """Return the step after which a checkpoint was written.

    >>> step_of("step-000200"), step_of("step-000200-2")
    (200, 200)
    """
    return _order(name)[0]


def _order(name: str) -> tuple[int, int]:
    step, again = name.removeprefix("step-").partition("-")[::2]
    return int(step), int(again or 1)


def _listing(folder: Path) -> str:
    names = File(folder, "a checkpoint").names()
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "an empty folder"
