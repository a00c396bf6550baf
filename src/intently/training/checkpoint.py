"""Checkpoints that survive being killed: complete or absent, never half.

A checkpoint is a folder ``step-000123`` with its tensors (safetensors), its state (JSON) and a
manifest that holds the size and SHA-256 of each file. It is written under a temporary name, synced
to the disk, renamed, and only then does the file ``latest`` point to it.

    checkpoints/
      latest                 "step-000200"
      step-000100/           kept, the best so far
      step-000200/
        manifest.json  model.safetensors  training.safetensors  state.json
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor, nn

import intently
from intently.errors import ArgumentError, CheckpointError, build

FORMAT, VERSION = "intently-checkpoint", 1
MANIFEST, STATE = "manifest.json", "state.json"
MODEL, TRAINING = "model.safetensors", "training.safetensors"
NAME = re.compile(r"step-(\d{6,})(?:-(\d+))?")  # the second number: written again at this step


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds: weights, tensors of the training, a state of plain values."""

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def names(self) -> list[str]:
        """Return the names of the complete checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = [p.name for p in self.folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir()]
        return sorted(found, key=_order)

    def begun(self, resume: bool | str) -> bool:
        """Return whether a run has left checkpoints here.

        Raises `ArgumentError` where it has and the caller does not ``resume`` it,
        `CheckpointError` where it is to go on from one that is not here.
        """
        names = self.names()
        if names and not resume:
            raise build(
                ArgumentError, "out", "a folder without a run",
                f"{self.folder.parent} with {names[-1]}",
                fix="go on with it (--resume, in Python resume=True), or choose another folder",
            )  # fmt: skip
        if isinstance(resume, str) and resume not in names:
            raise self._missing(resume)
        return bool(names)

    def free_name(self, step: int) -> str:
        """Return a name not yet taken for a checkpoint after ``step`` steps.

        >>> Checkpoints("nowhere").free_name(123)
        'step-000123'
        """
        taken, name, again = self.names(), f"step-{step:06d}", 1
        while name in taken:
            again += 1
            name = f"step-{step:06d}-{again}"
        return name

    def save(self, name: str, checkpoint: Checkpoint, best: str | None = None) -> Path:
        """Write a checkpoint under a free name, make it the latest, and return its folder.

        ``best`` is the name of the best checkpoint so far, which may be this one.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        final = self.folder / name
        draft = self.folder / f".writing-{final.name}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        contents = {
            MODEL: bytes_from_tensors(checkpoint.model),
            TRAINING: bytes_from_tensors(checkpoint.training),
            STATE: _json(checkpoint.state),
        }
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "best": best,
            "versions": versions(),
            "files": {n: {"bytes": len(c), "sha256": _digest(c)} for n, c in contents.items()},
        }
        manifest["sha256"] = _digest(_json(manifest))
        for file, content in {**contents, MANIFEST: _json(manifest)}.items():
            _write(draft / file, content)
        _sync_folder(draft)
        os.rename(draft, final)
        _sync_folder(self.folder)
        replace_file(self.folder / "latest", final.name.encode())
        return final

    def load(self, name: str | None = None) -> Checkpoint:
        """Return the checkpoint ``name``, by default the latest.

        Raises CheckpointError where it is missing, damaged, not ours, or of a newer version; the
        message names the newest good one, and its folder stays as it is.
        """
        name = self.latest() if name is None else name
        try:
            contents = self._verified(name)
        except CheckpointError as error:
            good = self._newest_good(but=name)
            advice = (
                f" The newest good checkpoint is {good}: go on with {_resume(good)}."
                if good
                else ""
            )
            raise CheckpointError(f"{error}{advice}") from error.__cause__
        return Checkpoint(
            tensors_from_bytes(contents[MODEL]),
            tensors_from_bytes(contents[TRAINING]),
            json.loads(contents[STATE]),
        )

    def latest(self) -> str:
        """Return the name of the checkpoint that was written last.

        Raises CheckpointError where there is none.
        """
        names = self.names()
        if not names:
            found = "an empty folder" if self.folder.is_dir() else "no such folder"
            raise build(CheckpointError, str(self.folder), "a folder of checkpoints", found)
        try:
            name = (self.folder / "latest").read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:  # killed between the first checkpoint and its pointer
            return names[-1]
        if not NAME.fullmatch(name):
            good = self._newest_good()
            fix = f"go on with {_resume(good)}" if good else None
            pointer = str(self.folder / "latest")
            expected = "the name of a checkpoint"
            raise build(CheckpointError, pointer, expected, repr(name[:80]), "it is damaged", fix)
        return name

    def last(self) -> str | None:
        """Return what `latest` does, None where there is nothing that it could name."""
        try:
            return self.latest()
        except CheckpointError:
            return None

    def best(self) -> str:
        """Return the name of the best checkpoint as the latest one knows it, else the latest."""
        latest = self.latest()
        best = self._manifest(latest)["best"]
        return best if isinstance(best, str) and best in self.names() else latest

    def prune(self, keep: int, upto: int, every: int = 1) -> None:
        """Remove checkpoints up to step ``upto``, but for those of the ``keep`` newest steps, of
        each the last written, and their best.

        Of those before ``upto`` only steps that ``every`` divides are kept: others were the last of
        a run that was stopped, and one that was never stopped would not have them.
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
                removed = (
                    self.folder / f".removed-{name}"
                )  # out of sight at once, then file by file
                os.rename(self.folder / name, removed)
                shutil.rmtree(removed)

    def clean(self) -> None:
        """Remove what killed writes left behind."""
        for leftover in (*self.folder.glob(".writing-*"), *self.folder.glob(".removed-*")):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()

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
        folder = self.folder / name
        if not NAME.fullmatch(name) or not folder.is_dir():
            raise self._missing(name)
        try:
            content = (folder / MANIFEST).read_bytes()
        except OSError:
            expected = f"a checkpoint of Intently, with a file {MANIFEST}"
            raise build(CheckpointError, str(folder), expected, _listing(folder)) from None
        try:
            manifest = json.loads(content)
        except ValueError as error:
            raise _damaged(folder / MANIFEST, "broken JSON") from error
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            expected = f"a checkpoint of Intently ({FORMAT!r})"
            got = repr(manifest.get("format")) if isinstance(manifest, dict) else "no mapping"
            raise build(CheckpointError, str(folder), expected, got, "it is foreign")
        version = manifest.get("version")
        if isinstance(version, int) and version > VERSION:
            expected = f"a checkpoint of format version {VERSION} or older"
            maker = manifest.get("versions", {})
            cause = f"it was written by a newer Intently, {maker.get('intently', 'unknown')}"
            raise build(
                CheckpointError, str(folder), expected, f"version {version}", cause,
                "update Intently",
            )  # fmt: skip
        stored = manifest.pop("sha256", None)
        if stored != _digest(_json(manifest)):
            raise _damaged(folder / MANIFEST, "another checksum than it was written with")
        return manifest

    def _verified(self, name: str) -> dict[str, bytes]:
        """Return the contents of the files of a checkpoint, sizes and checksums checked."""
        files, contents = self._manifest(name).get("files"), {}
        known = {MODEL, TRAINING, STATE}
        if not isinstance(files, dict) or not known <= files.keys():
            raise _damaged(self.folder / name / MANIFEST, "no list of the files beside it")
        for file in (MODEL, TRAINING, STATE):  # names of ours, never names out of the manifest
            path = self.folder / name / file
            try:
                content = path.read_bytes()
            except OSError:
                raise _damaged(path, "no such file") from None
            if len(content) != files[file]["bytes"]:
                raise _damaged(path, f"{len(content)} bytes instead of {files[file]['bytes']}")
            if _digest(content) != files[file]["sha256"]:
                raise _damaged(path, "another checksum than it was written with")
            contents[file] = content
        return contents


def _resume(name: str) -> str:
    """Say how a run goes on from the checkpoint ``name``."""
    return f"--resume-from {name}, in Python resume={name!r}"


def versions() -> dict[str, str]:
    """Return the versions that the last bits of a run depend on."""
    return {
        "intently": intently.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and stored buffers of a model by name, tied ones once.

    >>> tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    >>> tied["b"] = tied["a"]
    >>> list(weights(tied))
    ['a.weight']
    """
    seen: set[int] = set()
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor.detach()
    return found


