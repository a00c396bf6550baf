"""Checkpoints: each is one safetensors file, which appears whole or not at all.

    checkpoints/
      latest                     "step-000200" and a checksum of it
      step-000100.safetensors    kept, the best so far
      step-000200.safetensors

A file holds the weights (``model/…``), the optimiser's and the random state (``training/…``) and,
in its metadata, the plain state of the run, with checksums of all of it. It is renamed into place
when it is on the disk, and only then does ``latest`` name it; so a kill leaves the old checkpoint
or the new one. There is one checkpoint per step, the last written. A resumed run has the options,
the data and the random state of its checkpoint.
"""

from __future__ import annotations

import hashlib
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as bytes_from_tensors
from torch import Tensor

import intently
from intently.core.kernels.native import instructions
from intently.errors import ArgumentError, CheckpointError, WriteError, build, shape_of
from intently.foundation.files import SEAL, File, digest, plain, replace_file, unwritten
from intently.tasks.training.batches import Data
from intently.tasks.training.options import TrainingOptions

FORMAT, VERSION, SUFFIX = "intently-checkpoint", "2", ".safetensors"
NAME = re.compile(r"step-\d{6,}")
LEFTOVER = re.compile(rf"\.writing-(latest|{NAME.pattern}{SUFFIX})-[0-9a-f]{{8}}")
HASH = re.compile("[0-9a-f]{64}")
METADATA = {
    **{"format": {FORMAT}, "version": {VERSION}, "intently": str, "best": str, "state": str},
    **{"tensors": HASH, SEAL: HASH},
}
"""The shape of a checkpoint's metadata; see `files.fault`."""

COUNT = range(2**63)
STATE = {
    "position": {
        **dict.fromkeys(("step", "epoch", "batch", "tokens", "evaluated", "loss_steps"), COUNT),
        **{"seconds": float, "loss_sum": float, "best": (str, None), "warmed": (COUNT, None)},
    },
    "history": {
        "records": [[COUNT, float, float, COUNT, float]],
        "evaluations": [{"step": COUNT, "scores": {str: float}, "seconds": float}],
    },
    **{"options": {str: {str: object}}, "data": str, "dev": (str, None), "device": str},
    **{"threads": range(1, 2**10), "processes": range(1, 2**20), "versions": {str: str}},
}
"""The shape of the state that the trainer stores in a checkpoint."""

