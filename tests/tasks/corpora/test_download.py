"""Downloads: what is kept, what is refused, and what people are told; from a server in a thread."""

from __future__ import annotations

import gzip
import io
import os
import socket
import warnings
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from intently.errors import DataError
from intently.tasks.corpora import download
from intently.tasks.corpora.download import RemoteFile, cache_folder, checksum, obtain

from .serving import Site

CONTENT = "".join(f"sentence {number}\n" for number in range(5_000)).encode()
OTHER = b"another\n"


def remote(site: Site, path: str = "/words.en.gz", content: bytes = CONTENT) -> RemoteFile:
    return RemoteFile(("words.en",), site.address + path, sha256(content).hexdigest())


def zipped(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def refusal(file: RemoteFile) -> str:
    with pytest.raises(DataError) as caught:
        obtain("words", [file], None)
    left = [path for path in cache_folder().rglob("*") if path.is_file()]
    assert not left, f"{left} stayed after a download that failed"
    return str(caught.value)


@pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["gzip", "plain"])
def test_a_file_is_downloaded_once(
    site: Site, cache: Path, pack: Callable[[bytes], bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    site.files["/words.en.gz"] = pack(CONTENT)
    (path,) = obtain("words", [remote(site)], None)
    assert path == cache / "words" / "words.en"
    assert path.read_bytes() == CONTENT
    assert os.listdir(path.parent) == ["words.en"]
    assert site.address in capsys.readouterr().err
    assert obtain("words", [remote(site)], None) == [path]
    assert site.asked == ["/words.en.gz"]
    assert capsys.readouterr().err == ""


def test_of_a_zip_archive_only_the_named_file_is_read(site: Site, cache: Path) -> None:
    site.files["/all.zip"] = zipped({"../escaped": b"no", "in/words.txt": CONTENT, "/x": b"no"})
    file = RemoteFile(
        ("words.en",), f"{site.address}/all.zip", sha256(CONTENT).hexdigest(), "in/words.txt"
    )
    assert obtain("words", [file], None)[0].read_bytes() == CONTENT
    assert [path.name for path in cache.parent.rglob("*") if path.is_file()] == ["words.en"]


def test_redirects_are_followed(site: Site) -> None:
    site.moved["/old"] = f"{site.address}/older"
    site.moved["/older"] = "/words.en.gz"
    site.files["/words.en.gz"] = gzip.compress(CONTENT)
    assert obtain("words", [remote(site, "/old")], None)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("broken", [OTHER, gzip.compress(CONTENT)[:500]], ids=["another", "cut"])
def test_what_is_damaged_in_the_cache_is_downloaded_again(
    site: Site, cache: Path, broken: bytes
) -> None:
    site.files["/words.en.gz"] = gzip.compress(CONTENT)
    (cache / "words").mkdir(parents=True)
    (cache / "words" / "words.en").write_bytes(broken)
    assert obtain("words", [remote(site)], None)[0].read_bytes() == CONTENT


def test_a_good_copy_is_found_packed_and_beside_a_damaged_one(site: Site, cache: Path) -> None:
    (cache / "words").mkdir(parents=True)
    (cache / "words" / "words.en").write_bytes(OTHER)
    (cache / "words" / "words.en.gz").write_bytes(gzip.compress(CONTENT))
    assert obtain("words", [remote(site)], None) == [cache / "words" / "words.en.gz"]
    assert site.asked == []


def test_downloads_at_the_same_time_do_not_disturb_each_other(site: Site, cache: Path) -> None:
    site.files["/words.en.gz"] = gzip.compress(CONTENT)
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: obtain("words", [remote(site)], None)[0], range(8)))
    assert set(paths) == {cache / "words" / "words.en"}
    assert os.listdir(cache / "words") == ["words.en"]
    assert paths[0].read_bytes() == CONTENT


