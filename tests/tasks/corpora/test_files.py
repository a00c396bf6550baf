"""Files of sentence pairs: what is read, and what is said of files that cannot be."""

from __future__ import annotations

import gzip
import os
import threading
from pathlib import Path

import pytest

from intently.errors import ArgumentError, DataError
from intently.tasks.corpora.files import ParallelText, read_parallel


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, content: str | bytes) -> str:
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    return name


def refusal(*files: str) -> str:
    with pytest.raises(DataError) as caught:
        read_parallel(*files)
    names, _, rest = str(caught.value).partition(": expected ")
    assert names == " and ".join(files)
    return rest.split("; got ", 1)[1]


@pytest.mark.usefixtures("folder")
class TestReading:
    def test_two_files(self) -> None:
        write("a", "one\ntwo\n")
        write("b", "un\ndeux\n")
        text = read_parallel("a", Path("b"))
        assert (text.sources, text.targets) == (["one", "two"], ["un", "deux"])
        assert text.report == "2 sentence pairs from a and b"
        assert len(text) == 2
        assert read_parallel(write("c", "one\tun\n")).report == "1 sentence pair from c"
        with pytest.raises(ArgumentError, match="targets: expected one for each of 2 sources; got"):
            ParallelText(["a", "b"], ["x"])

    def test_columns_after_the_second_are_passed_over(self) -> None:
        write("a.tsv", "Go.\tVa !\tCC-BY 2.0\t#12\nHi.\tSalut !\n")
        text = read_parallel("a.tsv")
        assert (text.sources, text.targets) == (["Go.", "Hi."], ["Va !", "Salut !"])
        write("a.tsv", "12\ttwelve\n7\tseven\n")
        assert read_parallel("a.tsv").sources == ["12", "7"]

    @pytest.mark.parametrize("name", ["a.gz", "a.tsv", "a"])
    def test_gzip_is_known_by_its_content(self, name: str) -> None:
        write(name, gzip.compress(b"one\tun\n") + gzip.compress(b"two\tdeux\n"))
        assert read_parallel(name).targets == ["un", "deux"]
        write(name, "plain\tclair")
        assert read_parallel(name).targets == ["clair"]

    def test_marks_and_line_ends_are_taken_off(self) -> None:
        write("a", b"\xef\xbb\xbfone\r\n two \r\nthree")
        write("b", gzip.compress(b"\xef\xbb\xbfun\ndeux\t\n trois"))
        text = read_parallel("a", "b")
        assert text.sources == ["one", "two", "three"]
        assert text.targets == ["un", "deux", "trois"]

    def test_only_line_feeds_end_lines(self) -> None:
        odd = "a\u2028b\x85c\x0bd\x0ce\u2029f\rg\x1ch"
        write("a", f"{odd}\nx\n")
        write("b", "1\n2\n")
        assert read_parallel("a", "b").sources == [odd, "x"]

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
    def test_a_pipe_is_read(self, folder: Path) -> None:
        os.mkfifo("pipe")
        content = gzip.compress(b"one\tun\n" * 50_000)
        feeder = threading.Thread(
            target=lambda: (folder / "pipe").write_bytes(content), daemon=True
        )
        feeder.start()
        assert len(read_parallel("pipe")) == 50_000
        feeder.join()


