"""Checkpoints whose checksums are right, and whose content is not: no run goes on from them."""

from __future__ import annotations

import json
import re
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
from intently.foundation.files import digest, sealed

SHORT = tiny.OPTIONS.with_flags(steps=4, save_every=2, evaluate_every=4, warmup=2)
Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")

    def stop(event: Any) -> None:
        if type(event).__name__ == "Stepped" and event.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.run(folder, SHORT, stop)
    return folder


@pytest.fixture
def folder(begun: Path, tmp_path: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "run")


def forge(folder: Path, name: str, content: bytes) -> Path:
    """Put another file into the checkpoint, and its checksum into the manifest."""
    found = folder / "checkpoints" / "step-000002"
    (found / name).write_bytes(content)
    manifest = json.loads((found / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["files"][name] = {"bytes": len(content), "sha256": digest(content)}
    (found / "manifest.json").write_bytes(sealed(manifest))
    return found


def refused(folder: Path, found: Path) -> str:
    with pytest.raises(IntentlyError) as caught:
        tiny.run(folder, SHORT, resume=True)
    told = str(caught.value)
    assert str(found) in told and told.isprintable()
    return told


def test_an_honest_one_goes_on(folder: Path) -> None:
    found = folder / "checkpoints" / "step-000002"
    forge(folder, "state.json", (found / "state.json").read_bytes())
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
    state = json.loads((folder / "checkpoints/step-000002/state.json").read_text())
    *above, last = place.split(".")
    within = state
    for key in above:
        within = within[key]
    if value is GONE:
        del within[last]
    elif place:
        within[last] = value
    found = forge(folder, "state.json", json.dumps(state if place else value).encode())
    assert told in refused(folder, found)


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b"[" * 100_000, b"\xff", b'{"a": 1, "a": 2}'])
@pytest.mark.parametrize("name", ["state.json", "model.safetensors", "training.safetensors"])
def test_garbage(folder: Path, name: str, text: bytes) -> None:
    assert f"{name}: expected" in refused(folder, forge(folder, name, text))


TRAININGS: list[tuple[Callable[[Tensors], Tensors], str]] = [
    (lambda x: {k: v for k, v in x.items() if k.startswith("random/")}, "got no such tensor"),
    (lambda x: {k: v for k, v in x.items() if not k.startswith("random/")}, "random/cpu: expected"),
    (lambda x: {**x, "random/cpu": x["random/cpu"][:99]}, "random/cpu: expected shape"),
    (lambda x: {**x, "random/cpu": x["random/cpu"].int()}, "of torch.int32"),
    (lambda x: {**x, "random/cpu": torch.full_like(x["random/cpu"], 255)}, "state of a generator"),
    (lambda x: {k: v for k, v in x.items() if k != "step/decoder_norm.bias"}, "got no such tensor"),
    (lambda x: {**x, "exp_avg/nobody": torch.zeros(2)}, "exp_avg/nobody: expected no such"),
    (lambda x: {**x, "exp_avg/decoder_norm.bias": torch.zeros(2)}, "got shape (2,)"),
    (lambda x: {}, "random/cpu: expected"),
]


@pytest.mark.parametrize(("change", "told"), TRAININGS)
def test_states_of_the_training(
    folder: Path, change: Callable[[Tensors], Tensors], told: str
) -> None:
    name = "training.safetensors"
    whole = load((folder / "checkpoints/step-000002" / name).read_bytes())
    assert told in refused(folder, forge(folder, name, save(change(whole))))


def test_weights(folder: Path) -> None:
    name = "model.safetensors"
    whole = load((folder / "checkpoints/step-000002" / name).read_bytes())
    norm = whole["decoder_norm.bias"]
    for changed, told in (
        ({"more": norm.clone()}, "more: expected no such tensor"),
        ({"decoder_norm.bias": norm[:3].clone()}, "got shape (3,)"),
        ({"decoder_norm.bias": norm.int()}, "got shape (16,) of torch.int32"),
    ):
        assert told in refused(folder, forge(folder, name, save({**whole, **changed})))


def test_manifests(folder: Path) -> None:
    found = folder / "checkpoints" / "step-000002"
    path = found / "manifest.json"
    whole = json.loads(path.read_text())
    del whole["sha256"]
    for change, told in (
        ({"best": 3}, "best: 3 where"),
        ({"files": {}}, "no files.model.safetensors"),
        ({"files": {"model.safetensors": 3}}, "files"),
        ({"versions": None}, "versions: null"),
        ({"version": 99}, r"version 1 or older; got version 99"),
        ({"version": 0}, "version: 0"),
        ({"version": None}, "version: null"),
        ({"version": "1"}, 'version: "1"'),
        ({"format": None}, "It is foreign"),
        ({"more": 1}, "an unknown more"),
    ):
        path.write_bytes(sealed({**whole, **change}))
        assert re.search(told, refused(folder, found)), change
