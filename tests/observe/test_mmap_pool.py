"""Memory of copies: its pages, who gets them next, and rows that grow."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from intently.observe.storage import stores
from intently.observe.storage.stores import LARGE, Growing, Held, Store, packed


def test_large_copies_have_pages_of_their_own_and_the_order_of_the_original() -> None:
    x = torch.randn(1, 4096, 3, 4, 64)[:, :, 0].transpose(1, 2)
    own = packed(x)
    assert torch.equal(own, x) and own.stride() == (4096 * 256, 64, 256, 1)
    assert own.untyped_storage().nbytes() == x.numel() * 4 >= LARGE
    own.zero_()
    assert x.any()


def test_pages_of_a_recording_that_is_gone_serve_the_next() -> None:
    x = torch.randn(LARGE // 4)
    first = packed(x)
    part, place = first[5:], first.data_ptr()
    del first
    assert packed(x + 1).data_ptr() != place and torch.equal(part, x[5:])
    del part
    assert packed(x).data_ptr() == place


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pages that are left, none at first, and at most three large areas."""
    areas: list[Any] = []
    monkeypatch.setattr(stores, "_left", areas)
    monkeypatch.setattr(stores, "LEFT", 3 * LARGE)
    return areas


def test_pages_that_are_left_have_a_limit(left: list[Any]) -> None:
    held = [packed(torch.randn(LARGE // 4)) for _ in range(5)]
    held.clear()
    assert sum(map(len, left)) == 3 * LARGE


def test_rows_that_grow_follow_their_parents_and_leave_what_was_read() -> None:
    steps = [torch.randn(3, 2, n, 4) for n in (1, 2, 70, 1, 90)]
    rows, expected = Growing(Held(steps[0]), Store("copy", None, 0)), steps[0]
    for n, step in enumerate(steps[1:]):
        parents = torch.tensor([[2, 0, 0], [0, 1, 2]][n % 2])
        rows.append(step, parents)
        expected = torch.cat([expected[parents], step], -2)
        assert torch.equal(rows.get(), expected) and rows.shape == tuple(expected.shape)
    fewer = torch.randn(2, 2, 1, 4)
    rows.append(fewer, torch.tensor([1, 1]))
    assert torch.equal(rows.get(), torch.cat([expected[[1, 1]], fewer], -2))
    assert torch.equal(rows.cropped(3).get(), expected[[1, 1]][..., :-2, :])


def test_sizes_that_never_come_again_make_room(left: list[Any]) -> None:
    for large in (3 * LARGE, LARGE, LARGE, LARGE // 2 * 3):
        packed(torch.zeros(large // 4))
    assert {len(area) for area in left} == {LARGE, LARGE // 2 * 3}
    packed(torch.zeros(LARGE))  # more than is kept at all
    assert 4 * LARGE not in map(len, left)


def test_pages_that_go_while_others_are_looked_for_are_taken_once(left: list[Any]) -> None:
    """A finaliser runs at any time, and evicts what `_empty` has in hand."""

    class Evicting(list[Any]):
        def remove(self, area: Any) -> None:
            self.clear()
            super().remove(area)

    packed(torch.randn(LARGE // 4))
    (old,) = left
    stores._left = Evicting(left)
    first, second = packed(torch.randn(LARGE // 4)), packed(torch.randn(LARGE // 4))
    assert first.data_ptr() != second.data_ptr() and len(old) == LARGE
