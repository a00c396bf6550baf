"""Checkpoints: whole, or refused by a message that says what is wrong and what to use instead."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import tiny_run as tiny
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from intently.errors import CheckpointError, IntentlyError, WriteError
from intently.nn.models.shared import load_weights, weights
from intently.tasks.training import Stepped
from intently.tasks.training.checkpoint import Checkpoint, Checkpoints

from ...show.refusals import refuses


def checkpoint(number: float) -> Checkpoint:
    return Checkpoint(
        {"w": torch.full((3, 2), number)}, {"exp_avg/w": torch.zeros(3)}, {"number": number}
    )


@pytest.fixture
def two(tmp_path) -> Checkpoints:
    found = Checkpoints(tmp_path)
    found.save("step-000001", checkpoint(1.0))
    found.save("step-000002", checkpoint(2.0), best="step-000001")
    return found


def test_what_is_saved_is_loaded(two: Checkpoints) -> None:
    loaded = two.load()
    assert loaded.state == {"number": 2.0}
    assert torch.equal(loaded.model["w"], torch.full((3, 2), 2.0))
    assert list(loaded.training) == ["exp_avg/w"]
    assert two.load("step-000001").state == {"number": 1.0}
    assert (two.latest(), two.best()) == ("step-000002", "step-000001")
    two.save("step-000002", checkpoint(2.5))  # in the place of the first
    assert two.load().model["w"].tolist() == checkpoint(2.5).model["w"].tolist()
    files = sorted(path.name for path in two.folder.iterdir())
    assert files == ["latest", "step-000001.safetensors", "step-000002.safetensors"]


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "data", "gone"])
def test_damage_is_found_and_the_good_one_named(two: Checkpoints, damage: str) -> None:
    path = two.path("step-000002")
    content = bytearray(path.read_bytes())
    if damage in ("header", "data"):
        content[content.index(b'"best":"step') + 15 if damage == "header" else -3] ^= 1
    end = {"cut": len(content) // 2, "empty": 0}.get(damage)
    path.write_bytes(content[:end])
    if damage == "gone":
        path.unlink()
    with pytest.raises(CheckpointError) as caught:
        two.load()
    message = str(caught.value)
    assert "step-000002" in message
    assert "newest good checkpoint is step-000001" in message
    assert ("It is damaged or was changed." in message) == (damage != "gone")
    assert two.load("step-000001").state == {"number": 1.0}


@pytest.mark.parametrize("name", ["../step-000001", "/etc", "step-000001/..", "step-000009", ""])
def test_names_cannot_leave_the_folder(two: Checkpoints, name: str) -> None:
    told = r"one of the checkpoints here \(step-000001, step-0"
    refuses(CheckpointError, {told: lambda: two.load(name)})
    (two.folder / "latest").write_text(name)
    refuses(CheckpointError, {"step-000002": two.load})


def test_pruning_keeps_the_newest_and_their_best(tmp_path) -> None:
    found = Checkpoints(tmp_path)
    for step in range(1, 6):
        found.save(f"step-{step:06d}", checkpoint(step), best="step-000002" if step > 1 else None)
    found.prune(2, upto=5)
    assert found.names() == ["step-000002", "step-000004", "step-000005"]
    found.prune(1, upto=4)  # those after step 4 belong to another future
    assert found.names() == ["step-000002", "step-000004", "step-000005"]
    found.remove()
    assert not tmp_path.exists()
    refuses(CheckpointError, {"got no such folder": found.load})
    tmp_path.mkdir()
    refuses(CheckpointError, {"got a folder without a complete one": found.load})
    for step in (10, 20, 23, 30):  # where a run was stopped, at 23, is passed over
        found.save(f"step-{step:06d}", checkpoint(step))
        found.prune(3, upto=step, every=10)
    assert found.names() == ["step-000010", "step-000020", "step-000030"]


def test_only_leftovers_of_ours_are_cleaned(two: Checkpoints) -> None:
    ours = (".writing-step-000003.safetensors-0123abcd", ".writing-latest-01234567")
    others = [".writing-a-novel-01234567", ".writing-step-3"]
    for name in (*ours, *others):
        (two.folder / name).touch()
    two.clean()
    assert sorted(path.name for path in two.folder.glob(".*")) == others


def test_weights_of_another_model_change_nothing_and_tied_ones_stay_tied() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    model["b"] = model["a"]
    before = model["a"].weight.clone()
    for wrong in ({"a.weight": torch.zeros(3, 2)}, {"a.weight": before, "a.bias": before}):
        with pytest.raises(CheckpointError, match="a model with other options"):
            load_weights(model, wrong)
    assert torch.equal(model["a"].weight, before) and list(weights(model)) == ["a.weight"]
    load_weights(model, {"a.weight": torch.ones(2, 2)})
    assert torch.equal(model["b"](torch.ones(2)), torch.full((2,), 2.0))


def test_a_pointer_with_another_digit_is_not_followed(two: Checkpoints) -> None:
    pointer = two.folder / "latest"
    pointer.write_text(pointer.read_text().replace("step-000002", "step-000001"))
    refuses(CheckpointError, {r"latest: .*damaged\. Continue with --resume-from s": two.load})


@pytest.mark.parametrize("moment", range(1, 5))
def test_a_full_disk_says_what_survives_and_what_to_do(
    two: Checkpoints, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    fsync, left = os.fsync, [moment]

    def full(descriptor: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(WriteError) as caught:
            two.save("step-000003", checkpoint(3.0))
    told = str(caught.value)
    failed = two.path("step-000003") if moment < 3 else two.folder / "latest"
    assert told.startswith(str(failed))
    assert "got No space left on device. What was there before is as it was. Free some room" in told
    last = "step-000003" if moment == 4 else "step-000002"  # renamed before it was synced
    assert f"last complete checkpoint is {two.path(last)}: continue with --resume." in told
    assert two.load().state == {"number": float(last[-1])}
    assert not list(two.folder.glob(".*"))


def test_a_limit_on_the_size_of_files_is_told(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")  # which Windows has not
    found = Checkpoints(tmp_path / "new")
    large = Checkpoint({"w": torch.zeros(10_000)}, {}, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(WriteError) as caught:
            found.save("step-000001", large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "got File too large" in str(caught.value) and "ulimit -f" in str(caught.value)
    assert "No checkpoint is complete yet" in str(caught.value)
    assert not os.listdir(found.folder)


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(
    two: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent back to an earlier step for a disk that comes back."""
    whole, path = os.open, str(two.path("step-000002"))

    def refuse(given: Any, *more: Any, **how: Any) -> Any:
        if str(given) == path:
            raise PermissionError(errno.EACCES, "Permission denied", given)
        return whole(given, *more, **how)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CheckpointError) as caught:
        two.load()
    assert "cannot be read (Permission denied). It need not be damaged" in str(caught.value)
    assert "step-000001" not in str(caught.value) and "no such" not in str(caught.value)


