"""A page holds the numbers of which the weights follow, for every form of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.matrix import LazyMatrix
from intently.show.page.items import items_of
from intently.show.page.stored import stored

from .page_reader import Page

H, T, S, D = 4, 7, 9, 8


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def q(*shape: int) -> Tensor:
    return made(*(shape or (1, H, T, D)))


def k(*shape: int) -> Tensor:
    return made(*(shape or (1, H, S, D)), seed=1)


def attend(**options: object) -> LazyMatrix:
    return it.attend(q(), k(), **options)  # type: ignore[arg-type]


def hidden() -> Tensor:
    """A mask with a row that may attend to nothing, different in every head."""
    mask = made(H, T, S, seed=2) > 0
    mask[:, 3] = False
    return mask


def lowest() -> Tensor:
    """A bias that hides some keys, and all keys of a row, as the lowest number of float32 does."""
    bias = torch.where(made(T, S, seed=2) > 0, 0.0, torch.finfo(torch.float32).min)
    bias[3] = torch.finfo(torch.float32).min
    return bias


def left_padded(low: float) -> Tensor:
    """A bias of keys that hides the first four; under a causal mask four rows see nothing else."""
    bias = torch.zeros(1, 1, 1, S)
    bias[..., :4] = low
    return bias


def own() -> Tensor:
    return made(1, H, S, D, seed=9)


LOWEST = torch.finfo(torch.float32).min


def padded() -> LazyMatrix:
    keys = k()
    keys[..., 6:, :] = float("nan")
    return it.attend(q(), keys, mask=it.padding(torch.tensor([6])))


CASES: dict[str, Callable[[], LazyMatrix]] = {
    "plain": attend,
    "one head": lambda: it.attend(q(T, D), k(S, D)),
    "heads without a batch": lambda: it.attend(q(H, T, D), k(H, S, D), mask=it.causal()),
    "one key head for all": lambda: it.attend(q(H, T, D), k(1, S, D)),
    "grouped": lambda: it.attend(q(), k(1, 2, S, D), mask=it.causal()),
    "causal": lambda: attend(mask=it.causal()),
    "window": lambda: attend(mask=it.causal() & it.window(2, 0)),
    "of each head, with an empty row": lambda: attend(mask=hidden()),
    "padding that is NaN": padded,
    "alibi": lambda: attend(bias=it.alibi(H), mask=it.causal()),
    "buckets": lambda: attend(bias=it.relative_buckets(made(8, H, seed=3), max_distance=6)),
    "two rules": lambda: attend(bias=it.alibi(H) + it.relative_buckets(made(8, 1), max_distance=6)),
    "kept": lambda: it.attend(
        q(1, H, T, 0), k(1, H, S, 0), scale=1, bias=made(1, H, T, S, seed=4).softmax(-1).log()
    ),
    "bias of keys": lambda: attend(bias=made(S, seed=4)),
    "dense bias": lambda: attend(bias=made(H, T, S, seed=4)),
    "dense bias of all heads": lambda: attend(bias=made(T, S, seed=4)),
    "rows hidden by a bias": lambda: attend(bias=lowest()),
    "left padding and causal": lambda: it.attend(
        own(), k(), bias=left_padded(LOWEST), mask=it.causal()
    ),
    "left padding of −10⁹ and causal": lambda: it.attend(
        own(), k(), bias=left_padded(-1e9), mask=it.causal()
    ),
    "additive under left padding": lambda: it.attend(
        own(),
        k(),
        score=it.Additive(made(6, D), made(6, D, seed=8), made(6)),
        bias=left_padded(LOWEST),
        mask=it.causal(),
    ),
    "left padding with sinks": lambda: attend(
        bias=left_padded(LOWEST), mask=it.causal(), sinks=made(H, seed=5)
    ),
    "left padding in float64": lambda: it.attend(
        own().double(), k().double(), bias=left_padded(LOWEST).double(), mask=it.causal()
    ),
    "the lowest float64": lambda: it.attend(
        own().double(),
        k().double(),
        mask=it.causal(),
        bias=left_padded(-1).double() * torch.finfo(torch.float64).max,
    ),
    "every key hidden by a bias": lambda: attend(bias=torch.full((S,), LOWEST)),
    "hidden more and less": lambda: attend(bias=torch.linspace(-4e9, -1e9, S)),
    "every distance hidden by a bias": lambda: it.attend(
        own(), k(), bias=torch.zeros(S, S).masked_fill(torch.ones(S, S).tril() > 0, LOWEST)
    ),
    "a row of −10⁹": lambda: attend(bias=torch.zeros(T, S).index_fill(0, torch.tensor([2]), -1e9)),
    "softcap": lambda: attend(softcap=0.5, scale=3.0),
    "sinks": lambda: attend(sinks=made(H, seed=5), mask=it.causal()),
    "one sink": lambda: attend(sinks=torch.tensor(0.5)),
    "a scale for each head": lambda: attend(scale=made(H, 1, 1, seed=6)),
    "cosine": lambda: attend(score=it.Cosine(), scale=4.0),
    "bilinear": lambda: it.attend(q(), k(1, H, S, 5), score=it.General(made(H, D, 5, seed=7))),
    "additive": lambda: attend(
        score=it.Additive(made(H, 6, D), made(H, 6, D, seed=8), made(H, 6), made(H, 6)),
        scale=made(H, 1, 1).abs(),
        mask=it.causal(),
    ),
    "additive, one head": lambda: it.attend(
        q(T, D), k(S, D), score=it.Additive(made(6, D), made(6, D, seed=8), made(6))
    ),
    "float64": lambda: it.attend(q().double(), k().double()),
    "bfloat16": lambda: it.attend(q().bfloat16(), k().bfloat16()),
    "far beyond half": lambda: it.attend(1e6 * q(), 1e-6 * k()),
    "dense": lambda: it.Dense(torch.softmax(made(1, H, T, S), -1)),
    "merged": lambda: it.Merged(
        it.attend(q(H, T, D), k(H, S, D)), [[0, 1], [2], [3]], [[0], [1, 2, 3], [8]]
    ),
}
WEIGHED = ("dense", "merged", "kept")


@pytest.mark.parametrize("case", CASES)
def test_weights_follow_from_the_page(case: str) -> None:
    matrix = CASES[case]()
    page = Page.of(matrix, "full")
    entry = page.entry()
    h, t, s = (1, *matrix.shape)[-3:]
    assert (entry["heads"], entry["t"], entry["s"]) == (h, t, s)
    assert (entry["score"]["kind"] == "weights") == (case in WEIGHED)
    found = page.weights()
    atol = 1e-2 if case == "bfloat16" else 2e-6
    np.testing.assert_allclose(found, matrix.dense().reshape(h, t, s).double(), atol=atol)
    assert page.meta["bound"]["weights"] <= atol


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("precision", ["half", "full"])
def test_python_and_page_agree_on_the_stored_numbers(case: str, precision: Any) -> None:
    page = Page.of(CASES[case](), precision)
    (item,) = items_of(CASES[case]())
    mine = stored(item.layers[0].matrix, precision).matrix
    expected = mine.dense().numpy().reshape(page.weights().shape)
    np.testing.assert_allclose(page.weights(), expected, atol=1e-12)
    entry = page.entry()
    w = page.weights()
    np.testing.assert_allclose(
        np.stack([page.block(n) for n in entry["received"]]), w.sum(1), rtol=1e-5
    )
    entropy = -(w * np.log(np.where(w == 0, 1, w))).sum(-1)
    np.testing.assert_allclose(
        np.stack([page.block(n) for n in entry["entropy"]]), entropy, atol=1e-5
    )
    overview = (page.block(entry["overview"]) / 255.0) ** 2
    largest = np.array(entry["overview_max"])[:, None, None]
    np.testing.assert_allclose(np.sqrt(overview * largest), np.sqrt(w), atol=1 / 255)


@pytest.mark.parametrize("case", CASES)
def test_half_is_as_near_as_the_page_says(case: str) -> None:
    matrix = CASES[case]()
    page = Page.of(matrix, "half")
    apart = np.abs(page.weights() - matrix.tile().double().numpy().reshape(page.weights().shape))
    limit = page.meta["bound"]["weights"]  # all rows are sampled, there are so few
    assert apart.max() == pytest.approx(limit, rel=1e-6, abs=1e-12)
    assert limit < (1e-2 if case == "bfloat16" else 5e-3)


def test_rows_that_a_bias_makes_coarse_are_always_sampled() -> None:
    """Under −10⁶ float32 keeps scores to 1/16: neither alike nor the page's."""
    n = 60
    bias = torch.zeros(n, n).index_fill(0, torch.tensor([31]), -1e6)
    A = it.attend(made(n, D), made(n, D, seed=1), bias=bias)
    page = Page.of(A, "full")
    apart = np.abs(page.weights()[0] - A.dense().double().numpy()).max(-1)
    assert np.delete(apart, 31).max() < 1e-6 < 1e-4 < apart[31]
    assert page.meta["bound"]["weights"] == pytest.approx(apart[31])


def test_half_would_be_told_apart_from_full() -> None:
    bounds = [Page.of(attend(), p).meta["bound"]["weights"] for p in ("half", "full")]
    assert bounds[0] > 1e-5 > bounds[1] > 0


def test_a_bias_is_kept_in_as_few_numbers_as_it_takes() -> None:
    cases = {"alibi": "distance", "two rules": "distance", "bias of keys": "key"}
    cases |= {"dense bias": "dense", "rows hidden by a bias": "dense"}
    kinds = {case: Page.of(CASES[case]()).entry()["bias"]["kind"] for case in cases}
    assert kinds == cases
    beyond = made(S, S).masked_fill(torch.ones(S, S).tril() > 0, 0)  # only what is hidden anyway
    masked = it.attend(own(), k(), bias=beyond, mask=it.causal())
    assert Page.of(masked).entry()["bias"]["kind"] == "distance"