CHANGEABLE = {
    *("steps", "seconds", "patience", "threads", "device", "parallel"),
    *("save_every", "evaluate_every", "keep"),
}
"""Options that may change when a run resumes."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: weights, tensors of the training, a state of plain values, and its file."""

    model: dict[str, Tensor]
    training: dict[str, Tensor]
    state: dict[str, Any]
    source: str = "the checkpoint"


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def path(self, name: str) -> Path:
        """Return the file of a checkpoint."""
        return self.folder / f"{name}{SUFFIX}"

    def names(self) -> list[str]:
        """Return the names of the checkpoints, oldest first."""
        files = map(Path, File(self.folder, "a folder of checkpoints").names())
        names = (path.stem for path in files if path.suffix == SUFFIX)
        return sorted(filter(NAME.fullmatch, names), key=step_of)

    def begun(self, resume: bool | str) -> bool:
        """Return whether a run has left checkpoints here.

        Raises `ArgumentError` if there are checkpoints and the caller does not ``resume``,
        `CheckpointError` if the checkpoint to resume from does not exist.
        """
        names = self.names()
        if names and not resume:
            expected, got = "a folder without a run", f"{self.folder.parent} with {names[-1]}"
            fix = "resume it (--resume, in Python resume=True), or choose another folder"
            raise build(ArgumentError, "out", expected, got, fix=fix)
        if isinstance(resume, str):
            self._file(resume)
        return bool(names)

    def save(self, name: str, checkpoint: Checkpoint, best: str | None = None) -> Path:
        """Write a checkpoint in place of any of its step, make it the latest, return its file.

        ``best`` is the name of the best checkpoint so far, which may be this one.
        """
        parts = {"model": checkpoint.model, "training": checkpoint.training}
        tensors = {
            f"{part}/{key}": tensor.detach().cpu().contiguous()
            for part, named in parts.items()
            for key, tensor in named.items()
        }
        metadata = {
            **{"format": FORMAT, "version": VERSION, "intently": intently.__version__},
            **{"best": best or "", "state": plain(checkpoint.state).decode()},
            "tensors": _digest(tensors),
        }
        content = bytes_from_tensors(tensors, {**metadata, SEAL: digest(plain(metadata))})
        with self.surviving():
            try:
                self.folder.mkdir(exist_ok=True)  # not its parents: a run that was deleted is gone
            except OSError as error:
                raise unwritten(self.folder, error) from error
            replace_file(self.path(name), content)
            replace_file(self.folder / "latest", f"{name} {digest(name.encode())[:16]}".encode())
        return self.path(name)

    @contextmanager
    def surviving(self) -> Iterator[None]:
        """Add to a `WriteError` the last complete checkpoint, and how to resume."""
        try:
            yield
        except WriteError as error:
            last = self.last()
            advice = "No checkpoint is complete yet: begin again when there is room."
            if last is not None:
                path = self.path(last)
                advice = f"The last complete checkpoint is {path}: continue with --resume."
            raise WriteError(f"{error} {advice}") from error.__cause__

    def load(self, name: str | None = None, state: Any = dict) -> Checkpoint:
        """Return the checkpoint ``name``, by default the latest.

        ``state`` is the shape that its state must have, see `files.fault`. Raises CheckpointError
        if it is missing, damaged, foreign or of a different version, and names the newest good one;
        nothing is deleted. A checkpoint that cannot be read is not called damaged.
        """
        name = self.latest() if name is None else name
        try:
            return self._load(name, state)
        except CheckpointError as error:
            absent = isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)
            if isinstance(error.__cause__, OSError) and not absent:
                raise
            good = self._newest_good(but=name)
            how = good and f" The newest good checkpoint is {good}: continue with {_resume(good)}."
            raise CheckpointError(f"{error}{how or ''}") from error.__cause__

    def latest(self) -> str:
        """Return the name of the last written checkpoint; raises CheckpointError for none."""
        names = self.names()
        if not names:
            got = "a folder without a complete one" if self.folder.is_dir() else "no such folder"
            raise build(CheckpointError, str(self.folder), "a folder of checkpoints", got)
        pointer = File(self.folder / "latest", "the name of a checkpoint")
        if not pointer.exists():  # killed between the first checkpoint and its pointer
            return names[-1]
        content = pointer.read()
        name, _, check = content.decode(errors="replace").partition(" ")
        if not NAME.fullmatch(name) or check != digest(name.encode())[:16]:
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
        best = self._metadata(latest)["best"]
        return best if best in self.names() else latest

    def prune(self, keep: int, upto: int, every: int = 1) -> None:
        """Remove checkpoints up to step ``upto`` except the ``keep`` newest and their best.

        Before ``upto``, only steps that ``every`` divides are kept: all other checkpoints exist
        only because a run was stopped there.
        """
        names = [name for name in self.names() if step_of(name) <= upto]
        kept = {*[name for name in names if step_of(name) % every == 0][-keep:], *names[-1:]}
        for name in tuple(kept):
            try:
                kept.add(self._metadata(name)["best"])
            except CheckpointError:
                continue
        for name in names:
            if name not in kept:
                self.path(name).unlink()

    def remove(self) -> None:
        """Remove every checkpoint; another file in the folder stays, and the folder with it."""
        for name in self.names():
            self.path(name).unlink()
        (self.folder / "latest").unlink(missing_ok=True)
        self.clean()
        if self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def clean(self) -> None:
        """Remove the leftovers of interrupted writes."""
        for leftover in self.folder.glob(".writing-*"):
            if LEFTOVER.fullmatch(leftover.name):
                leftover.unlink()

    def _file(self, name: str) -> File:
        names = self.names()
        if name not in names:
            expected = f"one of the checkpoints here ({', '.join(names) or 'none'})"
            raise build(CheckpointError, name, expected, "no such")
        return File(self.path(name), "a checkpoint as it was written")

    def _metadata(self, name: str, content: bytes | None = None) -> dict[str, str]:
        """Return the metadata of a checkpoint, their checksum checked; read nothing else."""
        file = self._file(name)
        metadata = file.header(content).metadata
        kind, version = metadata.get("format"), metadata.get("version")
        if (kind, version) != (FORMAT, VERSION):
            got = f"version {version}, of Intently {metadata.get('intently')}"
            cause = "it was written by another program, or another version of Intently"
            raise file.refusal(got[:80] if kind == FORMAT else "another file", cause)
        file.check(metadata, METADATA)
        if metadata.pop(SEAL) != digest(plain(metadata)):
            raise file.damaged("another checksum than it was written with")
        return metadata

    def _load(self, name: str, state: Any = dict) -> Checkpoint:
        file = self._file(name)
        content = file.read(most=None)
        metadata, tensors = self._metadata(name, content), file.tensors(content)
        if _digest(tensors) != metadata["tensors"]:
            raise file.damaged("another checksum than it was written with")
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "training": {}}
        for key, tensor in tensors.items():
            part, _, inner = key.partition("/")
            if part not in parts:
                raise file.damaged(f"a tensor {key[:80]!r}, which is of neither model nor training")
            parts[part][inner] = tensor
        return Checkpoint(
            **parts, state=file.json(state, metadata["state"].encode()), source=str(file.path)
        )

    def _newest_good(self, but: str | None = None) -> str | None:
        for name in reversed(self.names()):
            try:
                if name != but and self._load(name):
                    return name
            except CheckpointError:
                continue
        return None


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of tensors, their names, dtypes and shapes."""
    checksum = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        checksum.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        checksum.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return checksum.hexdigest()


def _resume(name: str) -> str:
    """Return how to resume from the checkpoint ``name``, for messages."""
    return f"--resume-from {name}, in Python resume={name!r}"


def versions() -> dict[str, str]:
    """Return what the last bits of a run depend on: libraries, and the native kernel's vectors."""
    libraries = {"intently": intently.__version__, "torch": torch.__version__}
    libraries |= {"numpy": np.__version__, "python": platform.python_version()}
    return {**libraries, "native": instructions() or "none"}


