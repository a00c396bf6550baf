"""The small run that these tests share, importable in every import mode."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """The model and the history of the small run, which nothing interrupted."""
    import tiny_run as tiny

    return tiny.run(tmp_path_factory.mktemp("unbroken"))