@pytest.mark.usefixtures("folder")
class TestRefusals:
    @pytest.mark.parametrize(
        ("contents", "said"),
        [
            (
                {"a": "one\ntwo\nthree\n", "b": "un\ndeux\n"},
                "1 problem\n  a has 3 lines, b has 2: line by line one must translate the other.",
            ),
            (
                {"a": "one\n\nthree\n \t\n", "b": "un\ndeux\n\u00a0\nquatre\n"},
                "3 problems\n  a:2: no text in the line\n  a:4: no text in the line"
                "\n  b:3: no text in the line.",
            ),
            (
                {"t": "one\tun\n\tdeux\nthree\t\n\t \n"},
                "3 problems\n  t:2: no text in the first column\n  t:3: no text in the second "
                "column\n  t:4: no text in the first and second column.",
            ),
            (
                {"t": "one\tun\ntwo\n\nthree\ttrois\n"},
                "2 problems\n  t:2: no tab in the line\n  t:3: no tab in the line.",
            ),
            (
                {"t": "one\ntwo\n"},
                "1 problem\n  t: no line has a tab; where the translations are in another file, "
                "name that too.",
            ),
            (
                {"a": b"one\ncaf\xe9\n\xe2\x82\n", "b": "un\ndeux\ntrois\n"},
                "2 problems\n  a:2: byte 4 of the line is not UTF-8 (0xE9, in Windows-1252 'é')"
                "\n  a:3: byte 1 of the line is not UTF-8 (0xE2, in Windows-1252 'â').",
            ),
            ({"t": b"one\tun\n\x81\tdeux\n"}, "t:2: byte 1 of the line is not UTF-8"),
            ({"t": b"one\tun\na\0b\tdeux\n"}, "t:2: byte 2 of the line is NUL: this is not text"),
            ({"empty.gz": gzip.compress(b"")}, "1 problem\n  empty.gz: the file is empty."),
            (
                {"t": "12\tGo.\t77\tVa !\n13\tHi.\t78\tSalut !\n"},
                "columns 1 and 3 are numbers only; `cut -f2,4` would keep",
            ),
            *(
                ({"t": content}, f"1 problem\n  t: {kind}, not text in UTF-8 or gzip of it.")
                for content, kind in (
                    (gzip.compress(gzip.compress(b"a\tb\n")), "gzip inside gzip"),
                    ("a\tb\n".encode("utf-16"), "UTF-16"),
                    (b"PK\x03\x04....", "a zip archive"),
                    (b"\xfd7zXZ\x00", "xz"),
                )
            ),
        ],
        ids=lambda value: value.split("\n")[-1].strip()[:40] if isinstance(value, str) else "",
    )
    def test_each_problem_is_told_with_its_line(
        self, contents: dict[str, str | bytes], said: str
    ) -> None:
        for name, content in contents.items():
            write(name, content)
        told = refusal(*contents)
        assert told == said if said.endswith(".") else said in told

    def test_bytes_are_told_where_no_tab_was_read(self) -> None:
        write("t", b"x\n" * 30 + b"a\0\tb\n")
        _, first, second, *_, last = refusal("t").splitlines()
        assert first == "  t:31: byte 2 of the line is NUL: this is not text"
        assert second == "  t:1: no tab in the line" and last == "  and 21 more."

    def test_at_most_ten_problems_are_told_and_both_files_have_their_share(self) -> None:
        write("a", "\n" * 30)
        write("b", "x\n" * 27 + "\n" * 2)
        told = refusal("a", "b").split("\n")
        assert told[0] == "33 problems"
        assert "a has 30 lines, b has 29" in told[1]
        assert told[2] == "  a:1: no text in the line"
        assert told[-2] == "  b:29: no text in the line"
        assert told[-1] == "  and 23 more."
        assert len(told) == 12
        write("b", "\n" * 30)
        told = refusal("a", "b").split("\n")
        assert [line.strip()[0] for line in told[1:-1]] == ["a"] * 5 + ["b"] * 5
        assert told[-1] == "  and 50 more."

    def test_a_missing_file_names_its_likes(self) -> None:
        write("train.en", "one\n")
        write("train.de.gz", "eins\n")
        message = refusal("train.en", "train.de")
        assert message.startswith("1 problem\n  train.de: no such file; in its folder there is ")
        assert "train.de.gz" in message
        assert refusal("none/a", "train.en") == (
            "1 problem\n  none/a: no such file; there is no folder none."
        )
        assert refusal("xyz") == "1 problem\n  xyz: no such file."
        Path("de.train").symlink_to("gone")
        assert refusal("de.train") == "1 problem\n  de.train: a link to nothing."

    def test_a_file_that_is_given_twice_is_refused_once(self) -> None:
        assert refusal("xyz", "xyz") == "1 problem\n  xyz: no such file."
        write("a", "one\n\n")
        assert refusal("a", "a") == "1 problem\n  a:2: no text in the line."

    def test_folders_and_empty_files_are_named(self, folder: Path) -> None:
        (folder / "sub").mkdir()
        write("empty", "")
        assert refusal("sub", "empty") == (
            "2 problems\n  sub: a folder, not a file\n  empty: the file is empty."
        )

    @pytest.mark.skipif(
        os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0,
        reason="everything may be read here",
    )
    def test_a_file_that_may_not_be_read_is_named(self, folder: Path) -> None:
        (folder / "locked").touch(mode=0)
        assert refusal("locked") == "1 problem\n  locked: cannot be read (Permission denied)."

    def test_damaged_gzip_is_named(self) -> None:
        lines = "".join(f"line {number}\tligne {number**3}\n" for number in range(20_000))
        whole = gzip.compress(lines.encode())
        for damaged in (
            whole[: len(whole) // 2],
            whole[:-3],
            whole[:5],
            whole[:2000] + bytes(100) + whole[2100:],
            whole + b"more",
        ):
            write("t.gz", damaged)
            assert "t.gz: the gzip data is cut or damaged after line " in refusal("t.gz")


def test_tatoeba_is_read(shared: Path) -> None:
    text = read_parallel(shared / "data" / "tatoeba" / "fra-eng.tsv.gz")
    assert len(text) == 167_130
    assert (text.sources[0], text.targets[0]) == ("Go.", "Va !")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("packed", [False, True])
def test_a_line_without_end_is_refused_before_it_takes_the_memory(packed: bool) -> None:
    endless = b"fine\n" + b"a" * (2**24 + 1)
    name = write("endless", gzip.compress(endless, 1) if packed else endless)
    write("short", "one\ntwo\n")
    got = refusal(name, "short")
    assert "endless:2: a line of more than 16 MiB" in got
    whole = b"a" * (2**24 - 1) + b"\n"
    write("whole", whole)
    assert read_parallel("whole", write("one", "x\n")).sources == ["a" * (2**24 - 1)]


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="a device of POSIX")
@pytest.mark.usefixtures("folder")
def test_a_device_without_end_is_refused() -> None:
    assert "/dev/zero:1: a line of more than 16 MiB" in refusal("/dev/zero", write("b", "x\n"))