@torch.no_grad()
def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into the model they came from by :func:`weights`.

    Raises CheckpointError where names or shapes differ; the model is unchanged then.
    """
    own = weights(model)
    check_alike(own, tensors, "the weights are of a model with other options")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def check_alike(
    own: Mapping[str, Tensor], other: Mapping[str, Tensor], cause: str, where: str = ""
) -> None:
    """Raise CheckpointError for ``cause`` unless the two have the same names and shapes."""
    for name in sorted(own.keys() | other.keys()):
        expected, got = (
            f"shape {tuple(group[name].shape)}" if name in group else "no such weight"
            for group in (own, other)
        )
        if expected != got:
            raise build(CheckpointError, where + name, expected, got, cause)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one piece: a reader, or a crash, sees the old content or the new."""
    draft = path.with_name(f".writing-{path.name}")
    _write(draft, content)
    os.replace(draft, path)
    _sync_folder(path.parent)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened, and renames are synced anyway
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def step_of(name: str) -> int:
    """Return after which step a checkpoint was written.

    >>> step_of("step-000200"), step_of("step-000200-2")
    (200, 200)
    """
    return _order(name)[0]


def _order(name: str) -> tuple[int, int]:
    step, again = name.removeprefix("step-").partition("-")[::2]
    return int(step), int(again or 1)


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "an empty folder"


def _damaged(path: Path, what: str) -> CheckpointError:
    whole = "the file as it was written"
    return build(CheckpointError, str(path), whole, what, "the checkpoint is damaged")
