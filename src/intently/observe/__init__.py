"""Watching: what any model attends, kept while it runs, read as lazy matrices."""

from typing import Any

from intently.observe.recording import Recording
from intently.observe.watch import watch

__all__ = ["Recording", "load_recording", "watch"]


def load_recording(path: Any) -> Recording:
    """Open a recording that `Recording.save` wrote; nothing is read until asked for."""
    from intently.observe import files

    return files.load(path)
