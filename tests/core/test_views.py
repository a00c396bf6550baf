"""The other lazy matrices: transpose, mean of heads, dense, stacked rows, words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KindError

from ..messages import raises, refused
from .formula import EPS, families, random

B, H, T, S = 2, 4, 5, 7


def attention(
    family: str = "allowed", dtype: torch.dtype = torch.float64, g: int = 2
) -> it.Attention:
    q, k = random(B, H, T, 4, dtype=dtype, seed=1), random(B, g, S, 4, dtype=dtype, seed=2)
    return it.attend(q, k, mask=families(B, H, T, S)[family][0])


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-12)


class TestTransposed:
    def test_labels_change_sides(self) -> None:
        A = attention().label([*"abcde"], [*"tuvwxyz"])
        assert A.mT.labels == (A.labels[1], A.labels[0])
        assert A.mT.label(columns=[*"ABCDE"]).mT.labels == (tuple("ABCDE"), A.labels[1])

    @pytest.mark.parametrize("dtype", EPS, ids=str)
    def test_many_rows_of_a_half_type_do_not_drown(
        self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "intently.core.matrix.statistics.BLOCK", 6
        )  # three rows: a thousand sums
        n = 3000
        A = it.attend(torch.zeros(n, 1, dtype=dtype), torch.zeros(2, 1, dtype=dtype))
        y = A.mT @ torch.ones(n, 1, dtype=dtype)
        assert y.dtype is dtype
        torch.testing.assert_close(y.float(), torch.full((2, 1), n / 2), rtol=0.01, atol=0)

    def test_no_rows(self) -> None:
        A = it.attend(random(2, 0, 3), random(2, 4, 3))
        assert torch.equal(A.mT @ random(2, 0, 5), torch.zeros(2, 4, 5, dtype=torch.float64))


class TestDense:
    @pytest.mark.usefixtures("as_users_call")
    def test_it_answers(self) -> None:
        w = attention().dense()
        D = it.Dense(w, (list("abcde"), None))  # type: ignore[arg-type]
        assert D.labels == (tuple("abcde"), None) and D.shape == w.shape
        assert torch.equal(D @ random(S, 2), w @ random(S, 2))
        assert torch.equal(D[0, 1, [1, 0], 3], w[0, 1, [1, 0], 3])
        assert D[0].labels == D.labels
        assert it.Dense(D.mT.dense()).mT[..., 1, :].equal(w[..., 1, :])

    def test_lists_arrays_and_integers(self) -> None:
        w = np.array([[0.5, 0.5], [0.0, 1.0]])
        for given in (w.tolist(), w, w.astype(np.float32), torch.eye(2).long()):
            D = it.Dense(given)
            assert D.dense().tolist() == np.asarray(given).tolist()
            assert (D @ [[1], [2]]).shape == (2, 1)
        D = it.Dense(w)
        w[:] = 7
        assert D.dtype is torch.float64 and D.argmax().tolist() == [0, 1]


class TestStacked:
    def test_rows_of_a_generation(self) -> None:
        """One query at a time against growing keys is causal attention row by row."""
        q, k, v = (random(H, 6, 4, seed=i) for i in range(3))
        steps = [it.attend(q[:, i : i + 1], k[:, : i + 1]) for i in range(6)]
        whole = it.attend(q, k, mask=it.causal())
        A = it.stack_rows(steps)
        assert A.shape == whole.shape == (H, 6, 6)
        close(A.dense(), whole.dense())
        close(A @ v, whole @ v)
        close(A[1].dense(), whole[1].dense())
        close(A.mT @ v, whole.mT @ v)
        for rows in ([4, 1], [2, 0, 1], [5, 5, 0], [0], [], [1, 1]):
            close(A[..., rows, :], whole.dense()[..., rows, :])
            close(A[..., rows, [5, 0, 2]], whole.dense()[..., rows, :][..., [5, 0, 2]])
            assert A[..., rows, [1, 2]].dtype is torch.float64


class TestMerged:
    def test_thirds_are_exact_in_float64(self) -> None:
        ones = it.Dense(torch.ones(3, 1, dtype=torch.float64))
        assert it.Merged(ones, [[0, 1, 2]], [[0]]).dense().item() == pytest.approx(1, abs=1e-15)

    def test_words_without_tokens_and_no_words_at_all(self) -> None:
        A = attention()[0, 0]
        assert it.Merged(A, [[], [1]], [[0], []]).dense()[0].tolist() == [0, 0]
        assert it.Merged(A, [], [[0]]).dense().shape == (0, 1)
        assert it.Merged(A, [[0]], []).dense().shape == (1, 0)


test_refused = raises(
    {
        ArgumentError: {
            "mean_heads: expected a matrix (…, h, t, s); got shape (5, 7)": lambda: attention()[
                0, 0
            ].mean_heads(),
            "weights: expected numbers (…, t, s); got shape (3,).": lambda: it.Dense(torch.ones(3)),
            "matrices: expected at least one matrix; got none": lambda: it.stack_rows([]),
            "matrices: expected the same leading axes in all": lambda: it.stack_rows(
                [attention(), attention()[0]]
            ),
            "rows: expected positions from 0 to 4; got [5]. They belong": lambda: it.Merged(
                attention(), [[0, 5]], [[0]]
            ),
            "columns: expected positions from 0 to 6; got [-1]": lambda: it.Merged(
                attention(), [[0]], [[-1]]
            ),
        },
        KindError: {
            "weights: expected real numbers: a tensor, a NumPy array or a list "
            "of them; got booleans.": lambda: it.Dense([[True]])
        },
    }
)


@pytest.mark.parametrize("name", ["attention", "transposed", "mean", "dense", "stacked", "merged"])
class TestAll:
    def make(self, name: str, dtype: torch.dtype = torch.float64) -> it.LazyMatrix:
        A = attention(g=4, dtype=dtype)
        return {
            "attention": lambda: A,
            "transposed": lambda: A.mT,
            "mean": A.mean_heads,
            "dense": lambda: it.Dense(A.dense()),
            "stacked": lambda: it.stack_rows([A, A]),
            "merged": lambda: it.Merged(A, [[0, 1], [2]], [[0], [1]]),
        }[name]()

    def test_labels(self, name: str) -> None:
        A = self.make(name)
        t, s = A.shape[-2:]
        rows, columns = [f"q{i}" for i in range(t)], [f"k{i}" for i in range(s)]
        B = A.label(rows).label(columns=columns)
        assert B.labels == (tuple(rows), tuple(columns)) and A.labels == (None, None)
        assert type(B) is type(A) and torch.equal(B.dense(), A.dense())
        assert B[0].labels == B.labels and B.to("cpu").labels == B.labels
        assert B[..., 0, :].shape == A.dense()[..., 0, :].shape
        text = f"rows: expected {t} labels; got {t + 1}"
        refused(lambda: A.label([*rows, "x"]), ArgumentError, text)
        refused(lambda: A.label(columns=[]), ArgumentError, f"columns: expected {s} labels; got 0")

    def test_moving_to_the_same_device(self, name: str) -> None:
        A = self.make(name)
        assert torch.equal(A.to("cpu").dense(), A.dense())
        assert A.to(torch.device("cpu")).device == A.device == torch.device("cpu")

    def test_repr_says_what_computes(self, name: str) -> None:
        A = self.make(name)
        assert repr(A).startswith(
            f"{type(A).__name__}(shape=({', '.join(map(str, A.shape))}), dtype=torch.float64)"
        )
        assert "A @ v" in repr(A) and "A.dense()" in repr(A)

    @pytest.mark.usefixtures("as_users_call")
    def test_products_are_checked(self, name: str) -> None:
        A = self.make(name)
        s = A.shape[-1]
        refused(
            lambda: A @ torch.ones(s + 1, 2, dtype=torch.float64),
            ArgumentError,
            f"v: expected shape (…, s={s}, e); got shape ({s + 1}, 2). "
            "V holds one row for each key.",
            whole=True,
        )
        for v, kind, text in (
            (torch.ones(s, dtype=torch.float64), ArgumentError, "v: expected shape (…, s="),
            (torch.ones(s, 2), KindError, "v: expected dtype and device of the matrix, torch.flo"),
            (None, KindError, "v: expected real numbers: "),
        ):
            refused(lambda v=v: A @ v, kind, text)

    def test_products_take_lists_arrays_and_integers(self, name: str) -> None:
        A = self.make(name)
        n = torch.arange(2 * A.shape[-1]).view(-1, 2)
        expected = A @ n.double()
        for v in (n, n.int(), n.tolist(), n.numpy(), n.double().numpy()):
            assert torch.equal(A @ v, expected) and (A @ v).dtype is torch.float64

    def test_autocast_counts_where_the_matrix_is_made(self, name: str) -> None:
        """Values are cast as they are for `A @ v`, whatever the view."""
        with torch.autocast("cpu", torch.bfloat16):
            A = self.make(name, torch.float32)
            v = torch.ones(A.shape[-1], 2)
            inside = A @ v
        assert A.dtype is inside.dtype is torch.bfloat16
        assert torch.equal(inside, A @ v) and torch.equal(inside, A @ v.bfloat16())
        with pytest.raises(KindError, match=r"torch\.bfloat16 on cpu; got torch\.float64 on cpu"):
            A @ v.double()
        with torch.autocast("cpu", torch.bfloat16):
            B = self.make(name)
            assert (B @ v.double()).dtype is torch.float64


def test_nan_that_only_rows_outside_of_all_words_may_see_reaches_no_word() -> None:
    A = it.attend(torch.zeros(2, 1), torch.zeros(2, 1), mask=it.causal())
    merged = it.Merged(A, rows=[[0]], columns=[[0], [1]])
    assert (merged @ torch.tensor([[1.0], [torch.nan]])).tolist() == [[1.0]]
