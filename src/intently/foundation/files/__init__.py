"""Files that nobody vouches for: one reader that checks them, one writer that is never half done.

Everything that Intently reads from a folder passes through `File`. Its length is known before it is
read, JSON is bounded in length and depth, tensors are compared with the sizes in their header
before memory is taken for them, and each refusal is one line: the path, what is wrong as far as it
is known, and what to do. A file that cannot be read is never called damaged, for its content may be
whole.

What is written appears under its name when it is complete and on the disk (`replacing`), or not at
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
from intently.foundation.files.reading import File
from intently.foundation.files.tensors import (
    DTYPES,
    HEADER,
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
    sync_folder,
    unwritten,
    write_synced,
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
    "sync_folder",
    "unwritten",
    "write_synced",
]
