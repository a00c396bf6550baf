"""The matrices of these tests are tiny: one thread is faster than two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

collect_ignore = ["keras_cases.py"]
"""`test_keras` runs it in a process of its own."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
