"""Builds all error messages: which argument, what was expected, what was given, what to do.

>>> raise build(ArgumentError, "heads", "a divisor of width=128", 5, fix="use 4 or 8")
Traceback (most recent call last):
...
intently.errors.ArgumentError: heads: expected a divisor of width=128; got 5. Use 4 or 8.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar


class IntentlyError(Exception):
    """The base of all errors that Intently raises; ``status`` is the exit code of a command."""

    status: ClassVar[int] = 2


class ArgumentError(IntentlyError, ValueError):
    """An argument has the wrong value or shape."""


class RangeError(IntentlyError, IndexError):
    """A position lies outside its axis."""


class KindError(IntentlyError, TypeError):
    """An argument has the wrong type, dtype or device."""


class AbsentError(IntentlyError, AttributeError):
    """A lazy matrix does not know what was asked for."""


class StaleError(IntentlyError, RuntimeError):
    """A lazy matrix was read after its tensors had been changed in place."""


class MissingLibraryError(IntentlyError, ImportError):
    """A required optional library is not installed."""


class MemoryRefused(IntentlyError, MemoryError):  # noqa: N818 - it is a refusal
    """A dense matrix would need more memory than the caller allowed."""


class KernelError(IntentlyError, RuntimeError):
    """The requested kernel does not support this call."""


class UnverifiedError(IntentlyError, RuntimeError):
    """Recorded weights do not reproduce the model's output."""


class DataError(IntentlyError, ValueError):
    """A user's file has content that cannot be used."""


class CheckpointError(IntentlyError, RuntimeError):
    """A saved model or run is damaged, foreign or too new."""


class WriteError(IntentlyError, OSError):
    """A file could not be written: the disk is full, or the system does not allow it."""


E = TypeVar("E", bound=IntentlyError)

SHOWN = 2_000
"""Characters of what came that a message shows."""


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def build(
    kind: type[E],
    argument: str,
    expected: str,
    got: object,
    cause: str | None = None,
    fix: str | None = None,
) -> E:
    """Return (not raise) the error ``kind`` with the message every part of Intently uses.

    ``argument`` names what was wrong, ``expected`` and ``got`` say what was expected and what was
    given, ``cause`` the likely reason and ``fix`` what to do.
    """
    value = str(got)
    value = value if len(value) <= SHOWN else f"{value[:SHOWN]}…"
    parts = [f"{argument}: expected {expected}; got {value}."]
    parts += [_sentence(text) for text in (cause, fix) if text]
    return kind(" ".join(parts))


def one_line(error: E) -> E:
    r"""Return the error with its message as one line of printable text, safe for a terminal.

    >>> str(one_line(DataError("got 'a\x1b[2J\n'")))
    "got 'a\\x1b[2J\\n'"
    """
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(error))
    return type(error)(message)


def lacks_memory(error: BaseException) -> bool:
    """Whether an error says that memory is full: Python's, PyTorch's or CUDA's."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    signs = ("allocate memory", "out of memory", "bad_alloc")
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def shape_of(tensor: object) -> str:
    """Return the shape of a tensor as messages write it: ``shape (2, 3, 4)``."""
    return f"shape {tuple(getattr(tensor, 'shape', ()))}"
