"""Read sentence pairs from files, and report all problems of a file at once."""

from __future__ import annotations

import difflib
import gzip
import re
import shlex
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from intently.errors import ArgumentError, DataError, build

LISTED = 10
"""Problems that one message lists."""

LONGEST = 2**24
"""Bytes of a line at most: what has no line ends is no text."""

GZIP = b"\x1f\x8b"
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)
"""Errors of `gzip` for data that are cut or damaged."""

NOT_TEXT = {
    GZIP: "gzip inside gzip",
    b"PK\x03\x04": "a zip archive",
    b"BZh9": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}

ID = re.compile(r"(?:\w+[_-])?ids?|idx|index|no|nr|number|line|#")
LANGUAGES = "ar cs de en es fi fr hi hu it ja ko nl pl pt ro ru sv th tr uk vi zh".replace(" ", "|")
HEADER = re.compile(
    f"{ID.pattern}|(?:source|src|target|tgt|trg|ref|reference|translation|sentence|text|{LANGUAGES}"
    r"|english|french|german|spanish|italian|japanese|chinese)(?:[_-]\w+)?"
)
"""Names of columns in lower case: of ids, and of any column."""


@dataclass(frozen=True)
class ParallelText:
    """Sentence pairs: ``targets[i]`` translates ``sources[i]``.

    ``report`` is one line with the origin of the pairs and their number. ``guides[i]`` teaches a
    head, see `intently.tasks.training.loss`: by query and key, the positions of two words of pair i
    as `intently.tasks.text.words` cuts them, the part of the query's weight that the key is due.
    Raises ArgumentError if the sides, or the guides, differ in number.
    """

    sources: list[str] = field(repr=False)
    targets: list[str] = field(repr=False)
    report: str = ""
    guides: list[dict[tuple[int, int], float]] | None = field(repr=False, default=None)

    def __post_init__(self) -> None:
        if self.guides is not None and len(self.guides) != len(self.sources):
            expected = f"those of each of {len(self.sources):,} pairs"
            raise build(ArgumentError, "guides", expected, f"those of {len(self.guides):,}")
        if len(self.sources) != len(self.targets):
            expected = f"one for each of {len(self.sources):,} sources"
            raise build(ArgumentError, "targets", expected, f"{len(self.targets):,}")

    def __len__(self) -> int:
        return len(self.sources)

    def split_off(self, count: int) -> tuple[ParallelText, ParallelText]:
        """Return the text without its last ``count`` pairs, and those pairs.

        Raises ArgumentError if either part would be empty.

        >>> first, last = ParallelText(["a", "b", "c"], ["x", "y", "z"]).split_off(1)
        >>> first.sources, last.sources
        (['a', 'b'], ['c'])
        """
        if not 0 < count < len(self):
            raise build(ArgumentError, "count", f"1 to {len(self) - 1} pairs", count)
        cut = len(self) - count
        return self._part(slice(cut)), self._part(slice(cut, None))

    def _part(self, kept: slice) -> ParallelText:
        """Return the text of these pairs only."""
        guides = None if self.guides is None else self.guides[kept]
        return replace(self, sources=self.sources[kept], targets=self.targets[kept], guides=guides)


def read_parallel(source: str | Path, target: str | Path | None = None) -> ParallelText:
    """Read sentence pairs from two line-parallel files, or from one with tabs between the sides.

    In a file with tabs the first column is the source, the second the target; further columns are
    ignored. Files are UTF-8, with or without a byte order mark, plain or gzip whatever their name.
    Lines end with LF or CRLF only; white space around a side is stripped.

    Raises DataError that lists problems by file and line: sides without text, bytes that are not
    UTF-8, missing tabs, different numbers of lines, a file that is missing, empty, cut or not text.
    No pair is ever skipped.
    """
    if target is None:
        both = TextFile(Path(source))
        sources, targets = _columns(both)
        refuse_problems(str(source), "two texts in each line, with a tab between", [both])
    else:
        files = [TextFile(Path(source)), TextFile(Path(target))]
        sources, targets = (_sentences(file) for file in files)
        unequal = []
        if all(file.complete for file in files) and len(sources) != len(targets):
            unequal = [
                f"{source} has {len(sources):,} lines, {target} has {len(targets):,}: "
                "line by line one must translate the other"
            ]
        names = f"{source} and {target}"
        apart = list({file.path: file for file in files}.values())  # may be the same file
        refuse_problems(names, "a text in each line of each file", apart, unequal)
        source = names
    return ParallelText(sources, targets, f"{counted(len(sources))} from {source}")


def counted(pairs: int) -> str:
    """Return a number of sentence pairs in words.

    >>> counted(1), counted(2000)
    ('1 sentence pair', '2,000 sentence pairs')
    """
    return f"{pairs:,} sentence pair{'s' * (pairs != 1)}"


def unpacked(handle: BufferedReader) -> BufferedReader | gzip.GzipFile:
    """Return the content of a file, whether it is gzip or not."""
    return gzip.GzipFile(fileobj=handle) if handle.peek(len(GZIP)).startswith(GZIP) else handle


class LongLineError(ValueError):
    """A line of more than `LONGEST` bytes."""


