"""Indexing a lazy matrix is indexing its dense weights, rows and columns orthogonally."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import intently as it
from intently.errors import ArgumentError, RangeError

from .formula import families, multiply, random

B, H, T, S = 2, 4, 5, 7
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias": random(B, 1, T, S), "softcap": 3.0, "sinks": random(H)},
    "bias of keys": {"bias": random(S), "scale": random(H, 1, 1).abs()},
}


def matrix(family: str = "allowed", extra: str = "plain", g: int = 2) -> it.Attention:
    q, k = random(B, H, T, 3, seed=1), random(B, g, S, 3, seed=2)
    return it.attend(q, k, mask=families(B, H, T, S)[family][0], **OPTIONS[extra])


def orthogonal(dense: Tensor, lead: tuple[Any, ...], rows: Any, cols: Any) -> Tensor:
    """What NumPy says: leading axes first, then rows, then columns."""
    found = dense[lead] if lead else dense
    keep = slice(None)
    found = found.numpy()[(..., rows, keep)]
    return torch.tensor(np.array(found[(..., cols)]))


def axis(size: int) -> st.SearchStrategy[Any]:
    ints = st.integers(-size, size - 1)
    ends = st.none() | st.integers(-size - 2, size + 2)
    steps = st.none() | st.integers(-3, 3).filter(bool)
    lists = st.lists(ints, max_size=4)
    return st.one_of(
        ints,
        st.builds(slice, ends, ends, steps),
        st.just(slice(None)),
        lists.map(lambda x: np.array(x, dtype=np.int64)),
        st.lists(st.booleans(), min_size=size, max_size=size).map(np.array),
    )


def for_lazy(index: Any, kind: int) -> Any:
    """The same index as an array, a list or a tensor; an int also as NumPy's."""
    if isinstance(index, np.ndarray):
        return (index, index.tolist(), torch.as_tensor(index))[kind]
    if isinstance(index, int):
        return (index, np.int64(index), torch.tensor(index))[kind]
    return index


def forwards(index: Any) -> Any:
    return slice(None) if isinstance(index, slice) and (index.step or 1) < 0 else index


@settings(max_examples=150)
@given(
    family=st.sampled_from(sorted(families(B, H, T, S))),
    extra=st.sampled_from(sorted(OPTIONS)),
    lead=st.tuples(axis(B), axis(H)),
    depth=st.integers(0, 2),
    rows=axis(T),
    cols=axis(S),
    kind=st.integers(0, 2),
    dots=st.booleans(),
)
def test_lazy_is_dense(
    family: str,
    extra: str,
    lead: tuple[Any, Any],
    depth: int,
    rows: Any,
    cols: Any,
    kind: int,
    dots: bool,
) -> None:
    A = matrix(family, extra)
    dense = A.dense()
    picked = tuple(map(forwards, lead[:depth]))
    if sum(isinstance(x, np.ndarray) for x in picked) == 2:
        picked = picked[:1]
    index = tuple(for_lazy(x, kind) for x in picked)
    as_torch = tuple(torch.as_tensor(x) if isinstance(x, np.ndarray) else x for x in picked)
    fill = (...,) if dots else (slice(None),) * (2 - len(picked))
    found = A[(*index, *fill, for_lazy(rows, kind), for_lazy(cols, kind))]
    expected = orthogonal(dense, as_torch, rows, cols)
    if isinstance(rows, slice) and isinstance(cols, slice) and rows == cols == slice(None):
        assert isinstance(found, it.LazyMatrix)
        assert found.shape == tuple(expected.shape)
        found = found.dense()
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=1e-13)
    if dots or len(picked) == 2:
        z = A.scores[(*index, *fill, for_lazy(rows, kind), for_lazy(cols, kind))]
        whole = orthogonal(A.scores[...], as_torch, rows, cols)
        torch.testing.assert_close(z, whole, atol=1e-13, rtol=1e-13)


@pytest.mark.parametrize("family", families(B, H, T, S))
@pytest.mark.parametrize("extra", OPTIONS)
def test_parts_answer_like_the_whole(family: str, extra: str) -> None:
    A = matrix(family, extra)
    v = random(B, 2, S, 3, seed=3)
    y, vh = A @ v, v.repeat_interleave(2, 1)
    both = torch.tensor([[True, False, False, True], [False, True, False, False]])
    for index in [
        (0,),
        (1, 2),
        (slice(None), 2),
        (slice(1), [3, 0]),
        (both,),
        (-1, slice(None, None, 2)),
    ]:
        lead = index if len(index) > 1 else index[0]
        part = A[lead]
        assert isinstance(part, it.Attention)
        torch.testing.assert_close(part.dense(), A.dense()[lead], atol=1e-14, rtol=1e-13)
        torch.testing.assert_close(part @ vh[lead], y[lead], atol=1e-13, rtol=1e-12)
        torch.testing.assert_close(part.lse, A.lse[lead])
        torch.testing.assert_close(part.scores[...], A.scores[...][lead])
        torch.testing.assert_close(part.entropy(), A.entropy()[lead])
        torch.testing.assert_close(part.received(), A.received()[lead])
        for found, expected in zip(part.top(3), A.top(3)):
            torch.testing.assert_close(found, expected[lead])
    twice = A[1][2]
    assert twice.shape == (T, S)
    torch.testing.assert_close(twice.dense(), A.dense()[1, 2])
    torch.testing.assert_close(A[1:][0, 1:][1, 2:3], A.dense()[1, 2, 2:3])


