"""With a cache, steps taken one by one are the steps of the whole pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError
from intently.modules import KeyValueCache, MultiHeadAttention
from intently.modules.caches.key_value import FixedCache

from ..messages import refused

C, H, T = 12, 3, 11
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"kv_heads": 1},
    "e ≠ d": {"head_widths": (4, 2)},
}
CHUNKS = [[1] * T, [4, *[1] * 7], [3, 5, 3], [T], [1, 10], [9, 1, 1]]


def x(b: int = 2, t: int = T, seed: int = 0) -> Tensor:
    return torch.tensor(np.random.default_rng([seed, b, t]).normal(size=(b, t, C)))


def layer(kind: str = "plain") -> MultiHeadAttention:
    return MultiHeadAttention(C, H, **KINDS[kind]).double().eval()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_the_whole(kind: str, chunks: list[int]) -> None:
    attend, steps, cache = layer(kind), x(), KeyValueCache()
    whole, matrix = attend(steps, mask=it.causal()), attend.attend(steps, mask=it.causal())
    parts, first = [], 0
    for n in chunks:
        chunk = steps[:, first : first + n]
        parts.append(attend(chunk, mask=it.causal(), cache=cache))
        first += n
        assert cache.length == first
    close(torch.cat(parts, 1), whole)
    again, rows, first = KeyValueCache(), [], 0
    for n in chunks:
        A = attend.attend(steps[:, first : first + n], mask=it.causal(), cache=again)
        rows.append(torch.nn.functional.pad(A.dense(), (0, T - A.shape[-1])))
        first += n
    close(torch.cat(rows, 2), matrix.dense())


@torch.no_grad()
def test_rows_can_be_reordered_dropped_and_repeated() -> None:
    attend, a, cache = layer(), x(b=3), KeyValueCache()
    index = torch.tensor([2, 0, 2, 1])
    attend(a[:, :6], mask=it.causal(), cache=cache)
    cache.reorder(index)
    b = a[index]
    found = [attend(b[:, i : i + 1], mask=it.causal(), cache=cache) for i in range(6, T)]
    close(torch.cat(found, 1), attend(b, mask=it.causal())[:, 6:])


@torch.no_grad()
def test_the_first_keys_are_not_written_over() -> None:
    attend, cache = layer(), KeyValueCache()
    steps = x()
    k, v = (torch.randn(2, H, 3, 4, dtype=torch.float64) for _ in range(2))
    before = k.clone(), v.clone()
    cache.append(k, v)
    for i in range(4):
        attend(steps[:, i : i + 1], cache=cache)
    assert torch.equal(k, before[0]) and torch.equal(v, before[1])


@torch.no_grad()
def test_a_context_is_projected_once() -> None:
    attend, context, fixed = layer(), x(t=7, seed=1), FixedCache()
    mask = it.padding(torch.tensor([4, 7]))
    expected = attend(x(), context, mask=mask)
    found = [attend(x()[:, i : i + 1], context, mask=mask, cache=fixed) for i in range(T)]
    close(torch.cat(found, 1), expected)
    assert fixed.kv is not None and fixed.kv[0].shape == (2, H, 7, C // H)
    kept = fixed.kv
    attend(x(), cache=fixed)
    assert fixed.kv is kept
    fixed.reorder(torch.tensor([1, 1, 0]))
    close(
        attend(
            x()[[1, 1, 0]],
            context[[1, 1, 0]],
            mask=it.padding(torch.tensor([7, 7, 4])),
            cache=fixed,
        ),
        expected[[1, 1, 0]],
    )


@torch.no_grad()
@pytest.mark.parametrize("kind", ["growing", "fixed"])
def test_queries_are_kept_on_request(kind: str) -> None:
    attend, context = layer(), x(t=7, seed=1)
    cache = KeyValueCache(keep_queries=True) if kind == "growing" else FixedCache(keep_queries=True)
    given = None if kind == "growing" else context
    matrices = [attend.attend(x()[:, i : i + 1], given, cache=cache) for i in range(3)]
    assert len(cache.history) == 3
    for entry, A in zip(cache.history, matrices):
        q = entry[0] if isinstance(entry, tuple) else entry
        assert torch.equal(q, A.q) and q.shape == (2, H, 1, C // H)


@pytest.mark.usefixtures("as_users_call")
class TestBadInputLosesNothing:
    @torch.no_grad()
    def test_a_call_that_raises_leaves_the_cache_as_it_was(self) -> None:
        attend, cache = layer(), KeyValueCache(keep_queries=True)
        steps = x()
        attend(steps[:, :4], mask=it.causal(), cache=cache)
        bad = [
            {"mask": torch.ones(3, 3) > 0},
            {"mask": it.padding(torch.tensor([1, 2, 3]))},
            {"mask": "causal"},
            {"context": steps},
        ]
        for options in bad:
            with pytest.raises(it.errors.IntentlyError):
                attend(steps[:, 4:5], cache=cache, **options)
            assert cache.length == 4 and len(cache.history) == 1
        with pytest.raises(ArgumentError):
            attend(steps[:1, 4:5], cache=cache)
        assert cache.length == 4
        found = attend(steps[:, 4:5], mask=it.causal(), cache=cache)
        close(found, attend(steps[:, :5], mask=it.causal())[:, 4:])

    @torch.no_grad()
    def test_another_batch(self) -> None:
        attend, cache = layer(), KeyValueCache()
        attend(x(), cache=cache)
        refused(
            lambda: attend(x(b=3), cache=cache),
            ArgumentError,
            "k: expected keys (b, g, n, d) that continue (2, 3, 11, 4); got shape (3, 3, 11, 4). "
            "The cache belongs to another batch or module. Make a new cache, or reorder(…) it to "
            "the rows you continue.",
            whole=True,
        )
