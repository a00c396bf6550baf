"""Fixed, windowed and ragged caches: each step is the row of the whole pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intently as it
from intently.core.positions import DynamicNTK
from intently.nn import (
    AttentionOptions,
    FixedCache,
    KeyValueCache,
    MultiHeadAttention,
    RelativeBias,
    WindowCache,
)

from ..combinations import pairs
from ..core.formula import random
from ..tensors import close, drawn

C, H, T, D = 12, 3, 13, 4
OPTIONS: dict[str, Callable[[], AttentionOptions]] = {
    "plain": AttentionOptions,
    "turned": lambda: AttentionOptions(positions=it.Rotary(D)),
    "normed, capped": lambda: AttentionOptions(
        positions=it.Rotary(D, layout="interleaved"), qk_norm=nn.RMSNorm, softcap=2.0
    ),
    "alibi": lambda: AttentionOptions(bias=it.alibi(H)),
    "table": lambda: AttentionOptions(bias=RelativeBias(H, buckets=8, max_distance=5)),
    "additive table": lambda: AttentionOptions(bias=it.alibi(H) + it.relative_buckets(table())),
}
LAYER_MASKS = {
    "none": None,
    "causal": it.causal(),
    "dilated": it.dilated(2),
    "~window": ~it.window(1, 0),
    "prefix": it.prefix(5),
}
CHUNKS = [[1] * T, [4, *[1] * 9], [3, 5, 5], [T], [2, 1, 6, 1, 3], [11, 2]]


def table() -> Tensor:
    return torch.linspace(-1, 1, 32 * H).view(32, H).double()


def x(b: int = 2, t: int = T, seed: int = 0) -> Tensor:
    return random(b, t, C, seed=seed)


def room(cache: Any) -> int:
    """The steps for which a cache holds memory."""
    return max(x.shape[-2] for x in vars(cache).values() if isinstance(x, Tensor) and x.ndim == 4)


def layer(name: str = "plain", **options: Any) -> MultiHeadAttention:
    return drawn(MultiHeadAttention(C, H, attention=OPTIONS[name](), **options), 0.5)


def stepped(
    attend: MultiHeadAttention, steps: Tensor, chunks: list[int], cache: Any, mask: Any
) -> Tensor:
    parts = steps.split(chunks, 1)
    return torch.cat([attend(part, mask=mask, cache=cache) for part in parts], 1)


@torch.no_grad()
@pairs({"chunks": CHUNKS, "name": OPTIONS, "shape": [{}, {"kv_heads": 1}, {"head_widths": (D, 2)}]})
def test_growing_and_of_fixed_size(name: str, chunks: list[int], shape: dict[str, Any]) -> None:
    attend = layer(name, **shape)
    whole = attend(x(), mask=it.causal())
    fixed = KeyValueCache(T)
    for cache in (KeyValueCache(), fixed):
        close(stepped(attend, x(), chunks, cache, it.causal()), whole)
        assert cache.length == T
    assert room(fixed) == T
    cache = KeyValueCache()
    matrices = [
        it.Dense(attend.attend(part, mask=it.causal(), cache=cache).dense())
        for part in x().split(chunks, 1)
    ]
    close(it.stack_rows(matrices).dense(), attend.attend(x(), mask=it.causal()).dense())


@torch.no_grad()
@pairs(
    {"chunks": CHUNKS, "name": OPTIONS, "window, sinks": [(4, 0), (4, 2), (1, 0), (1, 3), (20, 1)]}
)
def test_a_window_is_the_whole_under_its_mask(
    name: str, chunks: list[int], window: int, sinks: int
) -> None:
    attend = layer(name)
    near = it.prefix(sinks) | it.window(window - 1, 0)
    masks: list[it.Mask] = [
        it.causal(),
        it.causal() & it.padding(torch.tensor([2, T])),
        it.causal() & it.window(2, 0),
        it.causal() & it.dilated(2),
    ]
    for mask in masks:
        cache = WindowCache(window, sinks)
        found = stepped(attend, x(), chunks, cache, mask)
        close(found, attend(x(), mask=mask & near))
        assert cache.length == T
        attend(x(t=1), mask=mask, cache=cache)
        assert room(cache) <= max(2 * (window + sinks + max(chunks)), T + 1)


@torch.no_grad()
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    chunks=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    window=st.integers(1, 8),
    sinks=st.integers(0, 4),
    name=st.sampled_from(["plain", "turned", "table"]),
    masked=st.sampled_from(sorted(LAYER_MASKS)),
    ragged=st.booleans(),
)
def test_a_window_however_the_steps_are_cut(
    chunks: list[int], window: int, sinks: int, name: str, masked: str, ragged: bool
) -> None:
    """Without a causal mask of the layer too, and for rows of different length."""
    torch.manual_seed(0)
    attend, mask, t = layer(name), LAYER_MASKS[masked], sum(chunks)
    near = it.causal() & (it.prefix(sinks) | it.window(window - 1, 0))
    whole = near if mask is None else mask & near
    cache, steps = WindowCache(window, sinks), x(2, t + 3)
    found = stepped(attend, steps[:, :t], chunks, cache, mask)
    close(found, attend(steps[:, :t], mask=whole))
    if ragged:  # one row forgets its last step
        least = t - 1 if t <= window + sinks else t
        cache.crop(torch.tensor([least, t]))
        rest = stepped(attend, steps[:, t:], [2, 1], cache, mask)
        for row, first in ((0, least), (1, t)):
            text = torch.cat([steps[row : row + 1, :first], steps[row : row + 1, t:]], 1)
            close(rest[row : row + 1], attend(text, mask=whole)[:, first:])


@torch.no_grad()
@pytest.mark.parametrize("make", [KeyValueCache, lambda: KeyValueCache(40), lambda: WindowCache(4)])
def test_every_cache_is_reordered(make: Callable[[], Any]) -> None:
    attend, steps, cache, twin = layer("turned"), x(3), make(), make()
    index = torch.tensor([2, 0, 2])
    stepped(attend, steps[:, :8], [8], cache, it.causal())
    stepped(attend, steps[index][:, :8], [3, 5], twin, it.causal())
    cache.reorder(index)
    rest = steps[index][:, 8:]
    ones = [1] * (T - 8)
    close(
        stepped(attend, rest, ones, cache, it.causal()),
        stepped(attend, rest, ones, twin, it.causal()),
    )


@torch.no_grad()
@pairs(
    {
        "size": [None, 30],
        "mask": [it.causal(), it.causal() & it.window(3, 0), None],
        "name": OPTIONS,
    }
)
def test_rows_of_different_length(name: str, mask: it.Mask | None, size: int | None) -> None:
    """Prompts of 5, 2 and 7 tokens, padded to 8, go on by 1, 3 and 2 tokens, in one batch."""
    attend, lengths = layer(name), torch.tensor([5, 2, 7])
    prompts, then = x(3, 8), x(3, 6, seed=1)
    cache = KeyValueCache(size)
    prompt_mask = it.padding(lengths) if mask is None else mask & it.padding(lengths)
    first = attend(prompts, mask=prompt_mask, cache=cache)
    cache.crop(lengths)
    found = [attend(part, mask=mask, cache=cache) for part in then.split([1, 3, 2], 1)]
    assert cache.length == 13 and cache.lengths is not None
    assert cache.lengths.tolist() == [11, 8, 13]
    for i, n in enumerate(lengths.tolist()):
        alone = KeyValueCache()
        close(first[i, :n], attend(prompts[i : i + 1, :n], mask=mask, cache=alone)[0])
        for part, expected in zip(found, then[i : i + 1].split([1, 3, 2], 1)):
            close(part[i], attend(expected, mask=mask, cache=alone)[0])


@torch.no_grad()
def test_ragged_rows_are_reordered_and_cropped() -> None:
    attend, cache = layer("turned"), KeyValueCache()
    prompts, index = x(3, 8), torch.tensor([1, 1, 0])
    attend(prompts, mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([5, 2, 7]))
    cache.reorder(index)
    then = x(3, 4, seed=1)
    attend(then, mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([3, 2, 6]))
    found = attend(then[:, :1], mask=it.causal(), cache=cache)
    for i, n, after in ((0, 2, 1), (1, 2, 0), (2, 5, 1)):
        whole = torch.cat([prompts[index[i], :n], then[i, :after], then[i, :1]])[None]
        close(found[i, 0], attend(whole, mask=it.causal())[0, -1])


@torch.no_grad()
@pytest.mark.parametrize("make", [KeyValueCache, lambda: WindowCache(20, 1)])
def test_what_lies_beyond_a_row_never_matters(make: Callable[[], Any]) -> None:
    attend, cache = layer(), make()
    prompts = x(2, 8)
    prompts[0, 3:] = torch.nan
    attend(prompts, mask=it.causal() & it.padding(torch.tensor([3, 8])), cache=cache)
    cache.crop(torch.tensor([3, 8]))
    found = attend(x(2, 1, 1), mask=it.causal(), cache=cache)
    whole = torch.cat([prompts[:1, :3], x(2, 1, 1)[:1]], 1)
    close(found[:1], attend(whole, mask=it.causal())[:, -1:])


@torch.no_grad()
def test_steps_taken_back() -> None:
    attend, cache, steps = layer("alibi"), KeyValueCache(), x()
    attend(steps, mask=it.causal(), cache=cache)
    A = attend.attend(steps[:, :2], mask=it.causal(), cache=cache)
    before = A.dense()
    cache.crop(6)
    assert cache.lengths is None and cache.length == 6
    found = attend(steps[:, 6:9], mask=it.causal(), cache=cache)
    close(found, attend(steps[:, :9], mask=it.causal())[:, 6:])
    assert torch.equal(A.dense(), before)
    cache.crop(0)
    close(attend(steps, mask=it.causal(), cache=cache), attend(steps, mask=it.causal()))


@torch.no_grad()
@pytest.mark.parametrize("make", [KeyValueCache, lambda: WindowCache(4, 2)])
def test_angles_that_hang_on_the_length(make: Callable[[], Any]) -> None:
    """Each step is the last row of the pass over the text so far."""
    rotary = it.Rotary(D, scaling=DynamicNTK(4.0, 5))
    attend = MultiHeadAttention(C, H, attention=AttentionOptions(positions=rotary)).double()
    cache = make()
    near = it.prefix(2) | it.window(3, 0) if isinstance(cache, WindowCache) else it.causal()
    for i in range(T):
        found = attend(x()[:, i : i + 1], mask=it.causal(), cache=cache)
        close(found, attend(x()[:, : i + 1], mask=it.causal() & near)[:, -1:])


@torch.no_grad()
def test_the_layers_own_mask_and_queries_that_are_kept() -> None:
    attend = MultiHeadAttention(C, H, attention=AttentionOptions(mask=it.causal())).double()
    cache = WindowCache(4, 1, keep_queries=True)
    found = torch.cat([attend(part, cache=cache) for part in x().split(3, 1)], 1)
    close(found, attend(x(), mask=it.prefix(1) | it.window(3, 0)))
    assert [tuple(q.shape) for q, _ in cache.history] == [(2, H, n, D) for n in (3, 3, 3, 3, 1)]


def test_masks_are_drawn_over_the_kept_keys() -> None:
    cache = WindowCache(3, 1)
    cache.append(torch.zeros(1, 1, 8, 2), torch.zeros(1, 1, 8, 2))
    mask = cache.mask(it.causal(), 2)
    assert mask is not None
    assert repr(mask) == "(window(2, 0) | (causal() & prefix(1))) without keys 1 … 5"
    assert mask.draw(2, 5) == "█ █ █ █ ·\n█ · █ █ █"
    assert cache.mask(it.causal(), 1) is None
    bias = cache.bias(it.alibi(2), 2)
    assert repr(bias) == "(alibi(2)) without keys 1 … 5"


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
