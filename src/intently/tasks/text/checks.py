"""Checks that input is text, with errors that name the position."""

from __future__ import annotations

from collections.abc import Iterable

from intently.errors import ArgumentError, IntentlyError, KindError, build


def strings(sentences: Iterable[str]) -> list[str]:
    """Return the sentences as a list.

    Raises KindError for a single string and for entries that are not strings, ArgumentError for a
    string that is not Unicode text.
    """
    if isinstance(sentences, (str, bytes)):
        fix = "put it in a list: [sentence]"
        raise build(KindError, "sentences", "several strings", "one", fix=fix)
    texts = list(sentences)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or (not text.isascii() and _surrogate(text) is not None):
            raise not_text(f"sentences[{index}]", text)
    return texts


def not_text(name: str, value: object) -> IntentlyError:
    """Return the error that explains why a value is not text."""
    if not isinstance(value, str):
        return build(KindError, name, "a string", type(value).__name__)
    place = _surrogate(value) or 0
    return build(
        ArgumentError,
        name,
        "Unicode text",
        f"the lone surrogate U+{ord(value[place]):04X} at character {place}",
        "the text was decoded with errors='surrogateescape' or cut inside a UTF-16 pair",
    )


def _surrogate(text: str) -> int | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None