# --- checksums that are right, and content that is not: no run resumes from it --------------------


SHORT = tiny.OPTIONS.with_flags(steps=4, save_every=2, evaluate_every=4, warmup=2)
NAME = "step-000002"


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.raises(ZeroDivisionError):
        tiny.run(folder, SHORT, tiny.when(Stepped, 3, lambda: 1 // 0))
    return folder


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "run")


def forge(
    folder: Path,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]] = lambda tensors: tensors,
    state: Callable[[Any], Any] = lambda state: state,
    **metadata: str,
) -> None:
    """Change a checkpoint as another program would: with checksums that are right."""
    path = Checkpoints(folder / "checkpoints").path(NAME)
    with safe_open(path, "pt") as opened:
        before = opened.metadata()
    tensors = change(load_file(path))
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    changed = state(json.loads(before["state"]))
    text = changed if isinstance(changed, str) else json.dumps(changed)
    told = {**before, "state": text, "tensors": digest.hexdigest(), **metadata}
    del told["sha256"]
    plain = json.dumps(told, indent=1, sort_keys=True).encode()
    save_file(tensors, path, {**told, "sha256": hashlib.sha256(plain).hexdigest()})


def refused(folder: Path) -> str:
    with pytest.raises(IntentlyError) as caught:
        tiny.run(folder, SHORT, resume=True)
    told = str(caught.value)
    assert str(Checkpoints(folder / "checkpoints").path(NAME)) in told and told.isprintable()
    return told


