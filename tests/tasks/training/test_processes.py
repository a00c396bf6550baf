"""Many processes under a real torchrun: the losses of one, the same checkpoints, a clean end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import many
import pytest
import tiny_run as tiny
import torch
import torch.distributed as dist

import intently
from intently.errors import ArgumentError
from intently.tasks.training import Checkpoints
from intently.tasks.training import processes as module
from intently.tasks.training.processes import LostError, Processes, current, joined

BASE = {"dropout": 0.0, "steps": 12, "save_every": 4, "evaluate_every": 6}
MODES = {"data": {}, "sharded": {"parallel": "sharded"}}
WAYS: dict[str, dict[str, Any]] = {
    **MODES,
    "muon": {"optimiser": "muon"},
    "accumulated": {"accumulate": 3, "steps": 6},
}
STOPPED = {"rank": 1, "step": 5, "signal": int(signal.SIGTERM)}


def job(out: Path, die: dict[str, int] | None = None, **options: Any) -> dict[str, Any]:
    return {"out": str(out), "options": {**BASE, **options}, "die": die}


def torchrun(count: int, jobs: list[dict[str, Any]], result: Path) -> subprocess.CompletedProcess:
    source = str(Path(intently.__file__).parents[1])
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", str(count), many.__file__, str(result), json.dumps(jobs)],
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


def done(count: int, jobs: list[dict[str, Any]], result: Path) -> list[dict[str, Any]]:
    ended = torchrun(count, jobs, result)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(result.read_text(encoding="utf-8"))


def alone(out: Path, **options: Any) -> dict[str, Any]:
    return many.do(job(out, **options | {"parallel": "data"}))


def last(out: Path | str) -> dict[str, torch.Tensor]:
    return Checkpoints(Path(out) / "checkpoints").load().model


def assert_close(one: Path, other: Path) -> None:
    """But for the biases of keys, on which nothing depends: their gradients are rounding."""
    a, b = (
        {name: x for name, x in last(out).items() if not name.endswith("qkv_bias")}
        for out in (one, other)
    )
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def single(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    """The run of one process that the others are to equal."""
    out = tmp_path_factory.mktemp("single")
    return out, alone(out)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, single) -> Path:
    """The runs of two processes, one torchrun for all since it takes seconds to start."""
    out = tmp_path_factory.mktemp("two")
    jobs = [job(out / name, **options) for name, options in WAYS.items()]
    for name, options in MODES.items():
        alone(out / f"begun by one, {name}", steps=5, warmup=10, cooldown=0.0)
        jobs.append(job(out / f"begun by one, {name}", cooldown=0.0, **options))
        for part in (STOPPED, None):
            jobs.append(job(out / f"stopped, {name}", part, **options))
    for name, part in (("whole", None), ("halves", STOPPED), ("halves", None)):
        jobs.append(job(out / f"dropout, {name}", part, dropout=0.2))
    found = done(2, jobs, out / "result.json")
    told = [(Path(each["out"]).name, came) for each, came in zip(jobs, found, strict=True)]
    (out / "told.json").write_text(json.dumps(told), encoding="utf-8")
    return out


def told(folder: Path, name: str) -> list[dict[str, Any]]:
    """What came of the runs in one folder, in their order."""
    runs = json.loads((folder / "told.json").read_text(encoding="utf-8"))
    return [came for out, came in runs if out == name]


@pytest.mark.parametrize("name", WAYS)
def test_the_losses_are_those_of_one_process(tmp_path, folder, name: str) -> None:
    """Muon orthogonalises in bfloat16, where rounding is a thousand times as coarse."""
    one, [two] = alone(tmp_path, **WAYS[name]), told(folder, name)
    bound = 1e-3 if "muon" in name else 1e-5
    assert len(two["losses"]) == WAYS[name].get("steps", BASE["steps"])
    assert two["losses"] == pytest.approx(one["losses"], rel=0, abs=bound)
    assert (two["scores"], two["stopped"]) == (one["scores"], "finished")
    if "muon" not in name:
        assert_close(tmp_path, folder / name)


def test_all_stop_where_one_is_asked_to_and_go_on(folder, single) -> None:
    for mode in MODES:
        first, second = told(folder, f"stopped, {mode}")
        assert (first["stopped"], len(first["losses"])) == ("interrupted", STOPPED["step"] + 1)
        losses = first["losses"] + second["losses"]
        assert losses == pytest.approx(single[1]["losses"], rel=0, abs=1e-5)
        assert second["stopped"] == "finished"
        assert_close(single[0], folder / f"stopped, {mode}")


@pytest.mark.filterwarnings("ignore:The run resumes under other conditions")
def test_two_go_on_where_one_began_and_one_where_two_did(tmp_path, folder) -> None:
    one = alone(tmp_path, steps=16, cooldown=0.0)["losses"]
    for mode, options in MODES.items():
        [rest] = told(folder, f"begun by one, {mode}")
        assert rest["losses"] == pytest.approx(one[5:12], rel=0, abs=1e-5)
        rest = alone(folder / f"begun by one, {mode}", **options, steps=16, cooldown=0.0)
        assert rest["losses"] == pytest.approx(one[12:], rel=0, abs=1e-5)


def test_three_go_on_where_two_were_killed(tmp_path, single) -> None:
    """A process that dies is told in one line; nothing hangs, and nothing is lost but steps."""
    killed = {"rank": 1, "step": 7, "signal": int(signal.SIGKILL)}
    ended = torchrun(2, [job(tmp_path / "run", killed)], tmp_path / "result.json")
    assert ended.returncode != 0
    [line] = [line for line in ended.stderr.splitlines() if line.startswith("intently: ")]
    assert "a process of this run is gone (rank 0 sees: " in line
    assert f"The last checkpoint is {tmp_path / 'run' / 'checkpoints' / 'step-000006'}" in line
    assert "Start again with --resume" in line
    codes = re.findall(r"exitcode\s+: (-?\d+) \(pid", ended.stderr)
    assert sorted(codes) == ["-9", "2"]  # who was left ended by itself, not by torchrun's signal
    [rest] = done(3, [job(tmp_path / "run", parallel="sharded")], tmp_path / "result.json")
    assert rest["losses"] == pytest.approx(single[1]["losses"][6:], rel=0, abs=1e-5)
    assert_close(single[0], tmp_path / "run")


def test_dropout_goes_on_to_the_last_bit(folder) -> None:
    [whole], (first, second) = told(folder, "dropout, whole"), told(folder, "dropout, halves")
    assert first["losses"] + second["losses"] == whole["losses"]
    a, b = last(folder / "dropout, whole"), last(folder / "dropout, halves")
    torch.testing.assert_close(a, b, rtol=0, atol=0)

    options = tiny.OPTIONS.with_flags(**{**BASE, "dropout": 0.2, "steps": 13})
    with pytest.warns(UserWarning, match="processes 2 → 1, which draw other dropout"):
        tiny.run(folder / "dropout, whole", options, resume=True)


@pytest.mark.parametrize(
    ("error", "gone"),
    [
        (RuntimeError("[a/gloo/tcp/pair.cc:5] Connection closed by peer [::1]. Look. There"), True),
        (dist.DistBackendError("NCCL error"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ArgumentError("connection: is a word"), False),
    ],
)
def test_only_the_loss_of_a_process_is_told_as_one(tmp_path, error, gone: bool) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        with (
            pytest.raises(LostError if gone else type(error)) as raised,
            module.naming_the_lost(Processes(1, 4), tmp_path),
        ):
            raise error
    finally:
        signal.signal(signal.SIGTERM, before)
    if "peer" in str(error):
        assert str(raised.value) == (
            "processes: expected 4 that answer; got a process of this run is gone (rank 1 sees: "
            "Connection closed by peer [::1]). The last checkpoint is none yet. "
            "Start again with --resume."
        )


def test_the_failure_of_the_first_is_told_to_the_others(monkeypatch) -> None:
    """Its words are not mistaken for those of a process that is gone."""
    sent: list[Any] = []

    def broadcast(told: list[Any], source: int, group: Any) -> None:
        told[:] = sent or told
        sent[:] = told

    def full() -> None:
        raise OSError(28, "No space left", "/connection/gloo")

    monkeypatch.setattr(dist, "broadcast_object_list", broadcast)
    with pytest.raises(OSError, match="No space left"):
        Processes(0, 2).from_first(full)
    said = "process 0 failed: OSError: .* No space left: '/connection/gloo'"
    with pytest.raises(LostError, match=said), module.naming_the_lost(Processes(1, 2), None):
        Processes(1, 2).from_first(full)


def test_who_is_here(monkeypatch) -> None:
    with joined() as here:  # alone, nothing is waited for
        here.wait()
        assert here == current() == Processes() and not dist.is_initialized()
        assert (here.first, here.total([1.5, 2.0])) == (True, [1.5, 2.0])
        with pytest.raises(ZeroDivisionError):
            here.from_first(lambda: 1 // 0)
    for name, value in zip(module.VARIABLES, ("1", "3", "localhost", "1")):
        monkeypatch.setenv(name, value)
    assert (current().rank, current().count, current().first) == (1, 3, False)
