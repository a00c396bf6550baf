"""Scores against their NumPy formula, their derivatives, their memory and their messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import intently as it
from intently import reference, scores
from intently.core.masks.geometry import Geometry
from intently.core.scores import Additive, Cosine, Dot, General, Score, concat
from intently.foundation.values import Value, freeze, thaw

from ..combinations import each, pairs
from .formula import Largest, random, serving

B, H, T, S, D, DK, A = 2, 4, 3, 5, 4, 6, 3


def array(*tensors: Tensor) -> list[np.ndarray]:
    return [x.detach().double().numpy() for x in tensors]


def bilinear(*lead: int) -> tuple[Score, reference.Score, int]:
    w = random(*lead, D, DK, seed=3)
    return General(w), reference.general(*array(w)), DK


def units(*lead: int, bias: bool = False) -> tuple[Score, reference.Score, int]:
    own = [random(*lead, A, D, seed=3), random(*lead, A, DK, seed=4), random(*lead, A, seed=5)]
    own += [random(*lead, A, seed=6)] if bias else []
    return Additive(*own), reference.additive(*array(*own)), DK


def side_by_side() -> tuple[Score, reference.Score, int]:
    w, v = random(A, D + DK, seed=3), random(A, seed=5)
    wide, energy = array(w, v)

    def score(q: np.ndarray, k: np.ndarray) -> np.ndarray:
        t, s = q.shape[-2], k.shape[-2]
        q = np.broadcast_to(q[..., :, None, :], (*q.shape[:-1], s, q.shape[-1]))
        k = np.broadcast_to(k[..., None, :, :], (*k.shape[:-2], t, *k.shape[-2:]))
        return np.tanh(np.concatenate([q, k], -1) @ wide.T) @ energy

    return concat(w, v, D), score, DK


SCORES: dict[str, Callable[[], tuple[Score, reference.Score, int]]] = {
    "dot": lambda: (Dot(), reference.dot, D),
    "cosine": lambda: (Cosine(), reference.cosine, D),
    "general": bilinear,
    "general of each head": lambda: bilinear(H),
    "additive": units,
    "additive with a bias": lambda: units(bias=True),
    "additive of each head": lambda: units(H, bias=True),
    "additive of one head for all": lambda: units(1),
    "concat": side_by_side,
}


@pairs({"kernel": it.kernels.available(), "g": [H, 2, 1], "name": SCORES})
def test_every_kernel_gives_the_formula(name: str, g: int, kernel: str) -> None:
    score, formula, d_k = SCORES[name]()
    q, k, v = random(B, H, T, D), random(B, g, S, d_k, seed=1), random(B, g, S, 7, seed=2)
    options: dict[str, Any] = {"bias": random(T, S, seed=8), "softcap": 3.0}
    matrix = it.attend(q, k, score=score, mask=it.causal(), **options)
    mask = np.tri(T, S, S - T, dtype=bool)
    options = {"score": formula, "mask": mask, "bias": options["bias"].numpy(), "softcap": 3.0}
    q_, k_, v_ = array(q, k, v)
    k_ = k_ if g > 1 else np.repeat(k_, H, 1)
    with serving(kernel):
        y = matrix @ v
    np.testing.assert_allclose(
        y, reference.attention(q_, k_, v_, **options), rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(
        matrix.dense(), reference.weights(q_, k_, **options), rtol=1e-11, atol=1e-13
    )
    np.testing.assert_allclose(matrix.lse, reference.lse(q_, k_, **options), rtol=1e-11, atol=1e-13)


@each({"dtype": [torch.float32, torch.bfloat16, torch.float16], "name": SCORES})
def test_tensors_of_a_score_are_cast_to_the_dtype_of_the_sum(name: str, dtype: torch.dtype) -> None:
    score, formula, d_k = SCORES[name]()
    q, k = random(B, H, T, D).to(dtype), random(B, H, S, d_k, seed=1).to(dtype)
    found = it.attend(q, k, score=score).dense()
    assert found.dtype is dtype
    expected = reference.weights(*array(q, k), score=formula)
    np.testing.assert_allclose(found.double(), expected, atol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", [name for name in SCORES if "head" not in name])
def test_learners_shapes_without_batch_and_heads(name: str) -> None:
    score, formula, d_k = SCORES[name]()
    q, k = random(T, D), random(S, d_k, seed=1)
    found = it.attend(q, k, score=score, scale=1).scores[...]
    np.testing.assert_allclose(found, formula(*array(q, k)), atol=1e-14, rtol=1e-12)


def test_only_the_dot_product_is_scaled() -> None:
    q, k = random(T, D), random(S, D, seed=1)
    assert Dot().default_scale(16) == 0.25 and Dot().default_scale(0) == 1
    plain = it.attend(q, k, score=General(torch.eye(D, dtype=q.dtype)))
    torch.testing.assert_close(plain.scores[...], q @ k.mT)
    torch.testing.assert_close(it.attend(q, k).scores[...], q @ k.mT / 2)
    torch.testing.assert_close(plain.dense(), it.attend(q, k, scale=1).dense())


@each({"index": [(0,), (slice(None), 1), (1, slice(1, 3)), (0, [3, 1])], "name": SCORES}, times=2)
def test_a_part_of_the_matrix_has_its_part_of_the_score(name: str, index: tuple) -> None:
    score, _, d_k = SCORES[name]()
    q, k = random(B, H, T, D), random(B, H, S, d_k, seed=1)
    g = Geometry((B, H), T, S, q.device)
    whole = score(q, k)
    torch.testing.assert_close(score.part(index, g)(q[index], k[index]), whole[index])
    matrix = it.attend(q, k, score=score)
    torch.testing.assert_close(matrix[(*index, ...)].dense(), matrix.dense()[index])


@pytest.mark.parametrize("name", SCORES)
def test_a_score_survives_being_written_and_read(name: str) -> None:
    score, _, d_k = SCORES[name]()
    q, k = random(B, H, T, D), random(B, H, S, d_k, seed=1)
    (again,) = thaw(*freeze(score))
    assert isinstance(again, Value) and repr(again) == repr(score)
    assert torch.equal(again(q, k), score(q, k))  # type: ignore[operator]


def test_repr_says_the_shapes() -> None:
    assert repr(Dot()) == "Dot()" and repr(Cosine()) == "Cosine()"
    assert repr(bilinear(H)[0]) == "General(4×4×6 tensor)"
    assert repr(units(bias=True)[0]) == "Additive(3×4 tensor, 3×6 tensor, 3 tensor, 3 tensor)"


# --- derivatives --------------------------------------------------------------------------------


def axes_of(score: Score) -> list[tuple[Tensor, int]]:
    """The tensors of a score, and the axes that each has without those of heads."""
    axes = (2, 2, 1, 1) if isinstance(score, Additive) else (2,)
    return list(zip(score.tensors(), axes))


def learned(*shape: int, seed: int) -> Tensor:
    return random(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("slice_", [2**20, 5])
@pytest.mark.parametrize("name", SCORES)
def test_derivatives(name: str, slice_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SLICE", slice_)
    score, _, d_k = SCORES[name]()
    q, k = learned(2, 2, D, seed=1), learned(2, 3, d_k, seed=2)
    heads = tuple(x[:2].detach() if x.ndim > n else x for x, n in axes_of(score))
    own = tuple(x.clone().requires_grad_() for x in heads)

    def f(q: Tensor, k: Tensor, *own: Tensor) -> Tensor:
        return type(score)(*own)(q, k)

    inputs = (q, k, *own)
    assert torch.autograd.gradcheck(f, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, inputs, check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("slice_", [2**20, 5])
@pytest.mark.parametrize("name", SCORES)
def test_torch_func(name: str, slice_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "SLICE", slice_)
    score, _, d_k = SCORES[name]()
    if any(x.ndim > n for x, n in axes_of(score)):
        score = type(score)(*[x[0] for x in score.tensors()])
    q, k = random(B, T, D), random(B, S, d_k, seed=1)
    torch.testing.assert_close(torch.vmap(score)(q, k), score(q, k))

    def f(q: Tensor, k: Tensor) -> Tensor:
        return score(q, k).sin().sum()

    slopes = torch.vmap(torch.func.grad(f))(q, k)
    x = q.clone().requires_grad_()
    torch.testing.assert_close(slopes, torch.autograd.grad(f(x, k), x)[0])
    curves = torch.func.hessian(f)(q[0], k[0])
    x = q[0].clone().requires_grad_()
    torch.testing.assert_close(curves, torch.autograd.functional.hessian(lambda y: f(y, k[0]), x))


@pytest.mark.parametrize("name", SCORES)
def test_compiles_into_one_graph(name: str) -> None:
    score, _, d_k = SCORES[name]()
    q, k = learned(B, H, T, D, seed=0), learned(B, H, S, d_k, seed=1)
    torch._dynamo.reset()  # pyright: ignore[reportPrivateImportUsage]
    compiled = torch.compile(lambda q, k: score(q, k), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        torch.autograd.grad(compiled(q, k).sin().sum(), (q, k)),
        torch.autograd.grad(score(q, k).sin().sum(), (q, k)),
    )


# --- additive: slices ---------------------------------------------------------------------------


@given(
    n=st.integers(1, 5),
    t=st.integers(0, 9),
    s=st.integers(0, 9),
    a=st.integers(1, 4),
    limit=st.integers(1, 200),
)
def test_slices_join_to_the_whole(n: int, t: int, s: int, a: int, limit: int) -> None:
    score = Additive(random(a, D), random(n, a, D, seed=1), random(a, seed=2), random(a, seed=3))
    q, k = random(n, t, D, seed=4).requires_grad_(), random(1, s, D, seed=5).requires_grad_()
    w, u, v, b = score.parts
    units = torch.tanh((q @ w.mT)[..., None, :] + (k @ u.mT + b)[..., None, :, :])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "SLICE", limit)
        found = score(q, k)
        slopes = torch.autograd.grad(found.sin().sum(), (q, k))
    torch.testing.assert_close(found, units @ v)
    torch.testing.assert_close(slopes, torch.autograd.grad((units @ v).sin().sum(), (q, k)))


def test_additive_never_builds_all_of_its_units(monkeypatch: pytest.MonkeyPatch) -> None:
    n, t, s, a = 2, 64, 48, 32
    monkeypatch.setattr(scores, "SLICE", 2**12)
    score = Additive(random(a, D), random(a, D, seed=1), random(a, seed=2))
    q, k = learned(n, t, D, seed=3), learned(n, s, D, seed=4)
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.itemsize
        return x

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            z = score(q, k)
        z.sum().backward()
    assert n * t * s <= largest.numbers <= max(2 * n * t * s, 2**12) < n * t * s * a // 10
    assert sum(kept.values()) <= 4 * n * (t + s) * a < n * t * s * a // 5


# --- cosine: vectors without a direction ---------------------------------------------------------


def test_cosine_of_zero_vectors_is_zero_with_zero_gradients() -> None:
    q = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).requires_grad_()
    k = torch.tensor([[0.0, 0.0], [2.0, 0.0]]).requires_grad_()
    z = Cosine()(q, k)
    torch.testing.assert_close(z, torch.tensor([[0, 0], [0, 0.5**0.5]]))
    for x in torch.autograd.grad(z.sum(), (q, k), create_graph=True):
        assert x.isfinite().all() and x[0].tolist() == [0, 0]
        assert all(
            y is None or y.isfinite().all()
            for y in torch.autograd.grad(x.sum(), (q, k), retain_graph=True, allow_unused=True)
        )
    assert Cosine()(torch.ones(2, 0), torch.ones(3, 0)).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_cosine_neither_overflows_nor_vanishes(size: float) -> None:
    q, k = random(4, 3).float() * size, random(5, 3, seed=1).float()
    torch.testing.assert_close(Cosine()(q, k), Cosine()(q / size, k))
    assert Cosine()(q, q).diagonal().tolist() == pytest.approx([1] * 4)


# --- concat ---------------------------------------------------------------------------------------


def test_concat_halves_its_columns_unless_told() -> None:
    w, v = random(A, 8), random(A, seed=1)
    q, k = random(T, 4), random(S, 4, seed=2)
    assert torch.equal(concat(w, v)(q, k), Additive(w[:, :4], w[:, 4:], v)(q, k))
    k = random(S, 6, seed=2)
    q = random(T, 2)
    assert torch.equal(concat(w, v, 2)(q, k), Additive(w[:, :2], w[:, 2:], v)(q, k))


def test_a_matrix_notices_that_a_weight_changed() -> None:
    w, v = random(A, 8), random(A, seed=1)
    matrix = it.attend(random(T, 4), random(S, 4), score=concat(w, v))
    w.add_(1)
    with pytest.raises(it.errors.StaleError):
        matrix.dense()
