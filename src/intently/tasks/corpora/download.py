"""Files of public corpora: downloaded once and verified, or the user's copies.

A copy in a user's folder is used unchanged, with a warning if its checksum is not the known one. A
download with another checksum is discarded.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import sys
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from intently.errors import DataError, WriteError, build
from intently.foundation.files import digest, replacing
from intently.tasks.corpora.files import DAMAGED, GZIP, unpacked

TIMEOUT = 30.0
"""Seconds to wait for an answer of a server."""

LIMIT = 1 << 27
"""Largest file, packed or unpacked, in bytes: ten times the largest known."""

BLOCK = 1 << 16
ZIP = b"PK\x03\x04"
AGAIN = "try again, or name a folder with a copy by --data-dir (data_dir)"
BAD_ARCHIVE = (zipfile.BadZipFile, lzma.LZMAError, KeyError, RuntimeError, ValueError)
"""Errors of `zipfile` for a damaged or encrypted archive, or one without the member."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a corpus: its ``names``, its URL, and the SHA-256 of its unpacked content.

    Downloads are stored under the first name; a user's copy may have any of them, plain or with
    ``.gz``. ``member`` is the name of the file in a zip archive.

    >>> RemoteFile(("val.en",), "https://example.org/val.en.gz", "0" * 64).name
    'val.en'
    """

    names: tuple[str, ...]
    url: str
    sha256: str
    member: str = ""

    @property
    def name(self) -> str:
        """The name under which a download is stored."""
        return self.names[0]

    @property
    def by_hand(self) -> str:
        """Instructions for a download by hand."""
        if self.member:
            return f"{self.url} unpacked, {self.member} of it as {self.name}"
        return f"{self.url} as {self.name}.gz"


def cache_folder() -> Path:
    """Return the folder of downloads: $INTENTLY_DATA, else intently in the user's cache folder.

    >>> cache_folder().is_absolute()
    True
    """
    named = os.environ.get("INTENTLY_DATA")
    if named:
        return Path(named).expanduser().absolute()
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # the XDG specification says to ignore a relative path
    return (cache if cache.is_absolute() else Path.home() / ".cache") / "intently"


def obtain(corpus: str, files: Sequence[RemoteFile], data_dir: Path | None) -> list[Path]:
    """Return the paths of a corpus' files: in ``data_dir``, else in the cache, downloaded.

    ``data_dir`` is the corpus' own folder, or one with a folder ``corpus`` in it. Raises DataError
    that lists missing files, or says what to do if a download fails.
    """
    if data_dir is not None:
        return _copies(corpus, files, data_dir)
    folder = cache_folder() / corpus
    genuine = {
        file: next((x for x in _present(file, folder) if checksum(x) == file.sha256), None)
        for file in files
    }
    wanted = [file for file, path in genuine.items() if path is None]
    return [path or _fetch(file, folder, wanted) for file, path in genuine.items()]


def checksum(path: Path) -> str | None:
    """Return the SHA-256 of the content of a file, unpacked if gzip; None if it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(unpacked(handle), "sha256").hexdigest()
    except (OSError, *DAMAGED):
        return None


def _copies(corpus: str, files: Sequence[RemoteFile], data_dir: Path) -> list[Path]:
    """Return the user's copies; warn of those whose checksum is not the known one."""
    folder = data_dir / corpus if os.path.isdir(data_dir / corpus) else data_dir
    copies = {file: next(_present(file, folder), None) for file in files}
    missing = [file for file, path in copies.items() if path is None]
    if missing:
        names = ", ".join(" or ".join(file.names) for file in missing)
        got = f"no {names} in {folder}"
        if not os.path.isdir(folder):
            got = f"the file {folder}" if os.path.isfile(folder) else f"no folder {folder}"
        expected = f"a folder with the files of {corpus}, plain or with .gz"
        fix = f"they are available from\n  {_list(missing)}"
        raise build(DataError, "data_dir", expected, got, fix=fix)
    paths = [path for path in copies.values() if path is not None]
    other: list[str] = []
    for file, path in zip(files, paths):
        actual = checksum(path)
        if actual not in (None, file.sha256):  # the reader reports the line of a damaged file
            other.append(f"{path}: SHA-256 {actual}, known is {file.sha256}")
    if other:
        warnings.warn(
            f"{corpus}: files that are not the known ones are used as they are, so scores do not "
            "compare with those of others:\n  " + "\n  ".join(other),
            UserWarning,
            stacklevel=5,  # the caller of `load_corpus`
        )
    return paths


