"""Checkpoints whose checksums are right, and whose content is not: no run goes on from them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_run as tiny
import torch
from safetensors.torch import load, save
from torch import Tensor

from intently.errors import IntentlyError
from intently.foundation.files import digest
from intently.training import Checkpoints, Stepped

SHORT = tiny.OPTIONS.with_flags(steps=4, save_every=2, evaluate_every=4, warmup=2)
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with pytest.raises(ZeroDivisionError):
        tiny.run(folder, SHORT, tiny.when(Stepped, 3, lambda: 1 // 0))
    return folder


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "run")


def checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / "step-000002"


def change_manifest(folder: Path, **changes: Any) -> None:
    """Change the manifest as another program would: with a checksum that is right."""
    path = checkpoint(folder) / "manifest.json"
    manifest = json.loads(path.read_text()) | changes
    del manifest["sha256"]
    content = json.dumps(manifest, indent=1, sort_keys=True).encode()
    path.write_text(json.dumps(manifest | {"sha256": hashlib.sha256(content).hexdigest()}))


def forge(folder: Path, name: str, content: bytes) -> None:
    """Put another file into the checkpoint, and its checksum into the manifest."""
    found = checkpoint(folder)
    (found / name).write_bytes(content)
    files = json.loads((found / "manifest.json").read_text())["files"]
    change_manifest(
        folder, files=files | {name: {"bytes": len(content), "sha256": digest(content)}}
    )


def refused(folder: Path) -> str:
    with pytest.raises(IntentlyError) as caught:
        tiny.run(folder, SHORT, resume=True)
    told = str(caught.value)
    assert str(checkpoint(folder)) in told and told.isprintable()
    return told


def test_an_honest_one_goes_on(folder: Path) -> None:
    forge(folder, "state.json", (checkpoint(folder) / "state.json").read_bytes())
    _, history = tiny.run(folder, SHORT, resume=True)
    assert history.stopped == "finished"


GONE = object()
STATES: list[tuple[str, Any, str]] = [
    ("", None, "null where an object"),
    ("", [], "a list where an object"),
    ("", {}, "no position"),
    ("", 3, "3 where an object"),
    ("more", 1, "an unknown more"),
    ("position.step", GONE, "no position.step"),
    ("position.step", 2.0, "position.step: 2.0 where"),
    ("position.step", -1, "position.step: -1 where a whole number from 0"),
    ("position.step", "2", 'position.step: "2" where'),
    ("position", None, "position: null where"),
    ("position.step", 2**63, "position.step: 9223372036854775808 where"),
    ("position.batch", 10**9, "position: expected a batch below"),
    ("position.seconds", None, "position.seconds: null where a number"),
    ("position.best", 3, "position.best: 3 where text or null"),
    ("position.colour", 3, "an unknown position.colour"),
    ("history.records", [[1]], "history.records[0]: a list where a list of 5"),
    ("history.records", {}, "history.records: an object where a list"),
    ("history.evaluations", [{"step": 1}], "no history.evaluations[0].scores"),
    ("options", GONE, "no options"),
    ("options", [], "options: a list where an object"),
    ("options.model.width", "16", "width: expected"),
    ("options.colour", {}, "colour: expected"),
    ("data", None, "data: null where text"),
    ("threads", 0, "threads: 0 where"),
    ("threads", 10**6, "threads: 1000000 where"),
    ("versions", [], "versions: a list where"),
    ("processes", 0, "processes: 0 where"),
    ("device", 1, "device: 1 where text"),
]


@pytest.mark.parametrize(("place", "value", "told"), STATES)
def test_states(folder: Path, place: str, value: Any, told: str) -> None:
    state = json.loads((checkpoint(folder) / "state.json").read_text())
    *above, last = place.split(".")
    within = state
    for key in above:
        within = within[key]
    if value is GONE:
        del within[last]
    elif place:
        within[last] = value
    forge(folder, "state.json", json.dumps(state if place else value).encode())
    assert told in refused(folder)


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"[" * 100_000, b"\xff", b'{"a": 1, "a": 2}'])
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "training.safetensors"])
def test_garbage(folder: Path, name: str, text: bytes) -> None:
    forge(folder, name, text)
    assert f"{name}: expected" in refused(folder)


TRAINING, MODEL = "training.safetensors", "model.safetensors"
NORM = "decoder_norm.bias"
TENSORS: list[tuple[str, Callable[[Tensors], Tensors], str]] = [
    (
        TRAINING,
        lambda x: {k: v for k, v in x.items() if k.startswith("random/")},
        "got no such tensor",
    ),
    (
        TRAINING,
        lambda x: {k: v for k, v in x.items() if not k.startswith("random/")},
        "random/cpu: expected",
    ),
    (TRAINING, lambda x: x | {"random/cpu": x["random/cpu"][:99]}, "random/cpu: expected shape"),
    (TRAINING, lambda x: x | {"random/cpu": x["random/cpu"].int()}, "of torch.int32"),
    (
        TRAINING,
        lambda x: x | {"random/cpu": torch.full_like(x["random/cpu"], 255)},
        "state of a generator",
    ),
    (TRAINING, lambda x: {k: v for k, v in x.items() if k != f"step/{NORM}"}, "got no such tensor"),
    (TRAINING, lambda x: x | {"exp_avg/nobody": torch.zeros(2)}, "exp_avg/nobody: expected no"),
    (TRAINING, lambda x: x | {f"exp_avg/{NORM}": torch.zeros(2)}, "got shape (2,)"),
    (TRAINING, lambda x: {}, "random/cpu: expected"),
    (MODEL, lambda x: x | {"more": x[NORM].clone()}, "more: expected no such tensor"),
    (MODEL, lambda x: x | {NORM: x[NORM][:3].clone()}, "got shape (3,)"),
    (MODEL, lambda x: x | {NORM: x[NORM].int()}, "got shape (16,) of torch.int32"),
]


@pytest.mark.parametrize(("name", "change", "told"), TENSORS)
def test_tensors(folder: Path, name: str, change: Callable[[Tensors], Tensors], told: str) -> None:
    forge(folder, name, save(change(load((checkpoint(folder) / name).read_bytes()))))
    assert told in refused(folder)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"best": 3}, "best: 3 where"),
        ({"files": {}}, "no files.model.safetensors"),
        ({"files": {"model.safetensors": 3}}, "files"),
        ({"versions": None}, "versions: null"),
        ({"version": 99}, "version 1 or older; got version 99"),
        (
            {"version": 2, "versions": {"intently": "7.0"}},
            "got version 2. It was written by a newer Intently, '7.0'",
        ),
        ({"version": 0}, "version: 0"),
        ({"version": None}, "version: null"),
        ({"version": "1"}, 'version: "1"'),
        ({"format": None}, "It is foreign"),
        ({"format": "other"}, "got 'other'. It is foreign"),
        ({"more": 1}, "an unknown more"),
    ],
)
def test_manifests(folder: Path, changes: dict[str, Any], told: str) -> None:
    change_manifest(folder, **changes)
    assert told in refused(folder)


def test_a_best_one_elsewhere_is_not_believed(folder: Path) -> None:
    change_manifest(folder, best="../../elsewhere")
    assert Checkpoints(folder / "checkpoints").best() == "step-000002"
