"""Where results are written: devices, pipes and links stay what they are; drafts do not stay."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch

import intently as it
from intently.errors import WriteError
from intently.foundation.files import replace_file
from intently.foundation.files.writing import replacing
from intently.observe.recording.summary import Table

pytestmark = pytest.mark.skipif(os.name != "posix", reason="devices, pipes and modes of POSIX")


def a_recording() -> it.Recording:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with torch.no_grad(), it.watch(layer) as seen:
        layer(*[torch.ones(1, 3, 8)] * 3)
    return seen


def drafts(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".writing-")]


@pytest.mark.parametrize("save", ["bytes", "recording"])
def test_a_device_stays_a_device(tmp_path: Path, save: str) -> None:
    node = tmp_path / ("null.safetensors" if save == "recording" else "null")
    try:
        os.mknod(node, stat.S_IFCHR | 0o622, os.makedev(1, 3))
        node.write_bytes(b"")
    except OSError:
        pytest.skip("no devices can be made here")
    before = node.stat()
    a_recording().save(node) if save == "recording" else replace_file(node, b"content")
    after = node.stat()
    assert stat.S_ISCHR(after.st_mode) and after.st_rdev == before.st_rdev
    assert after.st_mode == before.st_mode and os.listdir(tmp_path) == [node.name]


def test_a_pipe_gets_the_content(tmp_path: Path) -> None:
    pipe, got = tmp_path / "pipe.safetensors", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    seen = a_recording()
    seen.save(pipe)
    reader.join()
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    seen.save(tmp_path / "file.safetensors")
    assert got == [(tmp_path / "file.safetensors").read_bytes()]


@pytest.mark.parametrize("name", ["/dev/stdout", "/proc/self/fd/1", "link", "out"])
def test_standard_output_is_appended_to(tmp_path: Path, name: str) -> None:
    code = """
import sys
from pathlib import Path
from intently.foundation.files import replace_file
print("first")
replace_file(Path(sys.argv[1]), b"second\\n")
print("third")
"""
    path = tmp_path / name  # an absolute name stays as it is
    if name == "link":
        path.symlink_to("/dev/stdout")
    elif name != "out" and not path.exists():
        pytest.skip(f"no {name} here")
    command = [sys.executable, "-c", code, str(path)]
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(command, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"
    if name != "out":
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"first\nsecond\nthird\n"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no /dev/shm here")
def test_an_ordinary_file_below_dev_is_replaced() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "file"
        path.write_bytes(b"old")
        with path.open("rb") as reader:
            replace_file(path, b"new")
            assert reader.read() == b"old" and path.read_bytes() == b"new"


def test_a_link_stays_a_link_and_a_file_keeps_its_mode(tmp_path: Path) -> None:
    target, link = tmp_path / "deep" / "target", tmp_path / "link"
    target.parent.mkdir()
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(Path("deep") / "target")
    replace_file(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    dangling = tmp_path / "dangling"
    dangling.symlink_to("made")
    replace_file(dangling, b"made")
    assert dangling.is_symlink() and (tmp_path / "made").read_bytes() == b"made"
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(WriteError, match="levels of symbolic links"):
        replace_file(loop, b"never")


def test_a_new_file_has_the_mode_of_the_system(tmp_path: Path) -> None:
    replace_file(tmp_path / "ours", b"")
    (tmp_path / "theirs").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), replacing(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and not drafts(tmp_path)


def test_the_draft_of_a_killed_writer_is_removed_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    code = """
import sys
from pathlib import Path
from intently.foundation.files.writing import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("writing", flush=True)
    sys.stdin.readline()
"""

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "file")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
        return process

    with start() as killed:
        killed.kill()
    assert len(drafts(tmp_path)) == 1
    (tmp_path / ".writing-another-0123abcd").write_bytes(b"of another file")
    with start() as living:
        left = drafts(tmp_path)
        assert len(left) == 2  # that of the living writer, and that of another file
        replace_file(tmp_path / "file", b"content")
        assert sorted(drafts(tmp_path)) == sorted(left)
        assert living.stdin is not None
        living.stdin.write("\n")
        living.stdin.flush()
        assert living.wait() == 0
    assert drafts(tmp_path) == [".writing-another-0123abcd"]
    assert (tmp_path / "file").read_bytes() == b"half"


def test_a_pipe_named_like_a_draft_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".writing-file-00000000")
    code = "import sys, pathlib; from intently.foundation.files import replace_file as write; "
    code += "write(pathlib.Path(sys.argv[1]), b'new')"
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    subprocess.run(command, check=True, timeout=60)
    assert sorted(os.listdir(tmp_path)) == [".writing-file-00000000", "file"]


def test_a_draft_is_as_private_as_its_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch(0o600)
    with replacing(path) as file:
        file.write(b"secret")
        (draft,) = drafts(tmp_path)
        assert stat.S_IMODE((tmp_path / draft).stat().st_mode) == 0o600


def test_a_folder_that_cannot_be_listed_can_be_written_to() -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o333)
        try:
            if user == 0:  # who may list everything
                os.seteuid(65534)
            with pytest.raises(PermissionError):
                os.listdir(folder)
            replace_file(Path(folder) / "file", b"content")
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o700)
        assert (Path(folder) / "file").read_bytes() == b"content" and not drafts(Path(folder))


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        Table([{"layer": "one"}, {"layer": "\ud800"}], ["layer"]).csv(path)
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["table.csv"]
    Table([{"layer": "one"}], ["layer"]).csv(path)
    assert path.read_bytes() == b"layer\r\none\r\n"
    with pytest.raises(WriteError, match="Make that folder first"):
        Table([], ["layer"]).csv(tmp_path / "none" / "table.csv")
