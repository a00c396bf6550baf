"""Keras layers on the torch backend, which is chosen when Keras is imported: in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("keras_cases.py")


def test_every_case() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", str(CASES)],
        capture_output=True,
        text=True,
        cwd=CASES.parents[2],
        env=os.environ | {"KERAS_BACKEND": "torch"},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
