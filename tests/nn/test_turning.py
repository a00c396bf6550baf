"""The shared table of rotary angles while another thread makes it longer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor

from intently.core.positions import Rotary
from intently.nn.projected_attention import AngleTable


class Interrupted(AngleTable):
    """Whenever an attribute was read or written, another thread has its turn."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        other_thread()
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        other_thread()


work: Callable[[], None] | None = None


def other_thread() -> None:
    """Do the other thread's work, once; it is not interrupted itself."""
    global work
    if (now := work) is not None:
        work = None
        now()
        work = now


def table(kind: type[AngleTable] = AngleTable) -> AngleTable:
    return kind(Rotary(4), torch.float32, torch.device("cpu"))


def whole(found: tuple[Tensor, Tensor], end: int) -> None:
    """The pair holds the same positions, those asked for among them, as if alone."""
    cos, sin = found
    assert len(cos) == len(sin) >= end
    for one, other in zip(found, table().upto(end)):
        torch.testing.assert_close(one[:end], other[:end])


def test_a_reader_never_sees_half_of_a_longer_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = table(Interrupted)
    monkeypatch.setitem(globals(), "work", lambda: whole(shared.upto(300), 300))
    whole(shared.upto(700), 700)


def test_a_longer_table_never_comes_between_cosines_and_sines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared, ends = table(Interrupted), count(300, 300)
    monkeypatch.setitem(globals(), "work", lambda: shared.upto(next(ends)))
    whole(shared.upto(10), 10)
    whole(shared.upto(2000), 2000)
