"""One writer at a time: who comes second is refused, and costs the first nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny_run as tiny

import intently as package
from intently.errors import ArgumentError, WriteError
from intently.tasks.training import Checkpoints, Stepped
from intently.tasks.training.folder_lock import (
    ABOUT,
    LOCK,
    InUseError,
    LostFolderError,
    sole_writer,
)

WRITES = ("result.json", "model/")

HOLDER = """
import sys
import tiny_run as tiny

def wait(event):
    if type(event).__name__ == "Stepped" and event.step == 7:
        print("waiting", flush=True)
        sys.stdin.readline()

tiny.run(sys.argv[1], progress=wait)
"""


@contextmanager
def holder(out: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in ``out``, and stands still after step 7 until it is told to go on."""
    paths = [str(Path(package.__file__).parents[1]), str(Path(tiny.__file__).parent)]
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(out), "--a flag"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "waiting\n"
            yield process
        finally:
            process.kill()


def state(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def test_the_second_is_refused_and_the_first_ends_as_if_alone(tmp_path, unbroken, intently) -> None:
    with holder(tmp_path) as first:
        draft = tmp_path / "checkpoints" / ".writing-step-000009.safetensors-01234567"
        draft.touch()  # what the first is writing, say
        before = state(tmp_path)
        for again in (False, True):
            with pytest.raises(InUseError) as error:
                tiny.run(tmp_path, tiny.OPTIONS.with_flags(seed=6), resume=again)
        said = str(error.value)
        assert f"held by process {first.pid} on {socket.gethostname()} since 20" in said
        assert said.endswith(
            f"-c {tmp_path} '--a flag'. Wait for its end, or choose another folder."
        )
        outcome = intently("train", "s.txt", "t.txt", "--out", tmp_path, "--resume")
        assert outcome == (2, "", f"intently: {said}\n")
        assert state(tmp_path) == before and draft.exists()
        Checkpoints(tmp_path / "checkpoints").load()  # reading is free
        first.communicate("go on\n")
        assert first.returncode == 0
    net, history = tiny.run(tmp_path, resume=True)
    assert history.stopped == "finished" and tiny.same_weights(unbroken[0], net)


def test_a_killed_holder_holds_nothing(tmp_path, unbroken) -> None:
    with holder(tmp_path) as first:
        first.kill()
        first.wait()
    assert (tmp_path / LOCK).exists()
    assert tiny.same_weights(unbroken[0], tiny.run(tmp_path, resume=True)[0])


def in_another_thread(folder: Path) -> str:
    """The message to another thread that would write to the folder."""

    def write() -> None:
        with sole_writer(folder, WRITES):
            pass

    with ThreadPoolExecutor(1) as pool, pytest.raises(InUseError) as error:
        pool.submit(write).result()
    return str(error.value)


def test_a_writer_within_itself_is_the_same_one(tmp_path) -> None:
    with sole_writer(tmp_path, WRITES):
        with sole_writer(str(tmp_path) + "/../" + tmp_path.name, ["more.json"]):
            pass
        (tmp_path / "result.json").touch()
        refused = in_another_thread(tmp_path)
        assert f"process {os.getpid()} " in refused
    about = json.loads((tmp_path / ABOUT).read_text())
    assert about["writes"] == sorted((*WRITES, "more.json"))


@pytest.mark.parametrize("there", [True, False])
def test_who_writes_nothing_leaves_nothing(tmp_path, there: bool) -> None:
    out = tmp_path if there else tmp_path / "new" / "run"
    (tmp_path / "notes").touch()
    with pytest.raises(ZeroDivisionError), sole_writer(out, WRITES):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


@pytest.mark.parametrize("name", WRITES)
def test_what_a_person_put_there_is_not_written_over(tmp_path, name: str) -> None:
    path = tmp_path / name
    path.mkdir() if name.endswith("/") else path.write_text("mine")
    with pytest.raises(ArgumentError) as error, sole_writer(tmp_path, WRITES):
        path.unlink()
    assert str(error.value) == (
        f"out: expected a folder without {name}, or one that Intently wrote; got {tmp_path} with "
        f"{name}. It would be overwritten. Choose another folder."
    )
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_what_intently_wrote_is_written_again(tmp_path) -> None:
    for _ in range(2):
        with sole_writer(tmp_path, WRITES):
            (tmp_path / "result.json").write_text("ours")
    (tmp_path / "other.json").write_text("mine")
    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"without other\.json"):
            sole_writer(tmp_path, ["other.json"]).__enter__()
    with sole_writer(tmp_path, WRITES):
        pass
    about = tmp_path / ABOUT  # a damaged list gives none of the files away
    about.write_text(about.read_text().replace("result.json", "notes.txt"))
    with pytest.raises(ArgumentError, match=r"\.intently\.json: .*another checksum.*Delete it"):
        sole_writer(tmp_path, WRITES).__enter__()


