"""Laziness is safe: no stale answers, no silent building, gradients where they are asked for."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently.core.matrix.blocks import InBlocks
from intently.errors import AbsentError, KindError, MemoryRefused, StaleError

from ..combinations import each
from ..messages import refused
from .formula import random

B, H, T, S, D = 2, 2, 4, 5, 3


def tensors() -> dict[str, Tensor]:
    return {
        "q": random(B, H, T, D, seed=1),
        "k": random(B, H, S, D, seed=2),
        "bias": random(T, S, seed=3),
        "sinks": random(H, seed=4),
        "mask": random(T, S, seed=5) > -1,
        "lengths": torch.tensor([3, 5]),
        "scale": torch.tensor(0.5, dtype=torch.float64),
    }


def made(x: dict[str, Tensor]) -> it.Attention:
    mask = it.allowed(x["mask"]) & it.padding(x["lengths"])
    return it.attend(x["q"], x["k"], mask=mask, bias=x["bias"], sinks=x["sinks"], scale=x["scale"])


ASKED: dict[str, Callable[[it.LazyMatrix], object]] = {
    "product": lambda A: A @ random(S, 2),
    "dense": lambda A: A.dense(),
    "piece": lambda A: A[..., 0, :],
    "part": lambda A: A[0],
    "top": lambda A: A.top(1),
    "lse": lambda A: A.lse,  # type: ignore[attr-defined]
    "scores": lambda A: A.scores[...],  # type: ignore[attr-defined]
    "transposed product": lambda A: A.mT @ random(T, 2),
    "mean of heads": lambda A: A.mean_heads().dense(),
    "moved": lambda A: A.to("cpu"),
    "labelled": lambda A: A.label([*"abcd"]),
    "copied": copy.deepcopy,
    "pickled": pickle.dumps,
    "array": np.asarray,
}


@pytest.mark.parametrize("name", ["q", "k", "mask", "scores", "lse", "plan"])
def test_weights_alone_refuse_by_name_what_queries_and_keys_give(name: str) -> None:
    A = made(tensors())
    blocks = InBlocks(torch.ones(1, 2, 2), torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), 2, 2)
    assert hasattr(A, name) and name not in dir(it.Dense)
    for other in (it.Dense(A.dense()), A.mT, A.mean_heads(), blocks):
        assert not hasattr(other, name)
        refused(
            lambda other=other: getattr(other, name),
            AbsentError,
            f"A.{name}: expected a matrix of queries and keys, as attend makes it; got "
            f"{type(other).__name__}. What watch keeps as weights has neither; its coverage() says "
            "why. A[..., rows, cols], A.dense() and all statistics need the weights only.",
        )
    with pytest.raises(AttributeError, match="'Dense' object has no attribute 'score'"):
        it.Dense(A.dense()).score  # type: ignore[attr-defined]  # noqa: B018


@each({"name": tensors(), "what": ASKED}, times=2)
def test_a_change_in_place_makes_it_stale(what: str, name: str) -> None:
    x = tensors()
    A = made(x)
    ASKED[what](A)
    with torch.no_grad():
        x[name][..., :1].zero_() if x[name].ndim else x[name].zero_()
    refused(
        lambda: ASKED[what](A),
        StaleError,
        "matrix: expected q, k, mask and bias as they were when it was made; got a tensor of "
        f"shape {tuple(x[name].shape)} changed in place since. Ask before the change, or make it "
        "from copies: it.attend(q.clone(), …).",
        whole=True,
    )


def test_parts_and_views_become_stale_too() -> None:
    x = tensors()
    A = made(x)
    views = [A[0], A[:, 1], A.mT, A.mean_heads(), A.label([*"abcd"]), it.stack_rows([A])]
    x["q"].view(-1)[0] = 1  # through another view of the same storage
    for view in views:
        with pytest.raises(StaleError):
            view.dense()


def test_copies_are_free_of_the_original() -> None:
    x = tensors()
    x["q"] += 1  # a version above 0
    A = made(x).label([*"abcd"])
    dense = A.dense()
    others = [copy.deepcopy(A), pickle.loads(pickle.dumps(A))]
    x["q"].zero_()
    for other in others:
        assert torch.equal(other.dense(), dense) and other.labels == A.labels
        assert repr(other.mask) == repr(A.mask)


@pytest.mark.parametrize(
    "view", [lambda A: A.mT, lambda A: A.mean_heads(), lambda A: it.stack_rows([A])]
)
def test_views_can_be_copied_and_pickled(view: Callable[[it.LazyMatrix], it.LazyMatrix]) -> None:
    A = view(made(tensors()))
    for other in (copy.deepcopy(A), pickle.loads(pickle.dumps(A))):
        assert torch.equal(other.dense(), A.dense())


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    """A matrix that no memory could hold is made, described and indexed at once."""
    q = torch.ones(1, 1).expand(10**8, 1)
    A = it.attend(q, q, mask=it.causal())
    assert A.shape == (10**8, 10**8) and A.mT.shape == A.shape
    assert A.plan().kernel in ("native", "torch_fused")
    refused(
        lambda: A.dense(),
        MemoryRefused,
        "dense: expected at most max_bytes=1,073,741,824 bytes; got 40,000,000,000,000,000 bytes "
        "for shape (100000000, 100000000). Take A[..., rows, cols], A.pool(rows, cols) or "
        "A.top(n), or raise max_bytes.",
        whole=True,
    )
    for convert in (np.asarray, torch.as_tensor, torch.tensor):
        with pytest.raises(MemoryRefused):
            convert(A)
    assert issubclass(MemoryRefused, MemoryError)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_numpy_and_torch_get_the_dense_weights(dtype: torch.dtype) -> None:
    q = random(3, 2).to(dtype).requires_grad_()
    A = it.attend(q, q)
    dense = A.dense().detach()
    assert dense.dtype is dtype
    array = np.asarray(A)
    assert array.dtype == (np.float32 if dtype is torch.bfloat16 else str(dtype).split(".")[1])
    assert np.array_equal(array, dense.to(torch.float64).numpy())
    assert np.asarray(A, dtype=np.float64).dtype == np.float64
    assert np.array_equal(np.array(A, copy=True), array)
    for tensor in (torch.as_tensor(A), torch.tensor(A), torch.from_dlpack(A)):
        assert torch.equal(tensor, dense) and tensor.dtype is dtype


def test_numpy_may_not_ask_for_a_view() -> None:
    refused(
        lambda: np.array(it.Dense(torch.eye(2)), copy=False),
        ValueError,
        "copy: expected None or True; got False",
    )


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "softmax": (
        lambda A: torch.softmax(A, -1),
        "softmax: expected a tensor; got a lazy attention matrix. Pass A.dense(), or a part of "
        "it such as A[..., :10, :].",
    ),
    "stack": (lambda A: torch.stack([A, A]), "stack: expected a tensor"),
    "cat": (lambda A: torch.cat([torch.ones(1), A]), "cat: expected a tensor"),
    "matmul": (
        lambda A: torch.matmul(A, torch.ones(5, 1)),
        "matmul: expected a tensor; got a lazy attention matrix. Write A @ v, or A.mT @ u for the "
        "transposed product.",
    ),
    "u @ A": (
        lambda A: torch.ones(3, 4) @ A,
        "matmul: expected the matrix on the left, A @ v; got Tensor on the left. Write A.mT @ u "
        "for the transposed product, or A.dense().",
    ),
    "A + 1": (
        lambda A: A + 1,
        "operand: expected A @ v, the one product of a lazy matrix; got arithmetic with int. Pass "
        "A.dense(), or a part of it.",
    ),
    "2 * A": (lambda A: 2 * A, "got arithmetic with int"),
    "x * A": (lambda A: torch.ones(4, 5) * A, "got arithmetic with Tensor"),
    "A / 2": (lambda A: A / 2, "got arithmetic with int"),
    "A - A": (lambda A: A - A, "got arithmetic with Attention"),
}


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("what", REFUSED)
def test_other_functions_are_refused_with_advice(what: str) -> None:
    ask, text = REFUSED[what]
    with pytest.raises(KindError) as caught:
        ask(made(tensors()))
    assert text in str(caught.value)


def test_iteration_is_off() -> None:
    A = made(tensors())
    for ask in (iter, list, len):
        with pytest.raises(TypeError):
            ask(A)  # type: ignore[arg-type,call-overload]
    with pytest.raises(TypeError):
        1 in A  # type: ignore[operator]  # noqa: B015


def test_it_is_a_value_to_hash_and_compare_by_identity() -> None:
    A, other = made(tensors()), made(tensors())
    assert A == A and other != A and len({A, other, A}) == 2


class TestGradientMode:
    """It counts where the matrix is evaluated, not where it is made."""

    def test_made_without_used_with(self) -> None:
        q = random(3, 2).requires_grad_()
        with torch.no_grad():
            A = it.attend(q, q)
            assert not A.lse.requires_grad and not (A @ q).requires_grad
        assert A.lse.requires_grad and (A @ q).requires_grad and A.dense().requires_grad

    def test_made_with_used_without(self) -> None:
        q = random(3, 2).requires_grad_()
        A = it.attend(q, q)
        with torch.no_grad():
            assert not A.dense().requires_grad and not A.entropy().requires_grad

    def test_inference_tensors(self) -> None:
        with torch.inference_mode():
            q = random(3, 2)
            A = it.attend(q, q)
            y = A @ q
        torch.testing.assert_close(A.dense() @ q, y)


class TestAutocast:
    """It counts where the matrix is made, not where it is evaluated."""

    @pytest.mark.parametrize("kernel", it.kernels.available())
    def test_made_outside(self, kernel: str) -> None:
        q, v = random(4, 3).float(), random(4, 3, seed=2).float()
        A = it.attend(q, q)
        with it.kernels.use(kernel):
            outside = [A @ v, *self.others(A, v)]
            with torch.autocast("cpu", torch.bfloat16):
                inside = [A @ v, *self.others(A, v)]
        for x, expected in zip(inside, outside):
            assert x.dtype is torch.float32 and torch.equal(x, expected)

    def others(self, A: it.Attention, v: Tensor) -> list[Tensor]:
        words = it.Merged(A, [[0, 1], [2]], [[0], [1, 2], [3]])
        dense = it.Dense(A.dense())
        stacked = it.stack_rows([A, A])
        products = [A.mT @ v, words @ v[:3], dense @ v, stacked @ v]
        return [A.dense(), A.lse, A.scores[...], words.dense(), *products]

    def test_mixed_inputs_meet(self) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            A = it.attend(random(4, 3).float(), random(4, 3).bfloat16())
            assert A.dtype is torch.bfloat16
            assert it.attend(random(4, 3), random(4, 3)).dtype is torch.float64


class TestDropout:
    """Contract 8: it acts in products only, and only where it is given."""

    def test_it_acts_in_the_product_only(self) -> None:
        x = torch.ones(1, 1, 200, 4)
        A = it.attend(x, x, dropout=0.25)
        whole = it.attend(x, x)
        assert torch.equal(A.dense(), whole.dense()) and torch.equal(A.entropy(), whole.entropy())
        torch.manual_seed(1)
        y = A @ x
        assert not torch.equal(y, whole @ x)
        assert y.mean().item() == pytest.approx(1, abs=0.02)
        kept = (y[..., 0] / (1 / 200 / 0.75)).round()
        torch.testing.assert_close(y[..., 0], kept / 200 / 0.75)
        assert kept.mean().item() == pytest.approx(150, abs=3)
        torch.manual_seed(1)
        assert torch.equal(A @ x, y)
        with it.kernels.use("tiled"):
            assert A.plan().refused["torch_fused"] == "dropout is not fused on CPU"

    def test_nothing_is_random_without_it(self) -> None:
        before = torch.get_rng_state()
        made(tensors()) @ random(S, 2)
        assert torch.equal(before, torch.get_rng_state())
