"""Libraries that only some calls need, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec

from intently.errors import MissingLibraryError, build

EXTRAS = {
    "anywidget": "notebook",
    "tensorboard": "tensorboard",
    "transformers": "transformers",
    "diffusers": "diffusers",
    "keras": "keras",
}
"""Library: the extra of ours that installs it."""


def require(library: str, does: str) -> None:
    """Raise `MissingLibraryError` unless a library is installed; ``does`` completes "which …".

    >>> require("tensorboard", "writes what TensorBoard shows")
    """
    if find_spec(library) is None:
        raise build(
            MissingLibraryError,
            library,
            f"{library}, which {does}",
            "an environment without it",
            fix=f"install it by pip install 'intently[{EXTRAS[library]}]'",
        )