@pytest.mark.parametrize("g", [2, 4])
def test_gradients_through_a_part_of_a_part(g: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks, one for each head, become one for each head of each row."""
    monkeypatch.setattr("intently.core.kernels.walk.GRAIN", 2)
    q, k = random(3, H, T, 3).requires_grad_(), random(3, g, S, 3, seed=1).requires_grad_()
    sinks, scale = random(H, seed=2).requires_grad_(), random(H, 1, 1, seed=3).requires_grad_()
    A = it.attend(q, k, sinks=sinks, scale=scale, mask=it.padding([7, 4, 2]), bias=it.alibi())
    for index in [(slice(0, 2),), (slice(None), [3, 0]), ([1, 0],), (slice(None), 1), (1,)]:
        parts = [A[index], A[1:][0:2][index]]
        for part, whole in zip(parts, (A.dense()[index], A.dense()[1:][0:2][index])):
            torch.testing.assert_close(part.dense(), whole)
            torch.testing.assert_close(part[..., 1:2, :], whole[..., 1:2, :])
            up = random(S, 2, seed=4)
            y = multiply(part, up, "tiled")
            torch.testing.assert_close(y, whole @ up)
            torch.testing.assert_close(
                torch.autograd.grad(y.square().sum(), (q, k, sinks, scale), retain_graph=True),
                torch.autograd.grad((whole @ up).square().sum(), (q, k, sinks, scale)),
            )


def test_the_whole_is_itself_and_labels_stay() -> None:
    A = matrix().label([*"abcde"], [*"tuvwxyz"])
    assert A[...] is A and A[:] is A
    assert A[0].labels == A[0, 1].labels == A[..., 1, :, :].labels == A.labels


def test_a_boolean_over_two_leading_axes_beside_a_row() -> None:
    A, m = matrix(), torch.tensor([[True, False, True, False], [False, False, False, True]])
    torch.testing.assert_close(A[m, 2], A.dense()[m][:, 2])
    torch.testing.assert_close(A[m, :, 2], A.dense()[m][:, :, 2])


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (
        slice(None, None, -1),
        ArgumentError,
        "index: expected steps > 0 along leading axes; got slice(None, None, -1). PyTorch has no "
        "views that run backwards. Give the positions: A[[2, 1, 0]].",
    ),
    (
        None,
        ArgumentError,
        "index: expected ints, slices, lists, tensors and …; got None (a new axis).",
    ),
    ((0, 0, 0, 0, 0), ArgumentError, "index: expected at most 4 axes; got 5."),
    ((..., 0, ...), ArgumentError, "index: expected at most one …; got 2."),
    (True, ArgumentError, "index: expected ints, slices, lists, tensors and …; got True."),
    ("row", ArgumentError, "index: expected positions; got 'row'. The rows have no labels."),
    ((..., 1.5, 0), ArgumentError, "index: expected ints, slices, lists, tensors and …; got 1.5."),
    ((..., 5, 0), RangeError, "index: expected positions from −5 to 4 along t=5; got 5 to 5."),
    ((..., [0, -8]), RangeError, "index: expected positions from −7 to 6 along s=7; got -8 to 0."),
    ((..., torch.ones(3) > 0), ArgumentError, "index: expected a boolean (s=7,); got shape (3,)."),
    ((..., torch.ones(2, 2).long()), ArgumentError, "index: expected integers (n,) along s"),
    (
        (..., torch.ones(2)),
        ArgumentError,
        "index: expected integers, or booleans; got dtype torch.float32",
    ),
    (
        (..., torch.ones(5, 7, dtype=torch.bool)),
        ArgumentError,
        "index: expected rows and columns of one axis each; got a boolean of shape (5, 7) over "
        "them. Index the dense matrix: A.dense()[mask].",
    ),
]


@pytest.mark.parametrize(("index", "kind", "text"), REFUSED, ids=lambda x: str(x)[:30])
def test_refused(index: Any, kind: type[Exception], text: str) -> None:
    for target in (matrix(), matrix().scores):
        with pytest.raises(kind) as caught:
            target[index]
        assert text in str(caught.value)
    assert issubclass(RangeError, IndexError)


def test_columns_of_a_large_matrix_are_taken_block_by_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    A = matrix("causal & padding", "bias")
    dense, lse = A.dense(), A.lse
    monkeypatch.setattr("intently.core.matrix.statistics.BLOCK", 60)
    for index in ((..., [3, 0]), (..., [4, 1, 1], 2)):
        torch.testing.assert_close(A[index], dense[index], atol=1e-14, rtol=1e-13)
    torch.testing.assert_close(A.lse, lse)


def test_arrays_of_any_layout_and_whole_numbers_index() -> None:
    A = it.attend(random(1, 3, 2, seed=1), random(1, 4, 2, seed=2))
    dense = A.dense()
    backwards = np.array([0, 2, 3])[::-1]
    assert torch.equal(A[0, 1, backwards], dense[0, 1, [3, 2, 0]])
    assert torch.equal(A[0, np.array([2, 0], np.uint16)], dense[0, [2, 0]])
    assert torch.equal(A[0, :, np.array([1, 2], ">i4")], dense[0][:, [1, 2]])
    assert torch.equal(A.mass(backwards), dense[..., [0, 2, 3]].sum(-1))


@pytest.mark.parametrize(
    ("index", "kind", "text"),
    [
        (3, RangeError, r"^index: expected positions within the leading axes of shape \(1, 3, 4\)"),
        ([3], RangeError, "^index: expected positions within the leading axes"),
        ([0.5], ArgumentError, r"^index: expected integers, or booleans; got dtype torch\.float64"),
        (["a"], ArgumentError, "^index: expected positions; got 'a'. The rows have no labels"),
    ],
)
def test_leading_axes_refuse_in_our_words(index: Any, kind: type[Exception], text: str) -> None:
    A = it.attend(random(1, 3, 2, seed=1), random(1, 4, 2, seed=2))
    with pytest.raises(kind, match=text):
        A[index]


# --- labels ---------------------------------------------------------------------------------------

WORDS = [
    "The",
    "animal",
    "didn't",
    "cross",
    "the",
    "road",
    "because",
    "it",
    "was",
    "too",
    "wide",
    ".",
]
ONE = it.attend(torch.randn(12, 8), torch.randn(12, 8)).label(WORDS, WORDS)
MANY = it.attend(torch.randn(2, 3, 12, 8), torch.randn(2, 3, 12, 8)).label(WORDS, WORDS)
IT, ROAD = WORDS.index("it"), WORDS.index("road")


@pytest.mark.parametrize(
    ("named", "same"),
    [
        (lambda A: A["it"], lambda A: A[..., IT, :]),
        (lambda A: A["it", "road"], lambda A: A[..., IT, ROAD]),
        (lambda A: A["it", 3], lambda A: A[..., IT, 3]),
        (lambda A: A["it", :4], lambda A: A[..., IT, :4]),
        (lambda A: A[..., "road"], lambda A: A[..., ROAD]),
        (lambda A: A[..., 2:5, "road"], lambda A: A[..., 2:5, ROAD]),
        (lambda A: A[["it", "road"]], lambda A: A[..., [IT, ROAD], :]),
        (lambda A: A[..., ["it", "road"], ["wide", "."]], lambda A: A[..., [IT, ROAD], [10, 11]]),
    ],
)
def test_labels_name_rows_and_columns(named: Any, same: Any) -> None:
    for A in (ONE, MANY, MANY.mean_heads(), MANY[0], MANY.mT, it.Dense(ONE.dense(), ONE.labels)):
        assert torch.equal(named(A), same(A))
    for matrix in (ONE, MANY):
        assert torch.equal(named(matrix.scores), same(matrix.scores))


def test_labels_follow_leading_positions() -> None:
    assert torch.equal(MANY[1, 2, "it"], MANY[1, 2, IT])
    assert torch.equal(MANY[1, "it"], MANY[1, :, IT])
    assert torch.equal(MANY[1, "it", "road"], MANY[1, :, IT, ROAD])
    assert torch.equal(MANY[:, 2, "it", "road"], MANY[:, 2, IT, ROAD])
    assert torch.equal(ONE[:, "road"], ONE[:, ROAD])


@pytest.mark.parametrize("piece", ["▁it", "Ġit", "it</w>", " it"])
def test_a_word_names_the_token_that_a_tokenizer_writes(piece: str) -> None:
    A = ONE.label([piece if word == "it" else word for word in WORDS])
    assert torch.equal(A["it"], ONE[IT]) and torch.equal(A[piece], ONE[IT])


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ONE.label(["a"] * 12)["a"], "'a' at 0, 1, 2.* positions, such as A"),
        (lambda: ONE["it", "nope"], "one of the labels of columns, 'The', 'animal'.*got 'nope'"),
        (lambda: it.attend(torch.ones(2, 2), torch.ones(2, 2))["it"], "The rows have no labels"),
        (lambda: MANY["it", ...], "positions along leading axes; got 'it'"),
        (lambda: ONE["it", "road", "wide"], "positions along leading axes; got 'it'"),
    ],
)
def test_labels_that_name_nothing_are_answered(call: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        call()