class TestRefused:
    def test_another_content(self, site: Site) -> None:
        site.files["/words.en.gz"] = gzip.compress(OTHER)
        assert refusal(remote(site)) == (
            f"{site.address}/words.en.gz: expected content with SHA-256 "
            f"{sha256(CONTENT).hexdigest()}; got {sha256(OTHER).hexdigest()}. "
            "The file there has changed, or came damaged; nothing of it was kept. "
            "Try again, or name a folder with a copy by --data-dir (data_dir)."
        )

    @pytest.mark.parametrize("after", [0, len(CONTENT) - 1])
    def test_a_cut_connection(self, site: Site, after: int) -> None:
        site.files["/words.en.gz"] = CONTENT
        site.cut["/words.en.gz"] = after
        assert f"cut after {after:,} of {len(CONTENT):,} bytes" in refusal(remote(site))

    def test_nothing_at_the_address(self, site: Site, cache: Path) -> None:
        assert refusal(remote(site)) == (
            f"{site.address}/words.en.gz: expected the file to be downloaded; got the answer 404 "
            "Not Found. Where there is no network, name a folder with copies by --data-dir "
            f"(data_dir), or put into {cache / 'words'}:\n"
            f"  {site.address}/words.en.gz as words.en.gz."
        )

    def test_nobody_at_the_address(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("no_proxy", "*")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        file = RemoteFile(("words.en",), f"http://127.0.0.1:{port}/words.en.gz", "0" * 64)
        message = refusal(file)
        assert "got no connection (Connection refused)" in message
        assert file.url in message and "--data-dir" in message and str(cache / "words") in message

        def unknown(*_: object, **__: object) -> list[object]:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        message = refusal(RemoteFile(("words.en",), "http://nowhere.invalid/words.gz", "0" * 64))
        assert "got no connection (Name or service not known)" in message

    def test_a_server_that_never_answers(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        site.silent.add("/words.en.gz")
        monkeypatch.setattr(download, "TIMEOUT", 0.2)
        assert "got no answer for 0.2 seconds" in refusal(remote(site))

    @pytest.mark.parametrize("pack", [gzip.compress, bytes], ids=["unpacked", "packed"])
    def test_more_than_any_corpus(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
    ) -> None:
        site.files["/words.en.gz"] = pack(bytes(1 << 20))
        monkeypatch.setattr(download, "LIMIT", 100_000)
        assert "got more than 100,000 bytes" in refusal(remote(site))
        received = 0
        with suppress(DataError):
            for block in download.received(remote(site), ""):
                received += len(block)
        assert received <= 100_000 + download.BLOCK  # and no more

    def test_what_cannot_be_unpacked(self, site: Site) -> None:
        damaged = []
        for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
            archive = bytearray(zipped({"in/words.txt": CONTENT}, method))
            archive[60:90] = bytes(30)
            damaged.append((bytes(archive), ""))
        whole = zipped({"in/words.txt": CONTENT})
        strange = zipped({"in/wörds.txt": CONTENT}).replace("ö".encode(), b"\xff\xff")
        for content, problem in (
            (gzip.compress(CONTENT)[:-20], "Compressed file ended"),
            (zipped({"other.txt": CONTENT}), "There is no item named 'in/words.txt'"),
            (whole[:-40], ""),
            (strange, "'utf-8' codec"),
            *damaged,
        ):
            site.files["/all.zip"] = content
            file = RemoteFile(("words.en",), f"{site.address}/all.zip", "0" * 64, "in/words.txt")
            assert f"expected a file that can be unpacked; got {problem}" in refusal(file)

    @pytest.mark.parametrize("to", ["http://[::1", f"http://{'a' * 70}.org/", "file:///etc/hosts"])
    def test_redirects_to_what_is_no_address(self, site: Site, to: str) -> None:
        site.moved["/words.en.gz"] = to
        assert "expected the file to be downloaded; got " in refusal(remote(site))

    def test_redirects_without_end(self, site: Site) -> None:
        site.moved["/words.en.gz"] = "/words.en.gz"
        assert "would lead to an infinite loop" in refusal(remote(site))

    @pytest.mark.parametrize("name", ["x" * 300, "file"])
    def test_a_cache_that_cannot_be_made(
        self, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("INTENTLY_DATA", str(tmp_path / name))
        with pytest.raises(DataError) as caught:
            obtain("words", [remote(site)], None)
        message, folder = str(caught.value), tmp_path / name / "words"
        assert message.startswith(f"{folder}: expected a folder that takes downloads; got ")
        assert message.endswith("Set INTENTLY_DATA to a writable folder with enough space.")
        assert site.asked == []

    def test_all_that_is_missing_is_named_with_the_first_failure(
        self, site: Site, cache: Path
    ) -> None:
        files = [
            RemoteFile((name,), f"{site.address}/{name}.gz", sha256(CONTENT).hexdigest())
            for name in ("a.en", "a.de", "a.fr")
        ]
        (cache / "words").mkdir(parents=True)
        (cache / "words" / "a.en").write_bytes(CONTENT)
        (cache / "words" / "a.fr").write_bytes(b"another\n")
        with pytest.raises(DataError) as caught:
            obtain("words", files, None)
        message = str(caught.value)
        assert "a.en.gz" not in message
        assert f"{site.address}/a.de.gz as a.de.gz\n  {site.address}/a.fr.gz as a.fr.gz." in message
        assert "(a.fr there is damaged or another version)" in message


class TestCopies:
    """Files in a folder that the user names: nothing is downloaded, nothing refused."""

    @pytest.fixture
    def file(self) -> RemoteFile:
        return RemoteFile(
            ("words.en", "w.txt"), "http://127.0.0.1:9/x.gz", sha256(CONTENT).hexdigest()
        )

    @pytest.mark.parametrize("inside", ["", "words"], ids=["own folder", "folder above"])
    def test_are_found(self, tmp_path: Path, file: RemoteFile, inside: str) -> None:
        (tmp_path / inside).mkdir(exist_ok=True)
        for name in ("words.en", "words.en.gz", "w.txt", "w.txt.gz"):
            path = tmp_path / inside / name
            path.write_bytes(gzip.compress(CONTENT) if name.endswith(".gz") else CONTENT)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert obtain("words", [file], tmp_path) == [path]
            path.unlink()

    def test_that_are_missing_are_listed(self, tmp_path: Path, file: RemoteFile) -> None:
        other = RemoteFile(("words.fr",), "http://127.0.0.1:9/y.gz", "0" * 64)
        with pytest.raises(DataError) as caught:
            obtain("words", [file, other], tmp_path)
        assert str(caught.value) == (
            "data_dir: expected a folder with the files of words, plain or with .gz; got no "
            f"words.en or w.txt, words.fr in {tmp_path}. They are available from\n"
            "  http://127.0.0.1:9/x.gz as words.en.gz\n  http://127.0.0.1:9/y.gz as words.fr.gz."
        )

    def test_in_no_folder(self, tmp_path: Path, file: RemoteFile) -> None:
        (tmp_path / "words.en").write_bytes(CONTENT)
        for name, got in (
            ("typo", r"no folder .*typo\. They"),
            ("words.en", r"the file .*words\.en\. They"),
            ("x" * 300, "no folder"),
        ):
            with pytest.raises(DataError, match=f"got {got}"):
                obtain("words", [file], tmp_path / name)

    def test_that_differ_are_used_with_a_warning(self, tmp_path: Path, file: RemoteFile) -> None:
        path = tmp_path / "words.en"
        path.write_bytes(b"my own\n")
        with pytest.warns(UserWarning) as caught:
            assert obtain("words", [file], tmp_path) == [path]
        assert [str(warning.message) for warning in caught] == [
            "words: files that are not the known ones are used as they are, so scores do not "
            "compare with those of others:\n"
            f"  {path}: SHA-256 {sha256(path.read_bytes()).hexdigest()}, known is {file.sha256}"
        ]


def test_a_checksum_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(CONTENT)
    (tmp_path / "packed").write_bytes(gzip.compress(CONTENT))
    assert checksum(tmp_path / "plain") == checksum(tmp_path / "packed")
    assert checksum(tmp_path / "plain") == sha256(CONTENT).hexdigest()


def test_the_cache_is_where_the_user_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("INTENTLY_DATA", "~/corpora")
    assert cache_folder() == Path("/home/somebody/corpora")
    monkeypatch.setenv("INTENTLY_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "/large/cache")
    assert cache_folder() == Path("/large/cache/intently")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path("/home/somebody/.cache/intently")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/somebody/.cache/intently")
