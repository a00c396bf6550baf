"""Contract 6: which kernel runs can be asked and forced, and is never a surprise."""

from __future__ import annotations

import threading

import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KernelError

from .formula import random

Q, K, V = (random(2, 4, 8, 16, seed=i) for i in range(3))


def test_available_is_fastest_first() -> None:
    assert it.kernels.available() == ("torch_fused", "eager")


class TestPlan:
    def test_fused(self) -> None:
        plan = it.attend(Q, K, mask=it.causal()).plan(V)
        assert plan.kernel == "torch_fused" and plan.refused == {} and not plan.builds_matrix
        result, lse = Q.numel() * 8, 2 * 4 * 8 * 4
        assert plan.memory == result + lse
        assert str(plan).startswith("torch_fused: 0.0 MiB beside the inputs; ")

    def test_a_mask_that_is_written_out_counts(self) -> None:
        plain = it.attend(Q, K).plan(V).memory
        mask = it.window(1, 1)
        assert it.attend(Q, K, mask=mask).plan(V).memory - plain == 8 * 8 * (1 + 8)
        mask = it.causal() & it.padding(torch.tensor([3, 8]))
        assert it.attend(Q, K, mask=mask).plan(V).memory - plain == 2 * 8 * 8 * (1 + 8)
        bias = random(4, 8, 8)
        both = it.attend(Q, K, mask=mask, bias=bias).plan(V).memory
        assert both - plain == 2 * 4 * 8 * 8 * (1 + 8)

    @pytest.mark.parametrize(
        ("options", "v", "reason"),
        [
            ({"softcap": 1.0}, V, "softcap is set"),
            ({"sinks": random(4)}, V, "sinks are set"),
            ({"scale": torch.tensor(1.0, dtype=torch.float64)}, V, "scale is a tensor"),
            ({"dropout": 0.1}, V, "dropout is not fused on CPU"),
            ({}, V[..., :3], "e=3 differs from d=16"),
            ({"bias": random(8, 8).requires_grad_()}, V, "bias needs a gradient"),
            ({"bias": random(8).float()}, V, "bias has dtype torch.float32, q has torch.float64"),
            ({}, V.expand(3, 2, 4, 8, 16), "k and v have different leading axes"),
        ],
        ids=lambda x: x if isinstance(x, str) else "",
    )
    def test_why_not_the_faster_one(self, options: dict, v: torch.Tensor, reason: str) -> None:
        A = it.attend(Q, K, **options)
        plan = A.plan(v)
        assert plan.kernel == "eager" and plan.refused == {"torch_fused": reason}
        assert plan.builds_matrix and plan.memory == 2 * 2 * 4 * 8 * 8 * 8
        assert f"not torch_fused: {reason}" in str(plan) and "builds the whole t × s matrix" in str(
            plan
        )
        with it.kernels.use("torch_fused"), pytest.raises(KernelError) as caught:
            A @ v
        assert str(caught.value) == (
            f"kernel: expected a call that torch_fused can serve; got {reason}. "
            "Leave the `with it.kernels.use(…)` block, or change the call."
        )
        assert (A @ v).shape[-1] == v.shape[-1]

    def test_a_score_of_ones_own(self) -> None:
        class Negative:
            def __call__(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
                return -(q @ k.mT)

            def default_scale(self, d: int) -> float:
                return 1.0

            def tensors(self) -> tuple[torch.Tensor, ...]:
                return ()

        A = it.attend(Q, K, score=Negative())
        assert A.plan().refused == {"torch_fused": "score is Negative, not the dot product"}
        torch.testing.assert_close(A.dense(), it.attend(-Q, K, scale=1.0).dense())

    def test_a_bias_without_gradients_is_fused(self) -> None:
        bias = random(8, 8).requires_grad_()
        with torch.no_grad():
            assert it.attend(Q, K, bias=bias, mask=it.causal()).plan(V).kernel == "torch_fused"

    def test_causal_with_a_bias_is_not_called_plain_causal(self) -> None:
        A = it.attend(Q, K, bias=random(8, 8), mask=it.causal())
        with it.kernels.use("torch_fused"):
            fused = A @ V
        torch.testing.assert_close(fused, A.dense() @ V, atol=1e-12, rtol=1e-12)

    def test_without_values_they_are_as_wide_as_keys(self) -> None:
        assert it.attend(Q, K).plan() == it.attend(Q, K).plan(V)


class TestUse:
    def test_it_forces_and_says_so(self) -> None:
        A = it.attend(Q, K)
        with it.kernels.use("eager"):
            plan = A.plan(V)
            assert plan.kernel == "eager"
            assert plan.refused == {"torch_fused": "another kernel was asked for"}
        assert A.plan(V).kernel == "torch_fused"

    def test_it_nests_and_is_undone_after_errors(self) -> None:
        A = it.attend(Q, K)
        with it.kernels.use("eager"):
            with pytest.raises(ZeroDivisionError), it.kernels.use("torch_fused"):
                assert A.plan().kernel == "torch_fused"
                1 / 0  # noqa: B018
            assert A.plan().kernel == "eager"
            with pytest.raises(KernelError), it.kernels.use("torch_fused"):
                it.attend(Q, K, softcap=1.0) @ V
            assert A.plan().kernel == "eager"
        assert A.plan().kernel == "torch_fused"

    def test_it_counts_where_the_product_is_taken(self) -> None:
        with it.kernels.use("torch_fused"):
            A = it.attend(Q, K, softcap=1.0)
        assert (A @ V).shape == V.shape

    def test_other_threads_choose_for_themselves(self) -> None:
        found: list[str] = []
        with it.kernels.use("eager"):
            thread = threading.Thread(target=lambda: found.append(it.attend(Q, K).plan().kernel))
            thread.start()
            thread.join()
        assert found == ["torch_fused"]

    def test_unknown(self) -> None:
        with pytest.raises(ArgumentError) as caught, it.kernels.use("flash"):
            pass
        assert str(caught.value) == "name: expected one of torch_fused, eager; got 'flash'."


@pytest.mark.parametrize("kernel", it.kernels.available())
def test_memory_of_the_fused_kernel_grows_with_t(kernel: str) -> None:
    small, large = (
        it.attend(random(n, 4), random(n, 4), mask=it.causal()) for n in (100, 400)
    )  # fmt: skip
    with it.kernels.use(kernel):
        ratio = large.plan().memory / small.plan().memory
    assert ratio == (4 if kernel == "torch_fused" else 16)
