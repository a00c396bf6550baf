"""Every statistic of heads against its definition on the dense weights, entry by entry."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.matrix import patterns
from intently.core.matrix.lazy import LazyMatrix
from intently.core.matrix.patterns import blocks_of_heads

from ..combinations import each
from .formula import families, random

B, H, T, S = 2, 3, 5, 7
IDS = torch.tensor([[1, 2, 1, 1, 2, 3, 2], [9, 9, 9, 4, 5, 9, 4]])
SMALL = 60
"""Weights in a block, so that all matrices are read in several."""


@pytest.fixture(params=[2**20, SMALL], ids=["whole", "in pieces"], autouse=True)
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.core.matrix.statistics.BLOCK", 4 * request.param)
    monkeypatch.setattr("intently.core.matrix.patterns.SIZE", request.param)


def matrices() -> dict[str, LazyMatrix]:
    q, k = (random(B, H, n, 4, dtype=torch.float64, seed=n) for n in (T, S))
    rules = families(B, H, T, S)
    found: dict[str, LazyMatrix] = {
        name: it.attend(q, k, mask=rule, scale=1.5) for name, (rule, _) in rules.items()
    }
    A = found["allowed"]
    return found | {
        "sinks, softcap": it.attend(q, k, sinks=random(H).double(), softcap=2.0),
        "grouped": it.attend(q.repeat(1, 2, 1, 1), k, mask=it.causal()),
        "shared keys": it.attend(q, k[:1], mask=rules["causal"][0]),
        "shared queries": it.attend(q[:1], k, mask=it.padding(torch.tensor([7, 3]))),
        "dense": it.Dense(A.dense()),
        "stacked": it.stack_rows(
            [it.attend(q[..., :2, :], k[..., :4, :]), it.attend(q[..., 2:, :], k)]
        ),
        "mean of heads": A.mean_heads(),
        "heads of one item": A[1],
        "one head": A[1, 1],
        "transposed": it.attend(k, q).mT,
        "empty rows": it.attend(q, k, mask=it.causal(-3)),
    }


NAMES = sorted(matrices())


def entropy(w: Tensor) -> Tensor:
    return -(w * w.clamp_min(1e-300).log()).sum(-1)


def by_definition(A: LazyMatrix, ids: Tensor | None) -> dict[str, Tensor]:
    """Means (…,) over queries of the weights of A, one entry after the other."""
    w = A.dense()
    *lead, t, s = w.shape
    heads = w.reshape(-1, lead[-1] if lead else 1, t, s)
    tokens = None if ids is None else ids.expand(len(heads), s)
    names = ["entropy", "confidence", "sink", "self", "previous", "distance", "divergence"]
    names += ["duplicate", "induction"] if ids is not None else []
    found: dict[str, list[float]] = {name: [] for name in names}
    for b, item in enumerate(heads):
        first = next((j for j in range(s) if item[:, :, j].any()), s - 1)
        for head in item:
            means: dict[str, list[float]] = {name: [] for name in names}
            for i, row in enumerate(head):
                if not row.any():
                    continue
                p = s - t + i
                means["entropy"].append(float(entropy(row)))
                means["confidence"].append(float(row.max()))
                means["sink"].append(float(row[first]))
                means["distance"].append(sum(float(row[j]) * abs(p - j) for j in range(s)))
                mean = item[:, i].mean(0)
                means["divergence"].append(
                    sum(float(x) * math.log(x / m) for x, m in zip(row, mean) if x > 0)
                )
                if p >= 0:
                    means["self"].append(float(row[p]))
                if p >= 1:
                    means["previous"].append(float(row[p - 1]))
                if tokens is not None:
                    own = tokens[b, p]
                    same = [j for j in range(p) if tokens[b, j] == own]
                    if same:
                        means["duplicate"].append(sum(float(row[j]) for j in same))
                        means["induction"].append(sum(float(row[j + 1]) for j in same))
            for name in names:
                x = means[name]
                found[name].append(sum(x) / len(x) if x else math.nan)
    if heads.shape[1] == 1:
        found.pop("divergence")
    return {n: torch.tensor(x, dtype=torch.float64).reshape(lead) for n, x in found.items()}


def agree(
    found: dict[str, patterns.Average], expected: dict[str, Tensor], tolerance: float
) -> None:
    assert found.keys() == expected.keys()
    for name, average in found.items():
        torch.testing.assert_close(
            average.value(),
            expected[name].to(average.total.dtype),
            atol=tolerance,
            rtol=tolerance,
            equal_nan=True,
            msg=lambda text, name=name: f"{name}: {text}",
        )


@each({"tokens": ["none", "shared", "by item"], "name": NAMES})
def test_measured_in_one_pass(name: str, tokens: str) -> None:
    A = matrices()[name]
    ids = {"none": None, "shared": IDS[0], "by item": IDS if A.ndim > 3 else IDS[1]}
    counted = (A.dense() > 0).any(-2)[..., S - A.shape[-2] :]
    expected = A
    if tokens != "none":
        expected = it.Dense(A.dense() * counted[..., None])
    agree(patterns.measure(A, ids[tokens]), by_definition(expected, ids[tokens]), 1e-12)


def test_queries_that_count() -> None:
    """Item 1 has five keys of padding; rows of padding attend to the others all the same."""
    x = random(B, H, S, 4, dtype=torch.float64)
    A = it.attend(x, x, mask=it.padding(torch.tensor([7, 2])))
    assert patterns.measure(A)["entropy"].count.tolist() == [[7] * H] * B
    found = patterns.measure(A, IDS)
    assert found["entropy"].count.tolist() == [[7] * H, [2] * H]
    assert found["previous"].count.tolist() == [[6] * H, [1] * H]
    assert found["induction"].count.tolist() == [[4] * H, [1] * H]
    alone = patterns.measure(A[1:, :, :, :][..., :, :], IDS[1:])["entropy"].value()
    torch.testing.assert_close(found["entropy"].value()[1:], alone)
    dense = A.dense()[1, :, :2]
    torch.testing.assert_close(found["entropy"].value()[1], entropy(dense).mean(-1))
    torch.testing.assert_close(found["sink"].value()[1], dense[..., 0].mean(-1))


def test_padding_on_the_left_has_its_sink_at_the_first_word() -> None:
    x = random(B, H, S, 4, dtype=torch.float64)
    real = torch.arange(S) >= torch.tensor([[0], [3]])
    A = it.attend(x, x, mask=it.causal() & it.allowed(real[:, None, None]))
    w, found = A.dense(), patterns.measure(A)
    assert found["sink"].count.tolist() == [[6] * H, [3] * H]  # the first word sees itself alone
    torch.testing.assert_close(found["sink"].value()[1], w[1, :, 4:, 3].mean(-1))
    torch.testing.assert_close(found["sink"].value()[0], w[0, :, 1:, 0].mean(-1))
    own = w.diagonal(0, -2, -1)
    torch.testing.assert_close(found["self"].value()[1], own[1, :, 4:].mean(-1))
    torch.testing.assert_close(found["self"].value()[0], own[0, :, 1:].mean(-1))


def test_a_first_query_that_sees_more_than_itself_counts() -> None:
    x = random(B, H, S, 4, dtype=torch.float64)
    for options in ({}, {"mask": it.causal(), "sinks": torch.ones(H, dtype=torch.float64)}):
        A = it.attend(x, x, **options)
        w, found = A.dense(), patterns.measure(A)
        torch.testing.assert_close(found["sink"].value(), w[..., 0].mean(-1))
        torch.testing.assert_close(found["self"].value(), w.diagonal(0, -2, -1).mean(-1))


@pytest.mark.parametrize("lead", [(), (1,), (2, 2, 3)], ids=str)
@pytest.mark.parametrize("mask", [None, it.causal(), it.window(20, 9)], ids=str)
def test_long_matrices_of_any_lead(lead: tuple[int, ...], mask: it.Mask | None) -> None:
    q, k = (random(*lead, 300, 4, seed=n, dtype=torch.float32) for n in (1, 2))
    A = it.attend(q, k, mask=mask, scale=1.0)
    ids = torch.randint(0, 40, (*lead[:-1], 300))
    whole = patterns.measure(it.Dense(A.dense().double()), ids)
    agree(patterns.measure(A, ids), {n: a.value() for n, a in whole.items()}, 2e-5)


def test_heads_are_never_parted_and_blocks_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    q = random(2, 6, 700, 4, dtype=torch.float32)
    for mask in (None, it.causal(), it.window(30, 0), it.padding(torch.tensor([700, 200]))):
        A = it.attend(q, q, mask=mask)
        found = list(blocks_of_heads(A, 40_000))
        assert all(len(range(6)[b.lead[-1]]) == 6 for b in found)
        assert max(b.weights.numel() for b in found) <= 40_000
        seen = torch.zeros(A.shape)
        for b in found:
            seen[(*b.lead, b.rows, b.cols)] += b.weights
        torch.testing.assert_close(seen, A.dense())

    def refused(*_: Any) -> Tensor:
        raise AssertionError("all of it was asked for")

    monkeypatch.setattr(LazyMatrix, "dense", refused)
    patterns.measure(it.attend(q, q), torch.arange(700))


def test_empty_blocks_are_not_computed() -> None:
    q = random(1, 2, 1024, 4)
    found = blocks_of_heads(it.attend(q, q, mask=it.causal()), 2**16)
    share = sum(b.weights.numel() for b in found) / (2 * 1024**2)
    assert share < 0.65


LONG_T, LONG_S = 150, 210
RULES: dict[str, it.Mask | None] = {
    "none": None,
    "causal": it.causal(),
    "window": it.window(30, 3),
    "one row empty": it.causal() & it.padding(torch.tensor([150, 0])),
    "first rows empty": it.causal(torch.tensor([-5, 100])),
    "padding on the left": it.causal() & it.allowed(torch.arange(LONG_S) >= 70),
    "segments": it.segments(torch.arange(LONG_T) // 40, torch.arange(LONG_S) // 40),
    "a tensor of items": it.allowed(random(2, 1, LONG_T, LONG_S, seed=14) > 0.5),
    "a tensor of heads": it.allowed(random(4, LONG_T, LONG_S, seed=14) > 0.5),
}


@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_one_walk_of_the_native_kernel_finds_what_blocks_find(rule: str, with_ids: bool) -> None:
    q = random(2, 4, LONG_T, 12, seed=1, dtype=torch.float32)
    k = random(2, 2, LONG_S, 12, seed=2, dtype=torch.float32)
    options = {"sinks": random(4, seed=3, dtype=torch.float32), "bias": it.alibi(4), "softcap": 9.0}
    ids = torch.randint(0, 40, (2, LONG_S)) if with_ids else None
    for given in ({}, options):
        A = it.attend(q, k, mask=RULES[rule], **given)
        found = patterns.measure(A, ids)
        with it.kernels.use("tiled"):
            expected = patterns.measure(A, ids)
        exact = patterns.measure(it.attend(q.double(), k.double(), mask=RULES[rule], **given), ids)
        for name, average in exact.items():
            torch.testing.assert_close(found[name].count, expected[name].count)
            torch.testing.assert_close(found[name].count.double(), average.count)
        agree(found, {n: a.value() for n, a in exact.items()}, 2e-5)
        agree(expected, {n: a.value() for n, a in exact.items()}, 2e-5)


@each({"shape": [(70, 5), (1, 300), (64, 64), (129, 200)], "heads": [1, 3, 65]}, times=2)
def test_one_walk_over_any_number_of_heads(heads: int, shape: tuple[int, int]) -> None:
    t, s = shape
    q, k = (random(heads, n, 8, seed=n, dtype=torch.float32) for n in shape)
    A = it.attend(q, k, mask=it.window(40, 40), scale=3.0)
    ids = torch.randint(0, 9, (s,)) if t <= s else None
    exact = patterns.measure(
        it.attend(q.double(), k.double(), mask=it.window(40, 40), scale=3.0), ids
    )
    agree(patterns.measure(A, ids), {n: a.value() for n, a in exact.items()}, 2e-5)


def test_a_query_of_nan_makes_its_head_nan_and_no_other() -> None:
    q = random(2, 100, 8, dtype=torch.float32)
    q[1, 70] = math.nan
    for way in (nullcontext(), it.kernels.use("tiled")):
        with way:
            found = patterns.measure(it.attend(q, q.nan_to_num(), mask=it.causal()))
        assert all(bool(found[n].total[0].isfinite()) for n in ("entropy", "self", "distance"))
        assert all(bool(found[n].total[1].isnan()) for n in ("entropy", "confidence", "distance"))
        assert found["entropy"].count.tolist() == [100, 99]


def test_nothing_to_measure() -> None:
    for shape in ((2, 0, 4), (2, 4, 0)):
        q, k = torch.ones(shape[0], shape[1], 3), torch.ones(shape[0], shape[2], 3)
        found = patterns.measure(it.attend(q, k))
        assert found["entropy"].count.tolist() == [0, 0]
        assert found["sink"].value().isnan().all()
    more_queries = patterns.measure(it.Dense(torch.eye(4, 2)[None]))
    assert more_queries["entropy"].count.item() == 2 and more_queries["self"].count.item() == 0


def test_gradients_and_half_types() -> None:
    q = random(2, 9, 4).requires_grad_()
    found = patterns.measure(it.attend(q, q))
    assert not found["entropy"].total.requires_grad
    half = it.attend(q.bfloat16(), q.bfloat16())
    exact = by_definition(it.attend(q.detach().double(), q.detach().double()), None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert patterns.measure(half)["entropy"].total.dtype is torch.float32
        agree(patterns.measure(half), exact, 0.03)


def test_a_matrix_that_changed_is_refused() -> None:
    q = random(2, 9, 4)
    A = it.attend(q, q)
    q += 1
    with pytest.raises(it.errors.StaleError, match="changed in place"):
        patterns.measure(A)


# --- kinds of heads as masks --------------------------------------------------------------------


def test_masks_of_kinds() -> None:
    ids = torch.tensor([5, 7, 5, 5, 7])
    allow = {name: getattr(patterns, name)(ids) for name in ("duplicate", "induction")}
    for i in range(5):
        for j in range(5):
            same = j < i and ids[j] == ids[i]
            follows = 1 <= j <= i and ids[j - 1] == ids[i]
            grids = {n: m.draw(5).split("\n")[i].split(" ")[j] == "█" for n, m in allow.items()}
            assert grids == {"duplicate": bool(same), "induction": bool(follows)}
    last = patterns.induction(ids, 2).draw(2, 5).split("\n")
    assert last == patterns.induction(ids).draw(5).split("\n")[3:]


def test_tokens_of_items_and_any_numbers() -> None:
    ids = torch.tensor([[-5, 2**40, -5], [0, 0, 0]])
    g = it.core.masks.Geometry((2, 4), 3, 3, torch.device("cpu"))
    found = patterns.induction(ids).dense(g)
    assert found.shape == (2, 1, 3, 3)
    assert found[0, 0].tolist() == [[False] * 3, [False] * 3, [False, True, False]]
    assert found[1, 0].tolist() == [[False] * 3, [False, True, False], [False, True, True]]


@pytest.mark.parametrize("name", NAMES)
def test_mass_on_a_mask(name: str) -> None:
    A = matrices()[name]
    t = A.shape[-2]
    ids = IDS if A.ndim > 3 else IDS[0]
    for mask in (patterns.previous(), patterns.induction(ids, t), it.window(2, 1)):
        g = it.core.masks.Geometry(tuple(A.shape[:-2]), t, S, torch.device("cpu"))
        torch.testing.assert_close(patterns.mass_on(A, mask), (A.dense() * mask.dense(g)).sum(-1))


def test_mass_can_be_trained_on() -> None:
    q = random(4, 3).requires_grad_()
    found = patterns.mass_on(it.attend(q, q), patterns.previous())
    assert torch.autograd.grad(found.sum(), q)[0].abs().sum() > 0


# --- heads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in NAMES if matrices()[name].ndim > 2])
def test_jensen_shannon(name: str) -> None:
    A = matrices()[name]
    w = A.dense()
    h = w.shape[-3]
    found = patterns.jensen_shannon(A)
    assert found.shape == (*w.shape[:-3], h, h)
    for a in range(h):
        for b in range(h):
            p, q = w[..., a, :, :], w[..., b, :, :]
            apart = entropy((p + q) / 2) - entropy(p) / 2 - entropy(q) / 2
            both = (p.sum(-1) > 0) & (q.sum(-1) > 0)
            mean = (apart * both).sum(-1) / both.sum(-1)
            torch.testing.assert_close(
                found[..., a, b], mean.clamp_min(0), atol=1e-12, rtol=1e-12, equal_nan=True
            )


def test_heads_that_are_one_are_never_less_than_alike() -> None:
    w = torch.rand(20, 1, 200, 50).softmax(-1).expand(20, 3, 200, 50)
    found = patterns.jensen_shannon(it.Dense(w))
    assert found.min() >= 0 and found.max() < 1e-6


def test_queries_that_one_head_hides_are_not_compared() -> None:
    x = random(2, 4, 3)
    allow = torch.ones(2, 4, 4, dtype=torch.bool)
    allow[0, 1] = False
    found = patterns.jensen_shannon(it.attend(x, x, mask=allow))
    kept = patterns.jensen_shannon(it.Dense(it.attend(x, x).dense()[:, [0, 2, 3]]))
    torch.testing.assert_close(found[0, 1], kept[0, 1])


# --- links --------------------------------------------------------------------------------------


def test_links() -> None:
    A = it.Dense(torch.tensor([[0.2, 0.8], [0.0, 0.0], [0.6, 0.4]]))
    assert patterns.links(A) == {(1, 0), (0, 2)}
