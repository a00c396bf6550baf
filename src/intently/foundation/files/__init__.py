"""Untrusted files: one reader that verifies them, and writes that are atomic.

Intently reads every file of a folder through `File`. The length of a file is checked before it is
read, JSON is bounded in length and depth, the sizes of tensors are checked against the header
before memory is allocated, and each error is one line: the path, the problem, and what to do. A
file that cannot be read is never called damaged: its content may be intact.

A written file appears under its name once it is complete and on the disk (`replacing`), or not at
all.
"""

from intently.foundation.files.plain_data import (
    SEAL,
    UnfitError,
    digest,
    fault,
    parsed,
    plain,
    sealed,
)
from intently.foundation.files.reading import (
    DTYPES,
    HEADER,
    File,
    Header,
    Stored,
    checksums,
    sealed_header,
)
from intently.foundation.files.writing import (
    destination,
    make_folder,
    replace_file,
    replace_files,
    replacing,
    unwritten,
)

__all__ = [
    "DTYPES",
    "HEADER",
    "SEAL",
    "File",
    "Header",
    "Stored",
    "UnfitError",
    "checksums",
    "destination",
    "digest",
    "fault",
    "make_folder",
    "parsed",
    "plain",
    "replace_file",
    "replace_files",
    "replacing",
    "sealed",
    "sealed_header",
    "unwritten",
]
