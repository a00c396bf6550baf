"""A head at any zoom gives what the lazy matrix gives, before its pass, in between and after."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently.attention_matrix import Attention
from intently.show.page.serving import zooming
from intently.show.page.serving.zooming import ZoomedHead
from intently.show.reading import edges

from .pages import made

T, S, D = 700, 900, 16


def matrices() -> dict[str, Attention]:
    q, k = made(T, D), made(S, D, seed=1)
    heads = made(3, T, D, seed=2), made(3, S, D, seed=3)
    padded = k.clone()
    padded[800:] = float("nan")
    allow = made(T, S, seed=4) > 0.3
    allow[10:20] = False
    bias = made(T, S, seed=5)
    bias[:, 5] = -torch.inf
    plain = torch.zeros(())
    return {
        "plain": it.attend(q, k),
        "causal": it.attend(q, k, mask=it.causal()),
        "window": it.attend(q, k, mask=it.causal() & it.window(100, 0)),
        "padding": it.attend(q, padded, mask=it.padding(torch.tensor(800))),
        "tensor": it.attend(q, k, mask=allow),
        "bias": it.attend(q, k, bias=bias, softcap=5.0),
        "alibi": it.attend(*heads, bias=it.alibi(3), mask=it.causal())[1],
        "sink": it.attend(q, k, sinks=plain + 2.0, mask=it.causal() & it.window(50, 0)),
        "joined": it.attend(q, k, mask=(~it.window(9, 3) | it.prefix(4)) & it.causal(offset=60)),
        "cosine": it.attend(q, k, score=it.scores.Cosine(), scale=5.0),
        "double": it.attend(q.double(), k.double()),
        "half": it.attend(q.bfloat16(), k.bfloat16(), mask=it.causal()),
        "mean": it.attend(*heads, mask=it.causal(), sinks=torch.tensor([0.0, 1.0, 5.0])),
    }


def dense(matrix: Attention) -> Tensor:
    w = matrix.tile().float()
    return w.mean(0) if w.ndim == 3 else w


REDUCED: dict[zooming.How, Callable[[Tensor], Tensor]] = {"mean": Tensor.mean, "max": Tensor.amax}


def cells(
    w: Tensor, r0: int, r1: int, c0: int, c1: int, h: int, n: int, how: zooming.How = "mean"
) -> Tensor:
    """Return the mean or the largest weight of every cell, computed one by one."""
    down, across = edges(r0, r1, h).tolist(), edges(c0, c1, n).tolist()
    reduced = [[REDUCED[how](w[a:b, c:d]) for c, d in pairwise(across)] for a, b in pairwise(down)]
    return torch.stack([torch.stack(row) for row in reduced])


def passed(head: ZoomedHead, steps: int | None = None) -> None:
    """Make the pass over a head, or its first steps."""
    for _ in islice(head.steps(), steps):
        pass


WINDOWS = [
    (0, T, 0, S, 50, 40),
    (3, 690, 7, 850, 31, 33),
    (200, 208, 300, 309, 8, 9),
    (699, 700, 0, S, 1, 20),
    (0, 130, 400, 900, 13, 50),
]


@pytest.mark.parametrize("name", matrices())
@pytest.mark.parametrize("part", [0, 1, 3, 10_000])
def test_numbers_before_and_after_the_pass(name: str, part: int) -> None:
    matrix = matrices()[name]
    head, w = ZoomedHead(matrix), dense(matrix)
    passed(head, part)
    assert head.settled == (part > 10)
    torch.testing.assert_close(head.tile(13, 14, 0, head.s)[0], w[13], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(
        head.tile(0, head.t, 300, 301)[:, 0], w[:, 300], atol=2e-6, rtol=1e-5
    )
    torch.testing.assert_close(head.tile(100, 400, 0, 70), w[100:400, :70], atol=2e-6, rtol=1e-5)
    for window, how in product(WINDOWS, REDUCED):
        found = head.pooled(*window, how)
        assert found.nearness == ""
        torch.testing.assert_close(found.picture, cells(w, *window, how), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("name", matrices())
def test_what_one_pass_leaves_behind(name: str) -> None:
    matrix = matrices()[name]
    head, w = ZoomedHead(matrix), dense(matrix).double()
    passed(head)
    entropy = torch.special.entr(w).sum(-1).float()
    torch.testing.assert_close(head.kept.entropy, entropy, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(head.kept.received, w.sum(0), atol=2e-5, rtol=1e-5)
    lse = matrix.lse.reshape(head.n, T).to(head.kept.lse.dtype)
    torch.testing.assert_close(head.kept.lse, lse, atol=1e-5, rtol=1e-5)


NEAR = (
    "takes blocks of 8 × 8 weights by their share",
    "takes the largest weight of whole blocks of 8 × 8",
)


@pytest.mark.parametrize("strip", [zooming.STRIP, 4])
@pytest.mark.parametrize("name", ["causal", "window", "tensor", "padding", "mean", "sink"])
def test_long_heads_are_pooled_from_sums(
    name: str, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a strip of fewer rows than a cell: above 524,288 tokens
    for limit, n in {"STRIP": strip, "FINEST": 128, "QUICK": 100, "NORMALIZED": 100}.items():
        monkeypatch.setattr(zooming, limit, n)
    matrix = matrices()[name]
    head, w = ZoomedHead(matrix), dense(matrix)
    assert head.side == 8
    passed(head)
    for window, exact in [
        ((0, T, 0, S, 25, 30), False),
        ((0, 640, 0, 896, 20, 28), True),
        ((64, 640, 8, 808, 36, 50), True),
        ((640, T, 896, S, 4, 4), False),
    ]:
        found, peaks = head.pooled(*window), head.pooled(*window, how="max")
        high = cells(w, *window, "max")
        assert (found.nearness, peaks.nearness) == (("", "") if exact else NEAR)
        assert bool((peaks.picture >= high - 1e-6).all())
        if exact:
            torch.testing.assert_close(found.picture, cells(w, *window), atol=1e-6, rtol=1e-4)
            torch.testing.assert_close(peaks.picture, high, atol=1e-6, rtol=1e-5)
    odd = head.pooled(5, 695, 3, 897, 23, 23).picture
    whole = w[5:695, 3:897].sum()
    sizes = torch.tensor(np.outer(np.diff(edges(5, 695, 23)), np.diff(edges(3, 897, 23))))
    assert float((odd * sizes).sum() / whole) == pytest.approx(1, abs=0.01)
    torch.testing.assert_close(odd, cells(w, 5, 695, 3, 897, 23, 23), atol=2e-4, rtol=0.5)


def test_before_the_pass_long_heads_are_drawn_from_some_queries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zooming, "NORMALIZED", 35 * S)
    matrix = matrices()["causal"]
    head, w = ZoomedHead(matrix), dense(matrix)
    found = head.pooled(0, T, 0, S, 35, 18)
    assert found.nearness == "shows one query in 20 until all are read"
    right = w[9::20].unflatten(1, (18, 50)).mean(-1)
    torch.testing.assert_close(found.picture, right, atol=1e-6, rtol=1e-5)
    finer = head.pooled(0, T, 0, S, 70, 18).picture
    torch.testing.assert_close(finer, right.repeat_interleave(2, 0), atol=1e-6, rtol=1e-5)
    alone = head.pooled(0, T, 0, S, 35, 18, at_once=7)
    assert alone.nearness == "shows one query in 140 until all are read"


@pytest.mark.parametrize("name", ["causal", "mean", "sink"])
def test_after_the_pass_every_picture_is_of_all_queries(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zooming, "QUICK", T * S // 2)  # a head of middle length: cells of 1 × 1
    monkeypatch.setattr(zooming, "NORMALIZED", 35 * S)
    matrix = matrices()[name]
    head, w = ZoomedHead(matrix), dense(matrix)
    assert head.side == 1
    for how in REDUCED:
        assert head.pooled(0, T, 0, S, 35, 18, how).nearness.endswith("until all are read")
    passed(head)
    for window, how in product(WINDOWS, REDUCED):
        found = head.pooled(*window, how)
        assert found.nearness == ""
        torch.testing.assert_close(found.picture, cells(w, *window, how), atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize(
    "name", ["causal", "window", "padding", "joined", "mean", "sink", "plain", "tensor"]
)
@pytest.mark.parametrize("quick", [True, False])
def test_masked_cells(name: str, quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrices()[name]
    head = ZoomedHead(matrix)
    mask = matrix.problem.mask
    allowed = torch.ones(T, S) if mask is None else mask.dense(matrix.problem.geometry).expand(T, S)
    if not quick:
        monkeypatch.setattr(zooming, "QUICK", 10)
    for window in WINDOWS:
        found = head.masked(*window)
        right = cells(allowed.float(), *window) == 0
        if quick or name != "tensor":
            assert torch.equal(found, right)
        else:  # whole blocks of the mask: nothing that is seen is called masked
            assert not bool((found & ~right).any())


def test_cells_are_those_of_pool() -> None:
    matrix = matrices()["causal"]
    found = ZoomedHead(matrix).pooled(0, T, 0, S, 64, 64).picture
    torch.testing.assert_close(found, matrix.pool(64, 64), atol=1e-6, rtol=1e-5)


def test_a_recording_that_changed_is_not_read() -> None:
    q = made(T, D)
    head = ZoomedHead(it.attend(q, made(S, D)))
    q.add_(1)
    with pytest.raises(it.errors.StaleError, match="changed in place since"):
        head.tile(0, 1, 0, head.s)