def step_of(name: str) -> int:
    """Return the step after which a checkpoint was written, from its name or that of its file."""
    return int(name.removeprefix("step-").removesuffix(SUFFIX))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of PyTorch's generators, of the CPU and of ``device``, as uint8 tensors."""
    state = {"random/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["random/cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device, where: str) -> None:
    """Restore the states that `random_state` returned; another device's state is ignored.

    Raises CheckpointError, naming ``where`` they are from, if PyTorch cannot use them.
    """
    setters: dict[str, Callable[[Any], None]] = {"random/cpu": torch.set_rng_state}
    if device.type == "cuda" and "random/cuda" in state:  # not where the run began on the CPU
        setters["random/cuda"] = partial(torch.cuda.set_rng_state, device=device)
    for name, restore in setters.items():
        value = state.get(name)
        try:
            restore(value)
        except (RuntimeError, TypeError, AttributeError):
            got = "nothing" if value is None else f"{shape_of(value)} of {value.dtype}"
            cause = "the random state is damaged, or from another version of PyTorch"
            expected = "the state of a generator"
            raise build(CheckpointError, f"{where}: {name}", expected, got, cause) from None


def check_same_run(
    state: Mapping[str, Any],
    options: TrainingOptions,
    data: Data,
    processes: int = 1,
    device: str = "cpu",
    dev: str | None = None,
    where: str = "the checkpoint",
) -> None:
    """Check that options, data and ``dev`` set are those of the checkpoint's ``state``.

    Options in `CHANGEABLE` may differ. Raises ArgumentError for any other difference. Warns if
    versions, threads, the kind of ``device`` or the number of processes differ: the last bits may
    then differ from those of an uninterrupted run.
    """
    stored = TrainingOptions.from_dict(state["options"], f"options of {where}").to_dict()
    other = [
        (data.words.get(name, name), stored[group][name], value)
        for group, values in options.to_dict().items()
        for name, value in values.items()
        if value != stored[group][name] and name not in CHANGEABLE
    ]
    if other:
        names, before, given = zip(*other)
        expected = f"{', '.join(map(repr, before))}, with which the run began"
        again = ", ".join(f"{name}={value!r}" for name, value, _ in other)
        fix = f"Resume with {again}, or start a new run in another folder"
        got = ", ".join(map(repr, given))
        raise build(ArgumentError, ", ".join(names), expected, got, fix=fix)
    if data.fingerprint != state["data"]:
        expected = f"the data the run began with (checksum {state['data']})"
        got = f"{len(data)} other pairs ({data.fingerprint})"
        most = data.words.get("max_length", "max_length")
        cause = f"the files, the pairs held out (dev), the tokenizers or {most} have changed"
        raise build(ArgumentError, "data", expected, got, cause)
    if None not in (dev, state["dev"]) and dev != state["dev"]:
        expected = f"the dev set the run began with (checksum {state['dev']})"
        cause = "scores on two dev sets cannot be compared"
        raise build(ArgumentError, "dev", expected, f"another ({dev})", cause)
    places = ("threads", "device", "processes")
    before = {**state["versions"], **{name: state[name] for name in places}}
    threads = options.run.threads or state["threads"]
    now = {**versions(), **dict(zip(places, (threads, device, processes), strict=True))}
    changes = [
        f"{name} {before.get(name)} → {value}"
        for name, value in now.items()
        if value != before.get(name)
    ]
    if processes != state["processes"] and options.model.dropout > 0:
        changes[-1] += ", which draw other dropout"
    if changes:
        warnings.warn(
            f"The run resumes under other conditions than it began ({', '.join(changes)}): "
            "its weights may differ in their last bits from those of an uninterrupted run.",
            stacklevel=2,
        )
