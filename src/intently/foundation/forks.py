"""Whether this process was forked since Intently was imported."""

from __future__ import annotations

import os

is_fork = False
"""Whether it was: PyTorch's threads are gone, and OpenMP waits for them forever."""


def _in_child() -> None:
    global is_fork
    is_fork = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