STRANGE = b'{"process": "\\u001b[1m", "writes": 3}'


@pytest.mark.parametrize("content", [b"", b"[" * 10**5, b"\xff" * 10**6, b"{}", b"[]", STRANGE])
def test_a_stale_or_strange_file_is_no_obstacle(tmp_path, content: bytes) -> None:
    (tmp_path / LOCK).write_bytes(content)
    (tmp_path / ABOUT).write_bytes(content)
    with sole_writer(tmp_path, WRITES):
        (tmp_path / ABOUT).write_bytes(content)
        refused = in_another_thread(tmp_path)
    assert "held by another command" in refused and refused.isprintable()


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path, monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    expected = r"^out: expected a folder that can be written to; got .*run \(Permission denied\)"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", refuse)
        with pytest.raises(ArgumentError, match=expected):
            tiny.run(tmp_path / "run")
    (tmp_path / "run").mkdir()
    with monkeypatch.context() as patch, pytest.raises(ArgumentError, match=expected):
        patch.setattr(os, "open", refuse)
        tiny.run(tmp_path / "run")
    if os.name == "posix":
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(ArgumentError, match=r"a folder that can be written to; got .*loop"):
            tiny.run(tmp_path / "loop")


def test_a_file_system_that_cannot_lock_is_warned_of(tmp_path, monkeypatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    said = "cannot lock it .*No locks available.*: make sure that no other command writes to it"
    with pytest.warns(UserWarning, match=said), sole_writer(tmp_path, WRITES):  # as the demo does
        _, history = tiny.run(tmp_path, tiny.OPTIONS.with_flags(steps=2))
    assert history.stopped == "finished"


def test_an_empty_name_is_no_folder(tmp_path, monkeypatch, intently) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"^out: expected the name of a folder; got ''"):
        tiny.run("")
    required = {"train": ["s.txt"], "train-lm": ["s.txt"]}
    for command in ("train", "train-lm", "demo"):
        outcome = intently(command, *required.get(command, []), "--out", "")
        assert outcome.status == 2 and 'expected a folder; got ""' in outcome.err, command
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("at", [Stepped, None])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_folder_lost_while_it_is_written_to(tmp_path, monkeypatch, replaced, at) -> None:
    """Moved at a step or at the end of a checkpoint; another run may begin in its place."""
    out, moved, fsync = tmp_path / "run", tmp_path / "moved", os.fsync

    def move() -> None:
        if not moved.exists():
            out.rename(moved)
            if replaced:
                (out / "checkpoints").mkdir(parents=True)
                (out / LOCK).touch()
                (out / "checkpoints" / "step-000001.safetensors").touch()

    def while_saving(descriptor: int) -> None:
        fsync(descriptor)
        if any((out / "checkpoints").glob("*step-000006*")):
            move()

    if at is None:
        monkeypatch.setattr(os, "fsync", while_saving)
    with pytest.raises((LostFolderError, WriteError)) as error:
        tiny.run(out, progress=tiny.when(at or Stepped, 4, move if at else lambda: None))
    if at:
        got = "another folder of that name" if replaced else "no such folder"
        assert str(error.value) == (
            f"out: expected the folder {out} that is written; got {got}. "
            "It was deleted or moved meanwhile. Nothing more is written."
        )
        assert isinstance(error.value, LostFolderError) and error.value.status == 1
    assert any((moved / "checkpoints").iterdir()) or at
    assert (out / "checkpoints" / "step-000001.safetensors").exists() == replaced


@pytest.mark.skipif(os.name != "posix", reason="pipes of POSIX")
def test_a_pipe_in_the_place_of_the_lock_is_left_alone(tmp_path) -> None:
    os.mkfifo(tmp_path / LOCK)
    with pytest.raises(ArgumentError, match=r"a folder in which \.intently\.lock can be a file"):
        tiny.run(tmp_path)
    assert os.listdir(tmp_path) == [LOCK]


def test_many_processes_are_all_refused(tmp_path) -> None:
    """The first holds the folder, the others hear of it, and nobody waits for ever."""
    from test_processes import job, torchrun

    with sole_writer(tmp_path, WRITES):
        ended = torchrun(2, [job(tmp_path)], tmp_path / "result.json")
    lines = [x for x in ended.stderr.splitlines() if x.startswith("intently: out: expected a fo")]
    assert ended.returncode != 0 and len(lines) in (1, 2)  # torchrun may end the second first
    assert f"held by process {os.getpid()} " in lines[0]
    assert not (tmp_path / "checkpoints").exists()
