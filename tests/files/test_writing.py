"""Where results are written: devices, pipes and links stay what they are; drafts do not stay."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import intently as it
from intently.errors import WriteError
from intently.foundation.files import replace_file
from intently.foundation.files.writing import replacing

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


def test_standard_output_is_appended_to(tmp_path: Path) -> None:
    code = """
from pathlib import Path
from intently.foundation.files import replace_file
print("first", flush=True)
replace_file(Path("/dev/stdout"), b"second\\n")
print("third")
"""
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b"first\nsecond\nthird\n"


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
