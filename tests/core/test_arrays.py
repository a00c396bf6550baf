"""Lists, NumPy arrays and integers become tensors once, and are copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import intently as it
from intently import reference
from intently.errors import ArgumentError, KindError
from intently.foundation.arrays import as_tensor, as_tensors

from ..messages import raises, refused


def test_a_floating_point_tensor_is_returned_as_it_is() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.ones(2, 3, dtype=dtype, requires_grad=True)
        assert as_tensor(x, "x") is x
        assert as_tensor(x, "x", like=torch.ones(1)) is x


@pytest.mark.parametrize(
    "value",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2), (3, 4)),
        [range(1, 3), range(3, 5)],
        [np.array([1, 2]), [3, 4]],
        np.array([[1, 2], [3, 4]]),
        np.array([[1, 2], [3, 4]], np.uint8),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8),
    ],
)
def test_lists_and_integers_have_the_default_dtype(value: Any) -> None:
    want = [[1.0, 2.0], [3.0, 4.0]]
    assert as_tensor(value, "x").dtype is torch.float32
    assert as_tensor(value, "x").tolist() == want
    torch.set_default_dtype(torch.float64)
    try:
        assert as_tensor(value, "x").dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    half = as_tensor(value, "x", like=torch.ones(1, dtype=torch.bfloat16))
    assert half.dtype is torch.bfloat16 and half.tolist() == want


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8"])
def test_floating_point_arrays_keep_their_dtype(dtype: str) -> None:
    x = np.arange(6).astype(dtype).reshape(2, 3)[::-1, ::-1]
    found = as_tensor(x, "x", like=torch.ones(1, dtype=torch.bfloat16))
    assert str(found.dtype) == f"torch.float{8 * x.dtype.itemsize}"
    assert found.tolist() == x.tolist()
    assert as_tensor(x[0, 0], "x").dtype is found.dtype


@pytest.mark.parametrize(
    "value",
    [np.ones((2, 3)), np.ones((2, 3), np.float32), np.ones((2, 3), int), torch.ones(2, 3).long()],
)
def test_what_is_no_floating_point_tensor_is_copied(value: Any) -> None:
    found = as_tensor(value, "x")
    value[:] = 7
    assert found.eq(1).all()


def test_operands_without_a_dtype_follow_the_one_that_has_one() -> None:
    lists = as_tensors(q=[[1, 2]], k=[[3, 4]])
    assert [x.dtype for x in lists] == [torch.float32] * 2
    half = torch.ones(1, 2).half()
    found = as_tensors(q=[[1, 2]], k=np.ones((1, 2)), v=half)
    assert [x.dtype for x in found] == [torch.float16, torch.float64, torch.float16]
    assert found[2] is half


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1.0], [1.0, 2.0]], "q: expected numbers in rows of one length; got a ragged list."),
        (
            [True, False],
            "q: expected real numbers: a tensor, a NumPy array or a list of them; got "
            "booleans. Booleans say who may attend: mask=.",
        ),
        ([1.0, True], "q: expected real numbers: a tensor, a NumPy array or a list of them; got b"),
        (
            np.ones(2, bool),
            "q: expected real numbers: a tensor, a NumPy array or a list of them; "
            "got dtype bool. Booleans say who may attend: mask=.",
        ),
        (
            torch.ones(2).bool(),
            "q: expected real numbers: a tensor, a NumPy array or a list of "
            "them; got dtype torch.bool. Booleans say who may attend: mask=.",
        ),
        (True, "q: expected real numbers: a tensor, a NumPy array or a list of them; got bool."),
        ([torch.ones(2)], "q: expected numbers; got a list of tensors. Use torch.stack(…)."),
        (
            np.ones(2, complex),
            "q: expected real numbers: a tensor, a NumPy array or a list of "
            "them; got dtype complex128.",
        ),
        (
            torch.ones(2) * 1j,
            "q: expected real numbers: a tensor, a NumPy array or a list of them; "
            "got dtype torch.complex64.",
        ),
        ([1j], "q: expected real numbers: a tensor, a NumPy array or a list of them; got dtype c"),
        ([None], "q: expected real numbers: a tensor, a NumPy array or a list of them; got dtype"),
        ([2**70], "q: expected real numbers: a tensor, a NumPy array or a list of them; got dtype"),
        (["a"], "q: expected real numbers: a tensor, a NumPy array or a list of them; got dtype <"),
        ("ab", "q: expected real numbers: a tensor, a NumPy array or a list of them; got str."),
        (None, "q: expected real numbers: a tensor, a NumPy array or a list of them; got NoneType"),
        (
            np.ma.masked_equal([1.0, 2.0], 2.0),
            "q: expected real numbers: a tensor, a NumPy array or a list of them; got MaskedArray.",
        ),
    ],
)
def test_what_holds_no_real_numbers_is_refused_by_name(value: Any, text: str) -> None:
    refused(lambda: as_tensor(value, "q"), KindError, text)


Q, K, V = [[1, 0], [2, -1]], [[2, 0], [0, 2], [1, 1]], [[1], [2], [4]]


class TestAttention:
    """`attend`, `attention` and ``A @ v`` with what people learn with."""

    @pytest.mark.parametrize("as_what", [list, np.array, torch.tensor, tuple])
    def test_whole_numbers(self, as_what: Any) -> None:
        q, k, v = (as_what(x) for x in (Q, K, V))
        y = it.attention(q, k, v, scale=1)
        expected = torch.tensor(reference.attention(Q, K, V, scale=1)).float()
        torch.testing.assert_close(y, expected)
        A = it.attend(q, k, scale=1)
        assert A.dtype is torch.float32
        torch.testing.assert_close(A @ v, expected)
        torch.testing.assert_close(A.mT @ Q, A.dense().mT @ torch.tensor(Q).float())
        assert A.plan(v).kernel == A.plan(torch.tensor(V).float()).kernel

    def test_the_dtype_of_the_first_that_has_one(self) -> None:
        for dtype in (np.float16, np.float32, np.float64):
            x = np.array(K, dtype)
            for y in (
                it.attention(Q, x, V),
                it.attention(np.array(Q, dtype), K, V),
                it.attention(Q, K, np.array(V, dtype)),
                it.attend(Q, x) @ V,
            ):
                assert y.numpy().dtype == dtype
        half = torch.tensor(Q).bfloat16()
        assert it.attention(half, K, V).dtype is torch.bfloat16
        text = "k: expected dtype and device of q, torch.bfl"
        refused(lambda: it.attend(half, np.array(K, np.float32)), KindError, text)

    def test_no_change_of_an_array_is_seen(self) -> None:
        q, k, mask = np.array(Q, float), np.array(K), np.array([True, True, False])
        lengths, bias = np.array(2), np.zeros(3)
        A = it.attend(q, k, mask=it.padding(lengths) & mask, bias=bias)
        expected = A.dense()
        for x in (q, k, mask, bias):
            x[:] = 1
        lengths[()] = 3
        assert torch.equal(A.dense(), expected) and expected[0, 2] == 0

    def test_masks_biases_scales_and_sinks(self) -> None:
        x = torch.randn(2, 2, 3, 4).double()
        pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"mask": [True, False, True]}, {"mask": torch.tensor([True, False, True])}),
            ({"mask": it.padding([1, 3])}, {"mask": it.padding(torch.tensor([1, 3]))}),
            ({"mask": it.prefix([1, 2])}, {"mask": it.prefix(torch.tensor([1, 2]))}),
            ({"mask": it.causal([0, 1])}, {"mask": it.causal(torch.tensor([0, 1]))}),
            ({"mask": it.segments([0, 0, 1])}, {"mask": it.segments(torch.tensor([0, 0, 1]))}),
            (
                {"mask": it.causal() & [True, False, True]},
                {"mask": it.causal() & torch.tensor([True, False, True])},
            ),
            ({"bias": [0, 1, 2]}, {"bias": torch.arange(3.0)}),
            ({"sinks": [1, 2]}, {"sinks": torch.tensor([1.0, 2.0])}),
            ({"scale": [[[1]], [[2]]]}, {"scale": torch.tensor([[[1.0]], [[2.0]]])}),
        ]
        for ours, theirs in pairs:
            assert torch.equal(it.attend(x, x, **ours).dense(), it.attend(x, x, **theirs).dense())


K = [[1, 0], [0, 1], [1, 1]]


@pytest.mark.filterwarnings("error")
def test_masks_of_any_layout() -> None:
    expected = it.attend([[1, 0]], K, mask=[True, False, True]).dense()
    for mask in (np.array([True, False, True])[::-1], [np.array([True, False, True])]):
        assert torch.equal(it.attend([[1, 0]], K, mask=mask).dense(), expected)
    assert repr(it.padding(np.array([3, 2])[::-1])) == "padding([2, 3])"


test_what_is_no_number_is_refused_in_a_few_words = raises(
    {
        ArgumentError: {
            "scale: expected a finite number, a tensor () or (…, 1, 1), or None; got "
            "True.": lambda: it.attend([[1, 0]], K, scale=True),
            "softcap: expected a finite number > 0, or None; got True.": lambda: it.attend(
                [[1, 0]], K, softcap=True
            ),
        },
        KindError: {
            "q: expected real numbers: a tensor, a NumPy array or a list of them; got booleans. "
            "Booleans say who may attend: mask=.": lambda: it.attend(
                [np.array([True, False]), [1, 0]], K
            ),
            "keys: expected positions, or booleans; got 'a'.": lambda: it.attend([[1, 0]], K).mass(
                "a"
            ),
            "mask: expected a boolean tensor, True where a query may attend; got dtype "
            "torch.float64. Numbers to add are a bias. Pass it as bias=, or write "
            "`mask == 0` if all else in it is very negative.": lambda: it.attend(
                [[1, 0]], K, mask=np.zeros((30, 30))
            ),
        },
    },
    whole=True,
)
