"""Libraries that only some parts need, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec

from intently.errors import MissingLibraryError, build


def require(library: str, does: str) -> None:
    """Raise `MissingLibraryError` unless a library is installed; its extra has the same name.

    ``does`` completes the sentence "the library, which …".

    >>> require("transformers", "reads such folders")
    """
    if find_spec(library) is None:
        raise build(
            MissingLibraryError,
            library,
            f"{library}, which {does}",
            "an environment without it",
            fix=f"install it by pip install 'intently[{library}]'",
        )
