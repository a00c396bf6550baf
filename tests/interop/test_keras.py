"""The Keras layer and `load`, on the torch and the JAX backend, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = [str(HERE / f"keras_{name}_cases.py") for name in ("layer", "loading")]


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_every_case(backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", *CASES],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
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
