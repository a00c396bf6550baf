"""Run work in a forked process, within a limit of time, so that a hang or a crash loses one row."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]


def isolated(work: Callable[[], Row], seconds: float) -> Row:
    """What ``work`` returns from a forked process; ``error`` where it raises, dies or hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(writing, "w") as out:
                out.write(json.dumps(_tried(work)))
        finally:
            os._exit(0)
    os.close(writing)
    text, until = b"", time.perf_counter() + seconds
    while (left := until - time.perf_counter()) > 0 and select.select([reading], [], [], left)[0]:
        piece = os.read(reading, 1 << 16)
        if not piece:
            break
        text += piece
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        return json.loads(text)
    except ValueError:
        why = "the process ended" if left > 0 else f"not done after {seconds:.0f} s"
        return {"error": why}


def _tried(work: Callable[[], Row]) -> Row:
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
