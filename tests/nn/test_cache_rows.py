"""Windowed caches whose rows have different lengths: each row is what it would be alone."""

from __future__ import annotations

import pytest
import torch

import intently as it
from intently.nn import KeyValueCache, WindowCache

from ..combinations import pairs
from ..tensors import close
from .test_cache_kinds import OPTIONS, H, layer, stepped, x


@torch.no_grad()
@pairs(
    {
        "lengths": [[5, 2, 7], [0, 8, 3], [8, 8, 1], [4, 4, 4]],
        "window, sinks": [(4, 0), (4, 2), (1, 0), (1, 3), (20, 1), (3, 7)],
        "name": OPTIONS,
    }
)
def test_windows_of_rows_of_different_length(
    name: str, window: int, sinks: int, lengths: list[int]
) -> None:
    """Each row is what it would be alone, whatever window each of them has kept."""
    attend, prompts, then = layer(name), x(3, 8), x(3, 9, seed=1)
    near = it.prefix(sinks) | it.window(window - 1, 0)
    for mask in (it.causal(), it.causal() & it.window(2, 0), it.causal() & it.dilated(2)):
        cache, ends = WindowCache(window, sinks), torch.tensor(lengths)
        first = attend(prompts, mask=mask & it.padding(ends), cache=cache)
        cache.crop(ends)
        found = stepped(attend, then, [1, 3, 1, 1, 2, 1], cache, mask)
        for i, n in enumerate(lengths):
            whole = attend(torch.cat([prompts[i, :n], then[i]])[None], mask=mask & near)[0]
            close(first[i, :n], whole[:n])
            close(found[i], whole[n:])
        assert cache.length == max(lengths) + 9
        assert cache.columns(1) <= window + sinks


@torch.no_grad()
def test_ragged_windows_are_reordered_cropped_and_asked() -> None:
    attend, cache = layer("turned"), WindowCache(5, 1)
    prompts, then, index = x(3, 8), x(3, 4, seed=1), torch.tensor([1, 1, 0])
    near = it.causal() & (it.prefix(1) | it.window(4, 0))
    attend(prompts, mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([5, 2, 7]))
    cache.reorder(index)
    attend(then, mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([5, 6, 8]))
    step = then[:, :1]
    A = attend.attend(step, mask=it.causal() & it.window(4, 0), cache=cache)
    assert A.shape == (3, H, 1, 6)
    cache.crop(torch.tensor([5, 6, 8]))
    found = attend(step, mask=it.causal(), cache=cache)
    for i, n, after in ((0, 2, 3), (1, 2, 4), (2, 5, 3)):
        whole = torch.cat([prompts[index[i], :n], then[i, :after], then[i, :1]])[None]
        close(found[i, 0], attend(whole, mask=near)[0, -1])
        row, end = A[i].dense()[:, 0], n + after
        alone = attend.attend(whole, mask=near & it.window(4, 0)).dense()[0, :, -1]
        places = [0, *range(max(1, end - 4), end + 1)]
        close(row[:, : len(places)], alone[:, places])


@torch.no_grad()
@pytest.mark.parametrize(("window", "sinks"), [(3, 7), (3, 1), (20, 0)])
def test_rows_that_have_become_equal(window: int, sinks: int) -> None:
    """The longer rows are dropped, and the shorter ones go on, in a buffer wider than they need."""
    attend, cache, then = layer("turned"), WindowCache(window, sinks), x(2, 12, seed=1)
    near = it.causal() & (it.prefix(sinks) | it.window(window - 1, 0))
    attend(x(3, 8), mask=it.causal(), cache=cache)
    cache.crop(torch.tensor([2, 8, 2]))
    cache.reorder(torch.tensor([0, 2]))
    found = stepped(attend, then, [1] * 12, cache, it.causal())
    for row, old in enumerate([0, 2]):
        whole = torch.cat([x(3, 8)[old, :2], then[row]])[None]
        close(found[row], attend(whole, mask=near)[0, 2:])


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["eager", "tiled"])
def test_ragged_windows_under_every_kernel(kernel: str) -> None:
    """Sums of biases, a mask per row and head, and blocks of the matrix."""
    attend, lengths = layer("additive table"), torch.tensor([5, 2, 7])
    heads = torch.rand(3, H, 1, 17) > 0.3
    heads[..., 0] = True
    mask = it.causal() & it.allowed(heads[..., :8])
    cache, twin = WindowCache(4, 2), KeyValueCache()
    near = it.causal() & (it.prefix(2) | it.window(3, 0))
    attend(x(3, 8), mask=mask, cache=cache)
    attend(x(3, 8), mask=near & it.allowed(heads[..., :8]), cache=twin)
    cache.crop(lengths)
    twin.crop(lengths)
    steps = x(3, 3, seed=1)
    with it.kernels.use(kernel):
        found = attend(steps, mask=it.causal() & it.allowed(heads[..., :10]), cache=cache)
        close(found, attend(steps, mask=near & it.allowed(heads[..., :10]), cache=twin))


def test_gradients_pass_a_ragged_window() -> None:
    attend = layer("table")
    prompts, then = x(2, 6).requires_grad_(), x(2, 2, seed=1)
    cache, lengths = WindowCache(3, 1), torch.tensor([6, 3])
    near = it.causal() & (it.prefix(1) | it.window(2, 0))
    attend(prompts, mask=it.causal(), cache=cache)
    cache.crop(lengths)
    inputs = [prompts, *attend.parameters()]
    y = attend(then, mask=it.causal(), cache=cache)
    found = torch.autograd.grad(y.square().sum(), inputs)
    rows = [
        attend(torch.cat([prompts[i, :n], then[i]])[None], mask=near)[0, n:]
        for i, n in enumerate(lengths.tolist())
    ]
    expected = torch.autograd.grad(torch.stack(rows).square().sum(), inputs)
    close(found, expected)