def lines_of(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    """Yield the lines of an open file; raises `LongLineError`, before it takes the memory."""
    while line := file.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise LongLineError(f"a line of more than {LONGEST // 2**20} MiB")
        yield line


class TextFile:
    """The lines of a file that may be gzip, and its problems; ``complete`` once all are read.

    ``count`` is the number of all problems; ``problems`` holds the first few.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.complete = False
        self.count = 0
        self.problems: list[str] = []

    def refuse(self, problem: str, line: int | None = None) -> None:
        """Record a problem of a line, or of the whole file."""
        self.count += 1
        if line is None:
            self.problems.insert(0, f"{self.path}: {problem}")
        elif len(self.problems) < LISTED:
            self.problems.append(f"{self.path}:{line}: {problem}")

    def lines(self) -> Iterator[tuple[int, str | None]]:
        """Yield each line with its number from 1, None for a refused line."""
        number = 0
        try:
            with open(self.path, "rb") as handle:
                for number, line in enumerate(lines_of(unpacked(handle)), 1):
                    if number == 1:
                        line = line.removeprefix(BOM_UTF8)
                        for mark, kind in NOT_TEXT.items():
                            if line.startswith(mark):
                                self.refuse(f"{kind}, not text in UTF-8 or gzip of it")
                                return
                    yield number, self._text(line, number)
        except FileNotFoundError:
            nothing = self.path.is_symlink()
            self.refuse("a link to nothing" if nothing else f"no such file{_nearby(self.path)}")
        except IsADirectoryError:
            self.refuse("a folder, not a file")
        except DAMAGED as error:
            self.refuse(f"the gzip data is cut or damaged after line {number:,} ({error})")
        except LongLineError as error:
            self.refuse(str(error), number + 1)
        except (OSError, ValueError) as error:
            self.refuse(f"cannot be read ({getattr(error, 'strerror', None) or error})")
        else:
            self.complete = number > 0
            if not number:
                self.refuse("the file is empty")

    def _text(self, line: bytes, number: int) -> str | None:
        """Return a line as text, None if it is refused."""
        text, place, problem = None, line.find(0), "NUL: this is not text"
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            place, byte = error.start, line[error.start : error.start + 1]
            latin = byte.decode("cp1252", errors="replace")
            problem = f"not UTF-8 (0x{byte.hex().upper()}, in Windows-1252 {latin!r})"
        if place < 0:
            return text
        self.refuse(f"byte {place + 1} of the line is {problem}", number)
        return None


def _sentences(file: TextFile) -> list[str]:
    sentences = []
    for number, line in file.lines():
        sentences.append(line.strip() if line else "")
        if line is not None and not sentences[-1]:
            file.refuse("no text in the line", number)
    return sentences


def _columns(file: TextFile) -> tuple[list[str], list[str]]:
    """Return the first two columns of a table; refuse one whose texts seem to be elsewhere."""
    sources, targets = [], []
    without: list[int] = []  # lines without a tab; unreadable ones may have some
    numbered, header, ids = True, [], True
    for number, line in file.lines():
        columns = [column.strip() for column in (line or "").rstrip("\r\n").split("\t")]
        sources.append(columns[0])
        targets.append(columns[1] if len(columns) > 1 else "")
        numbered = numbered and len(columns) > 3 and (columns[0] + columns[2]).isdecimal()
        if number == 1 and _is_header(columns):
            header = columns
            continue
        ids = ids and len(columns) > 2 and columns[0].isdecimal() and not columns[2].isdecimal()
        if line is not None and len(columns) == 1:
            without.append(number)
        elif line is not None and not all(columns[:2]):
            empty = "first" if columns[1] else "second" if columns[0] else "first and second"
            file.refuse(f"no text in the {empty} column", number)
    if file.complete and len(without) == len(sources):
        file.refuse("no line has a tab; where the translations are in another file, name that too")
    elif file.complete and numbered:
        file.refuse("columns 1 and 3 are numbers only; `cut -f2,4` would keep the texts")
    elif file.complete and header:
        texts = [str(n) for n, name in enumerate(header, 1) if not ID.fullmatch(name.lower())]
        pairs = f"tail -n +2 {shlex.quote(str(file.path))} | cut -f{','.join(texts[:2])}"
        problem = f"the header {', '.join(header)}; `{pairs}` keeps the pairs"
        file.refuse(f"{problem} (if it is a pair, move it to another line)", 1)
    elif file.complete and ids and len(set(sources)) == len(sources) > 1:
        file.refuse("column 1 numbers the lines; `cut -f2,3` keeps the texts")
    else:
        for number in without:
            file.refuse("no tab in the line", number)
    return sources, targets


def _is_header(columns: Sequence[str]) -> bool:
    """Return whether a first line names columns: "id", "src" and "tgt", say, or "en" and "fr"."""
    names = [column.lower() for column in columns]
    return len(set(names)) == len(names) > 1 and all(map(HEADER.fullmatch, names[:3]))


def refuse_problems(
    names: str, expected: str, files: Sequence[TextFile], unequal: Sequence[str] = ()
) -> None:
    """Raise DataError if there are problems; each file gets a share of the list."""
    count = len(unequal) + sum(file.count for file in files)
    if not count:
        return
    listed = list(unequal)
    for place, file in enumerate(files):
        others = sum(len(other.problems) for other in files[place + 1 :])
        room = LISTED - len(listed)
        listed += file.problems[: max(room - others, room // (len(files) - place))]
    if count > len(listed):
        listed.append(f"and {count - len(listed):,} more")
    got = f"{count:,} problem{'s' * (count > 1)}" + "".join(f"\n  {line}" for line in listed)
    raise build(DataError, names, expected, got)


def _nearby(path: Path) -> str:
    """Name files with a similar name, or the missing folder."""
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent}"
    names = sorted(file.name for file in path.parent.iterdir())
    close = difflib.get_close_matches(path.name, names, n=3)
    return f"; in its folder there is {', '.join(close)}" if close else ""
