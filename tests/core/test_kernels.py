"""Contract 6: which kernel runs can be asked and forced, and is never a surprise."""

from __future__ import annotations

import threading

import pytest
import torch

import intently as it
from intently.errors import ArgumentError, KernelError

from ..messages import refused
from .formula import multiply, others, random

Q, K, V = (random(2, 4, 8, 16, seed=i) for i in range(3))


ADDITIVE = it.Additive(random(3, 16), random(3, 16, seed=1), random(3))


def test_available_is_fastest_first() -> None:
    names = ("torch_fused", "flex", "tiled", "eager")
    found = names if torch.cuda.is_available() else (names[0], *names[2:])
    assert it.kernels.available() in (found, ("native", *found))


class TestPlan:
    def test_fused(self) -> None:
        plan = it.attend(Q, K, mask=it.causal()).plan(V)
        assert plan.kernel == "torch_fused" and others(plan.refused) == {} and plan.writes is None
        result, lse = Q.numel() * 8, 2 * 4 * 8 * 4
        assert plan.memory == result + lse
        assert str(plan).startswith("torch_fused: 0.0 MiB beside the inputs; ")

    def test_a_mask_that_is_written_out_counts(self) -> None:
        plain = it.attend(Q, K).plan(V).memory
        mask = it.window(1, 1)
        assert it.attend(Q, K, mask=mask).plan(V).memory - plain == 8 * 8 * (1 + 8)
        mask = it.causal() & it.padding(torch.tensor([3, 8]))
        assert it.attend(Q, K, mask=mask).plan(V).memory - plain == 2 * 8 * 8 * (1 + 8)
        assert str(it.attend(Q, K, mask=mask).plan(V)).splitlines()[1] == (
            "mask and bias are written out: 0.0 MiB"
        )
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
            ({}, V.expand(3, 2, 4, 8, 16), "k and v have different leading axes"),
            ({"score": ADDITIVE}, V, "score is Additive, not the dot product"),
        ],
        ids=lambda x: x if isinstance(x, str) else "",
    )
    def test_why_not_the_faster_one(self, options: dict, v: torch.Tensor, reason: str) -> None:
        A = it.attend(Q, K, **options)
        plan = A.plan(v)
        assert plan.kernel == "eager"
        assert others(plan.refused) == {"torch_fused": reason, "tiled": "the matrix is small"}
        assert (
            plan.writes == "builds the whole t × s matrix" and plan.memory == 2 * 2 * 4 * 8 * 8 * 8
        )
        assert f"not torch_fused: {reason}" in str(plan) and "builds the whole t × s matrix" in str(
            plan
        )
        with it.kernels.use("torch_fused"):
            refused(
                lambda: A @ v,
                KernelError,
                f"kernel: expected a call that torch_fused can serve; got {reason}. "
                "Leave the `with it.kernels.use(…)` block, or change the call.",
                whole=True,
            )
        torch.manual_seed(0)
        y = A @ v
        with it.kernels.use("tiled"):
            torch.manual_seed(0)
            torch.testing.assert_close(A @ v, y, atol=1e-12, rtol=1e-12)

    @pytest.mark.parametrize("n", [300, 2000])
    def test_tiles_take_what_is_large(self, n: int) -> None:
        A = it.attend(random(2, n, 4), random(2, n, 4, seed=1), softcap=1.0)
        plan = A.plan()
        assert plan.kernel == "tiled"
        assert others(plan.refused) == {"torch_fused": "softcap is set"}
        assert plan.writes is None and "second derivatives build the t × s matrix" in plan.note

    def test_a_bias_of_another_precision(self) -> None:
        q, k = Q.bfloat16(), K.bfloat16()
        with it.kernels.use("torch_fused"):
            assert it.attend(q, k, bias=random(8, 8).bfloat16()).plan().kernel == "torch_fused"
        for bias, name in ((random(8, 8).float(), "float32"), (it.alibi(4), "float64")):
            with it.kernels.use("eager"):
                reason = it.attend(q, k, bias=bias).plan().refused["torch_fused"]
            assert reason == f"bias has dtype torch.{name}, q has torch.bfloat16"
            assert it.attend(Q, K, bias=bias).plan().kernel == "torch_fused"

    @pytest.mark.parametrize("mask", [it.window(255, 0), it.segments(torch.arange(2048) // 512)])
    def test_tiles_take_what_is_mostly_empty(self, mask: it.Mask) -> None:
        A = it.attend(random(2048, 4), random(2048, 4, seed=1), mask=mask)
        plan = A.plan()
        assert plan.kernel == "tiled"
        share = 1 - (45 / 256 if "window" in repr(mask) else 1 / 4)
        reason = f"the mask leaves {share:.0%} of the blocks empty"
        assert others(plan.refused) == {"torch_fused": reason}

    def test_a_mask_that_would_take_much_memory_is_not_written(self) -> None:
        x = torch.ones(12_000, 4, dtype=torch.float64)
        plan = it.attend(x, x, mask=it.causal() | it.prefix(11_000)).plan()
        assert plan.kernel == "tiled"
        reason = "mask and bias, written out, take 1236 MiB"
        assert others(plan.refused) == {"torch_fused": reason}

    @pytest.mark.parametrize("scale", [0.0, -1.0])
    def test_a_causal_mask_is_written_where_the_scale_is_not_positive(self, scale: float) -> None:
        A = it.attend(Q, K, mask=it.causal(), scale=scale)
        torch.testing.assert_close(
            multiply(A, V, "torch_fused"), A.dense() @ V, atol=1e-12, rtol=1e-12
        )

    def test_a_score_of_ones_own(self) -> None:
        class Negative(it.Score):
            def __call__(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
                return -(q @ k.mT)

        A = it.attend(Q, K, score=Negative())
        assert A.plan().refused["torch_fused"] == "score is Negative, not the dot product"
        torch.testing.assert_close(A.dense(), it.attend(-Q, K, scale=1.0).dense())
        with it.kernels.use("tiled"):
            torch.testing.assert_close(A @ V, it.attend(-Q, K, scale=1.0) @ V)

    def test_a_bias_without_gradients_is_fused(self) -> None:
        bias = random(8, 8).requires_grad_()
        with torch.no_grad():
            assert it.attend(Q, K, bias=bias, mask=it.causal()).plan(V).kernel == "torch_fused"

    def test_causal_with_a_bias_is_not_called_plain_causal(self) -> None:
        A = it.attend(Q, K, bias=random(8, 8), mask=it.causal())
        fused = multiply(A, V, "torch_fused")
        torch.testing.assert_close(fused, A.dense() @ V, atol=1e-12, rtol=1e-12)

    def test_without_values_they_are_as_wide_as_keys(self) -> None:
        assert it.attend(Q, K).plan() == it.attend(Q, K).plan(V)


class TestUse:
    def test_it_forces_and_says_so(self) -> None:
        A = it.attend(Q, K)
        with it.kernels.use("eager"):
            plan = A.plan(V)
            assert plan.kernel == "eager"
            assert others(plan.refused) == {
                "torch_fused": "another kernel was asked for",
                "tiled": "the matrix is small",
            }
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
        names = '"native", "torch_fused", "flex", "tiled", "eager"'
        text = f"name: expected one of {names}; got 'flash'."
        refused(lambda: it.kernels.use("flash").__enter__(), ArgumentError, text, whole=True)

    @pytest.mark.parametrize("score", [it.Cosine(), it.General(random(16, 16))])
    def test_scores_that_are_dot_products_of_other_vectors_are_fused(self, score: it.Score) -> None:
        A = it.attend(Q, K, score=score)
        assert A.plan().kernel == "torch_fused"
        torch.testing.assert_close(A @ V, A.dense() @ V, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("kernel", ["torch_fused", "tiled", "eager"])
def test_memory_of_the_fused_kernel_grows_with_t(kernel: str) -> None:
    small, large = (it.attend(random(n, 4), random(n, 4), mask=it.causal()) for n in (2000, 8000))
    with it.kernels.use(kernel):
        ratio = large.plan().memory / small.plan().memory
    assert ratio == 16 if kernel == "eager" else ratio <= 4