def _present(file: RemoteFile, folder: Path) -> Iterator[Path]:
    """Yield the paths of the file in the folder, under any of its names."""
    for name in file.names:
        for path in (folder / name, folder / f"{name}.gz"):
            if os.path.isfile(path):  # also False without permission
                yield path


def _fetch(file: RemoteFile, folder: Path, wanted: Sequence[RemoteFile]) -> Path:
    """Download a file into the cache atomically; other processes may do the same."""
    target = folder / file.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(target) as out:
            content = _content(file, b"".join(received(file, _by_hand(folder, wanted))))
            if digest(content) != file.sha256:
                expected = f"content with SHA-256 {file.sha256}"
                why = "the file there has changed, or came damaged; nothing of it was kept"
                raise build(DataError, file.url, expected, digest(content), why, AGAIN)
            out.write(content)
    except OSError as error:
        reason = error.__cause__ if isinstance(error, WriteError) else error
        got = getattr(reason, "strerror", None) or str(reason)
        fix = "set INTENTLY_DATA to a writable folder with enough space"
        expected = "a folder that takes downloads"
        raise build(DataError, str(folder), expected, got, fix=fix) from error
    return target


def received(file: RemoteFile, by_hand: str) -> Iterator[bytes]:
    """Yield the content at the file's URL; raise DataError for any failure of the network."""
    done, total = 0, None
    try:
        request = Request(file.url, headers={"User-Agent": "intently"})
        with urlopen(request, timeout=TIMEOUT) as response:
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdecimal() else None
            while (block := response.read(BLOCK)) and done <= LIMIT:
                done += len(block)
                _tell(file, done, total)
                yield block
        problem = f"more than {LIMIT:,} bytes" if done > LIMIT else ""
    except (OSError, HTTPException, ValueError) as error:  # the last: no address, no number
        problem = _reason(error)
    if not problem and total is not None and done < total:
        problem = f"a connection that was cut after {done:,} of {total:,} bytes"
    if problem:
        raise build(DataError, file.url, "the file to be downloaded", problem, fix=by_hand)
    _tell(file, done, total, end=True)


def _reason(error: Exception) -> str:
    """Describe why a download failed."""
    if isinstance(error, HTTPError):
        return f"the answer {error.code} {error.reason}"
    why = error.reason if isinstance(error, URLError) else error
    if isinstance(why, TimeoutError):
        return f"no answer for {TIMEOUT:g} seconds"
    return f"no connection ({getattr(why, 'strerror', None) or why or type(why).__name__})"


def _content(file: RemoteFile, packed: bytes) -> bytes:
    """Return the unpacked content of a download; raise DataError where it cannot be unpacked.

    Of a zip archive only the named member is read, and no path is followed.
    """
    source, content = io.BytesIO(packed), packed
    try:
        if file.member and packed.startswith(ZIP):
            with zipfile.ZipFile(source) as archive, archive.open(file.member) as member:
                content = member.read(LIMIT + 1)
        elif packed.startswith(GZIP):
            content = gzip.GzipFile(fileobj=source).read(LIMIT + 1)
        problem = f"more than {LIMIT:,} bytes in it" if len(content) > LIMIT else ""
    except (*DAMAGED, *BAD_ARCHIVE, OSError) as error:
        problem = str(error.args[0] if isinstance(error, KeyError) else error)
    if problem:
        raise build(DataError, file.url, "a file that can be unpacked", problem, fix=AGAIN)
    return content


def _tell(file: RemoteFile, done: int, total: int | None, *, end: bool = False) -> None:
    """Print progress: one updated line on a terminal, one line at the end elsewhere."""
    if end or sys.stderr.isatty():
        of = f" of {total / 1e6:.1f}" if total and not end else ""
        start, stop = ("\r", "\n" if end else "") if sys.stderr.isatty() else ("", "\n")
        line = f"{start}{file.url}: {done / 1e6:.1f}{of} MB"
        print(f"{line:<100}", end=stop, file=sys.stderr, flush=True)


def _by_hand(folder: Path, wanted: Sequence[RemoteFile]) -> str:
    there = [path.name for file in wanted for path in _present(file, folder)]
    other = f" ({', '.join(there)} there is damaged or another version)" if there else ""
    return (
        "where there is no network, name a folder with copies by --data-dir (data_dir), or put "
        f"into {folder}{other}:\n  {_list(wanted)}"
    )


def _list(files: Sequence[RemoteFile]) -> str:
    return "\n  ".join(file.by_hand for file in files)
