"""Keras layers, `load` and `watch`: each backend is chosen at import, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
BOTH = ["interop/keras_layer_cases.py", "interop/keras_loading_cases.py"]
CASES = {"torch": [*BOTH, "observe/keras_cases.py", "observe/editing/keras_cases.py"], "jax": BOTH}


@pytest.mark.parametrize("backend", CASES)
def test_every_case(backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", *CASES[backend]],
        capture_output=True,
        text=True,
        cwd=TESTS,
        env=os.environ | {"KERAS_BACKEND": backend, "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_importing_the_module_loads_no_keras() -> None:
    code = (
        "import sys, intently.interop.keras as k\n"
        "assert 'keras' not in sys.modules and 'jax' not in sys.modules\n"
        "try:\n    k.Other\nexcept AttributeError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "module 'intently.interop.keras' has no attribute 'Other'"
