"""Watching: what any model attends, kept while it runs, read as lazy matrices."""

from typing import Any

from intently.foundation.on_demand import listed
from intently.observe.edits.editor import edit
from intently.observe.measuring.effects import effects, path_effects
from intently.observe.measuring.heads import heads
from intently.observe.recording.recording import Recording
from intently.observe.watching.watch import watch

__all__ = ["Recording", "edit", "effects", "heads", "load_recording", "path_effects", "watch"]

__dir__ = listed(__name__)


def load_recording(path: Any, *, whole: bool = False) -> Recording:
    """Open a recording that `Recording.save` wrote; nothing is read until asked for.

    With ``whole`` all of it is read once, and compared with the checksums in it.
    """
    from intently.observe.saving import files

    return files.load(path, whole=whole)
