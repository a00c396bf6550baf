"""What pytest does not collect here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import intently as it
from intently.core.scores import Cosine
from intently.observe.saving import files
from intently.observe.storage.stores import Held
from intently.observe.watching import doors
from intently.observe.watching.call import AttentionSpec
from intently.observe.watching.scope import current

from .attending import PLAIN
from .saved import LENGTHS, S, T, entry, recording

collect_ignore = ["keras_cases.py"]
"""`interop/test_keras.py` runs it in a process of its own."""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A recording with something of everything."""
    mask = it.causal() & it.padding(LENGTHS) & ~it.allowed(torch.rand(T, S) > 0.9)
    bias = it.alibi() + torch.randn(T, S)
    how = AttentionSpec(
        mask=mask, bias=bias, scale=torch.ones(4, 1, 1), sinks=torch.zeros(4), softcap=30.0
    )
    one, other = (
        entry(how=how),
        entry("layers.1.attention", 0, AttentionSpec(score=Cosine(), scale=2.0)),
    )
    one.values, one.gradient = Held(torch.randn(2, 4, S, 3)), Held(torch.randn(2, 4, T, 3))
    made = recording(one, other, entry("layers.1.attention", 1))
    made.covered.unseen["layers.2"] = "it did not run"
    return files.save(made, tmp_path / "run.safetensors")


@pytest.fixture
def undone() -> Iterator[None]:
    yield
    assert doors.active() == 0
    now = F.scaled_dot_product_attention, nn.Module.__call__, nn.Module._call_impl
    assert now == PLAIN
    assert current() == ()
