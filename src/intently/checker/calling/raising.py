"""What a call raised, in one line."""

from __future__ import annotations

import re

MOST = 100
"""Characters of a message that are told."""


def raised(error: BaseException) -> str:
    """Return the type of an error and the first sentence of its message, cut if it is long.

    >>> raised(TypeError("No class 'A'. Make sure that it is registered."))
    "TypeError: No class 'A'."
    """
    said = re.split(r"(?<=[.!?])\s", " ".join(str(error).partition("\n")[0].split()), maxsplit=1)[0]
    said = said if len(said) <= MOST else f"{said[: MOST - 1]}…"
    return f"{type(error).__name__}: {said}".removesuffix(": ")