def test_an_honest_one_goes_on(folder: Path) -> None:
    forge(folder)
    _, history = tiny.run(folder, SHORT, resume=True)
    assert history.stopped == "finished"


GONE = object()
STATES: list[tuple[str, Any, str]] = [
    ("", [], "a list where an object"),
    ("", "{", "no JSON at line 1"),
    ("more", 1, "an unknown more"),
    ("position.step", GONE, "no position.step"),
    ("position.step", -1, "position.step: -1 where a whole number from 0"),
    ("position.batch", 10**9, "position: expected a batch below"),
    ("history.records", [[1]], "history.records[0]: a list where a list of 5"),
    ("options.model.width", "16", "width: expected"),
    ("options.colour", {}, "colour: expected"),
    ("threads", 10**6, "threads: 1000000 where"),
]


@pytest.mark.parametrize(("place", "value", "told"), STATES)
def test_states(folder: Path, place: str, value: Any, told: str) -> None:
    def change(state: Any) -> Any:
        if not place:
            return value if isinstance(value, str) else json.dumps(value)
        *above, last = place.split(".")
        within = reduce(getitem, above, state)
        within[last] = value
        if value is GONE:
            del within[last]
        return state

    forge(folder, state=change)
    assert told in refused(folder)


BIAS, RANDOM = "decoder_norm.bias", "training/random/cpu"
TENSORS: list[tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = [
    (lambda x: {k: v for k, v in x.items() if k != RANDOM}, "random/cpu: expected"),
    (lambda x: x | {RANDOM: x[RANDOM][:99]}, "generator; got shape (99,) of torch.uint8"),
    (
        lambda x: x | {RANDOM: x[RANDOM].float()},
        ".float32. The random state is damaged, or from an",
    ),
    (lambda x: x | {RANDOM: torch.full_like(x[RANDOM], 255)}, "state of a generator"),
    (lambda x: {k: v for k, v in x.items() if k != f"training/step/{BIAS}"}, "no such tensor"),
    (lambda x: x | {"training/exp_avg/nobody": torch.zeros(2)}, "exp_avg/nobody: expected no"),
    (lambda x: x | {f"training/exp_avg/{BIAS}": torch.zeros(2)}, "got shape (2,)"),
    (lambda x: x | {"model/more": torch.zeros(2)}, "more: expected no such tensor"),
    (lambda x: x | {"other/more": torch.zeros(2)}, "a tensor 'other/more', which is of neither"),
    (lambda x: x | {f"model/{BIAS}": torch.zeros(3)}, "got shape (3,)"),
    (lambda x: x | {f"model/{BIAS}": torch.zeros(16).int()}, "got shape (16,) of torch.int32"),
]


@pytest.mark.parametrize(("change", "told"), TENSORS, ids=[told for _, told in TENSORS])
def test_tensors(folder: Path, change: Any, told: str) -> None:
    forge(folder, change)
    assert told in refused(folder)


def test_metadata(folder: Path) -> None:
    forge(folder, best="../../elsewhere")  # which is not believed
    assert Checkpoints(folder / "checkpoints").best() == NAME
    for changes, told in (
        ({"more": "1"}, "an unknown more"),
        ({"version": "9", "intently": "7.0"}, "got version 9, of Intently 7.0. It was written by "),
        ({"format": "other"}, "got another file. It was written by another program, or an"),
    ):
        forge(folder, **changes)
        assert told in refused(folder)
