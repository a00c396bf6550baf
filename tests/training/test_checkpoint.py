"""Checkpoints: whole, or refused by a message that says what is wrong and what to use instead."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from intently.errors import CheckpointError, WriteError
from intently.models.weights import load_weights, weights
from intently.training.checkpoint import Checkpoint, Checkpoints

from ..show.refusals import refuses

FILES = ["manifest.json", "model.safetensors", "training.safetensors", "state.json"]


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


def test_nothing_is_pickled(two: Checkpoints) -> None:
    for path in two.folder.rglob("*"):
        if path.is_file():
            assert path.suffix in (".json", ".safetensors") or path.name == "latest"
            with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError)):
                pickle.loads(path.read_bytes())


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "gone"])
def test_damage_is_found_and_the_good_one_named(two: Checkpoints, file: str, damage: str) -> None:
    path = two.folder / "step-000002" / file
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "bit":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"")
    with pytest.raises(CheckpointError) as caught:
        two.load()
    message = str(caught.value)
    assert "step-000002" in message and file in message
    assert "newest good checkpoint is step-000001" in message
    assert ("It is damaged or was changed." in message) == (damage != "gone")
    if damage == "gone":
        assert "damaged" not in message
        assert file == "manifest.json" or "got no such file. The newest" in message
    assert two.load("step-000001").state == {"number": 1.0}


def test_a_foreign_folder_is_refused_as_such(two: Checkpoints) -> None:
    foreign = two.folder / "step-000003"
    foreign.mkdir()
    (foreign / "pytorch_model.bin").touch()
    told = r"a checkpoint of Intently.*got pytorch_model\.bin"
    refuses(CheckpointError, {told: lambda: two.load("step-000003")})


@pytest.mark.parametrize("name", ["../step-000001", "/etc", "step-000001/..", "step-000009", ""])
def test_names_cannot_leave_the_folder(two: Checkpoints, name: str) -> None:
    told = r"one of the checkpoints here \(step-000001, step-0"
    refuses(CheckpointError, {told: lambda: two.load(name)})
    (two.folder / "latest").write_text(name)
    refuses(CheckpointError, {"step-000002": two.load})


def test_a_folder_without_checkpoints_is_refused(tmp_path) -> None:
    refuses(
        CheckpointError,
        {
            "got a folder without a complete one": Checkpoints(tmp_path).load,
            "got no such folder": Checkpoints(tmp_path / "nowhere").load,
        },
    )


def test_pruning_keeps_the_newest_and_their_best(tmp_path) -> None:
    found = Checkpoints(tmp_path)
    for step in range(1, 6):
        found.save(f"step-{step:06d}", checkpoint(step), best="step-000002" if step > 1 else None)
    found.prune(2, upto=5)
    assert found.names() == ["step-000002", "step-000004", "step-000005"]
    found.prune(1, upto=4)  # those after step 4 belong to another future
    assert found.names() == ["step-000002", "step-000004", "step-000005"]


def test_pruning_passes_over_where_a_run_was_stopped(tmp_path) -> None:
    found = Checkpoints(tmp_path)
    for step in (10, 20, 23, 30):
        found.save(f"step-{step:06d}", checkpoint(step))
        found.prune(3, upto=step, every=10)
    assert found.names() == ["step-000010", "step-000020", "step-000030"]


def test_pruning_counts_a_step_that_was_written_twice_once(tmp_path) -> None:
    found = Checkpoints(tmp_path)
    for name in ("step-000010", "step-000020", "step-000030", "step-000040"):
        found.save(name, checkpoint(1.0))
    shutil.copytree(tmp_path / name, tmp_path / "step-000040-2")  # as older runs have it
    found.prune(4, upto=40, every=10)
    assert found.names() == ["step-000010", "step-000020", "step-000030", "step-000040-2"]


def test_a_step_saved_again_takes_the_place_of_the_first(two: Checkpoints) -> None:
    shutil.copytree(two.folder / "step-000002", two.folder / "step-000002-2")
    two.save("step-000002", checkpoint(2.5))
    assert two.load().model["w"].tolist() == checkpoint(2.5).model["w"].tolist()
    left = sorted(path.name for path in two.folder.iterdir())
    assert left == ["latest", *two.names()] == ["latest", "step-000001", "step-000002"]


def test_only_leftovers_of_ours_are_cleaned(two: Checkpoints) -> None:
    ours = (".writing-step-000003", ".removed-step-000001-2")
    for name in (*ours, ".writing-a-novel", ".removed-notes", ".writing-step-3"):
        (two.folder / name).mkdir()
    (two.folder / ".writing-latest").touch()
    two.clean()
    left = sorted(path.name for path in two.folder.glob(".*"))
    assert left == [".removed-notes", ".writing-a-novel", ".writing-step-3"]


def test_weights_of_another_model_change_nothing() -> None:
    model = nn.Linear(2, 3)
    before = model.weight.clone()
    for wrong in ({"weight": torch.zeros(3, 2)}, {"weight": torch.zeros(2, 3), "bias": before}):
        with pytest.raises(CheckpointError, match="a model with other options"):
            load_weights(model, wrong)
    assert torch.equal(model.weight, before)


def test_tied_weights_are_saved_once_and_stay_tied() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})
    model["b"] = model["a"]
    load_weights(model, {"a.weight": torch.ones(2, 2)})
    assert list(weights(model)) == ["a.weight"]
    assert torch.equal(model["b"](torch.ones(2)), torch.full((2,), 2.0))


def test_a_pointer_with_another_digit_is_not_followed(two: Checkpoints) -> None:
    pointer = two.folder / "latest"
    pointer.write_text(pointer.read_text().replace("step-000002", "step-000001"))
    refuses(CheckpointError, {r"latest: .*damaged\. Continue with --resume-from s": two.load})
    pointer.write_text("step-000001")  # as it was before pointers had a checksum
    assert two.load().state == {"number": 1.0}


@pytest.mark.parametrize("moment", range(1, 8))
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
    told, there = str(caught.value), two.names()
    assert told.startswith(str(two.folder / ("step-000003" if moment < 7 else "latest")))
    assert "got No space left on device. What was there before is as it was. Free some room" in told
    assert (
        f"last complete checkpoint is {two.folder / 'step-000002'}: continue with --resume." in told
    )
    assert two.load().state == {"number": 2.0}
    assert not list(two.folder.glob(".*"))
    assert there == ["step-000001", "step-000002"] or moment > 5  # renamed before it was synced


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


def deny(monkeypatch: pytest.MonkeyPatch, function: str, path: Path) -> None:
    """Let a function of `os` refuse one path."""
    whole = getattr(os, function)

    def refuse(given: Any, *more: Any, **how: Any) -> Any:
        if str(given) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", given)
        return whole(given, *more, **how)

    monkeypatch.setattr(os, function, refuse)


def test_a_folder_that_cannot_be_asked_is_not_a_missing_one(
    two: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    deny(monkeypatch, "stat", two.folder / "step-000002")
    for ask in (two.names, two.load, lambda: two.load("step-000002")):
        refuses(CheckpointError, {r"step-000002: expected the folder .*Permission": ask})


def test_a_checkpoint_that_cannot_be_read_is_not_passed_over(
    two: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent back to an earlier step for a disk that comes back."""
    deny(monkeypatch, "open", two.folder / "step-000002" / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        two.load()
    assert "cannot be read (Permission denied). It need not be damaged" in str(caught.value)
    assert "step-000001" not in str(caught.value) and "no such" not in str(caught.value)
