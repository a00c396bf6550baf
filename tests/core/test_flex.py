"""The pieces handed to FlexAttention, through its uncompiled reference path on CPU."""

from __future__ import annotations

import gc
import math
import os
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as theirs

import intently as it
from intently.core.biases import alibi, relative_buckets
from intently.core.kernels import Kernel, flex
from intently.core.kernels.problem import Problem
from intently.core.masks import Geometry
from intently.core.scores import Cosine

from ..combinations import each
from .formula import families, multiply, plain, random

CPU = torch.device("cpu")
B, H, T, S, D = 2, 4, 8, 8, 6


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run FlexAttention's formula as it stands; tracing it takes a second for each call."""
    monkeypatch.setattr(theirs, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def operands(**sizes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q (b, h, t, d), k (b, g, s, d) and v (b, g, s, e)."""
    n = {"b": B, "h": H, "g": 2, "t": T, "s": S, "d": D, "e": 5, **sizes}
    b, g = n["b"], n["g"]
    return (
        random(b, n["h"], n["t"], n["d"]),
        random(b, g, n["s"], n["d"], seed=1),
        random(b, g, n["s"], n["e"], seed=2),
    )


def agrees(A: it.Attention, v: Tensor, tolerance: float = 1e-12) -> None:
    y = flex.product(A.problem, v, theirs.flex_attention)
    expected = multiply(A, v, "eager")
    assert y.dtype is expected.dtype
    assert y.shape == expected.shape
    torch.testing.assert_close(y, expected, rtol=tolerance, atol=tolerance)
    assert bool((y[expected == 0] == 0).all()), "rows that attend to nothing are exactly zero"


every_family = pytest.mark.parametrize("family", families(B, H, T, S))
OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "scale": lambda: {"scale": 0.3},
    "softcap": lambda: {"softcap": 0.7},
    "sinks": lambda: {"sinks": random(H)},
    "one sink": lambda: {"sinks": random(1)[0]},
    "bias": lambda: {"bias": random(B, 1, T, S)},
    "bias of heads": lambda: {"bias": random(H, 1, S)},
    "bias that masks": lambda: {"bias": random(T, S).masked_fill(random(T, S) > 0, -math.inf)},
    "everything": lambda: {
        "scale": 0.5,
        "softcap": 2.0,
        "sinks": random(H),
        "bias": random(H, T, 1),
    },
}


@pytest.mark.usefixtures("untraced")
class TestPieces:
    @every_family
    @each({"options": OPTIONS}, times=3)
    def test_every_mask_with_every_option(self, family: str, options: str) -> None:
        q, k, v = operands()
        mask = families(B, H, T, S)[family][0]
        agrees(it.attend(q, k, mask=mask, **OPTIONS[options]()), v)

    @pytest.mark.parametrize("family", ["causal, offset of each row", "segments", "allowed"])
    @pytest.mark.parametrize(("t", "s"), [(1, 9), (9, 4), (130, 150)])
    def test_other_sizes(self, family: str, t: int, s: int) -> None:
        q, k, v = operands(t=t, s=s)
        agrees(it.attend(q, k, mask=families(B, H, t, s)[family][0]), v)

    @pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 3, 2)], ids=str)
    def test_leading_axes(self, lead: tuple[int, ...]) -> None:
        q, k, v = (random(*lead, n, 4, seed=n) for n in (5, 7, 7))
        mask: it.Mask = it.causal()
        if lead:
            mask = mask & it.padding(torch.arange(math.prod(lead)).reshape(lead) + 1)
        bias = random(*lead, 5, 7)
        for sinks in (random(*lead[-1:]), random(*lead)):
            agrees(it.attend(q, k, mask=mask, bias=bias, sinks=sinks), v)

    @pytest.mark.parametrize(("of_k", "of_v"), [((1, 1), (2, 4)), ((2, 4), (1,)), ((), (4,))])
    def test_keys_and_values_that_broadcast(
        self, of_k: tuple[int, ...], of_v: tuple[int, ...]
    ) -> None:
        k, v = random(*of_k, S, D), random(*of_v, S, 5)
        agrees(it.attend(operands()[0], k, mask=it.window(1, 2)), v)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_dtypes(self, dtype: torch.dtype) -> None:
        q, k, v = (x.to(dtype) for x in operands())
        A = it.attend(q, k, mask=it.causal(), sinks=random(H, dtype=dtype), softcap=5.0)
        agrees(A, v, 8 * torch.finfo(dtype).eps)

    def test_picked_heads(self) -> None:
        q, k, v = operands(g=H)
        A = it.attend(q, k, mask=it.padding(torch.tensor([3, 5])) & (random(H, T, S) > 0))
        agrees(A[:, [2, 0]], v[:, [2, 0]])
        agrees(A[1], v[1])

    @pytest.mark.parametrize("bias", ["alibi", "relative_buckets"])
    def test_biases_by_distance(self, bias: str) -> None:
        made = alibi(H) if bias == "alibi" else relative_buckets(random(8, H))
        q, k, v = operands(t=3)
        agrees(it.attend(q, k, bias=made, mask=it.causal()), v, 1e-6)

    def test_what_no_query_sees_does_not_matter(self) -> None:
        q, k, v = operands()
        mask = it.padding(torch.tensor([5, 0]))
        clean = flex.product(it.attend(q, k, mask=mask).problem, v, theirs.flex_attention)
        k[0, :, 5:], v[1] = math.nan, math.inf
        A = it.attend(q, k, mask=mask)
        assert torch.equal(flex.product(A.problem, v, theirs.flex_attention), clean)

    def test_the_gradient_of_sinks(self) -> None:
        q, k, v = operands(g=H)
        sinks, again = (random(H).requires_grad_() for _ in range(2))
        A = it.attend(q, k, mask=it.causal(-2), sinks=sinks)
        flex.product(A.problem, v, theirs.flex_attention).square().sum().backward()
        allow = it.causal(-2).dense(Geometry((), T, S, CPU))
        plain(q, k, v, allow, sinks=again).square().sum().backward()
        assert sinks.grad is not None
        torch.testing.assert_close(sinks.grad, again.grad)


def test_the_sink_formula() -> None:
    """Two keys with logits 0 and ln 3, a sink of ln 4: the keys keep (1 + 3) / (1 + 3 + 4)."""
    lse = torch.tensor([[[0.0, math.log(3)]]]).logsumexp(-1, keepdim=True)
    assert flex.kept(lse, torch.tensor([math.log(4)])).item() == pytest.approx(0.5)
    assert flex.kept(torch.tensor([[[-math.inf]]]), torch.tensor(0.0)).item() == 0


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("family", ["causal & padding", "segments", "a tensor | ~causal"])
@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")
def test_it_is_traced_whole(family: str) -> None:
    """FlexAttention traces mask_mod and score_mod with fullgraph=True, as on CUDA."""
    mask = families(B, H, T, S)[family][0]
    for t in (T, T, T - 1):
        if t != T and family != "causal & padding":
            continue
        q, k, v = operands(t=t)
        agrees(it.attend(q, k, mask=mask, softcap=2.0, bias=random(H, 1, S), sinks=random(H)), v)


@pytest.mark.skipif("INTENTLY_ANNOTATIONS" in os.environ, reason="checks cannot be traced")
class TestBlocks:
    """Compared with PyTorch's own lists, which it finds by asking every entry."""

    def both(self, mask: it.Mask, lead: tuple[int, ...], t: int, s: int) -> tuple[Any, Any]:
        q, k = torch.zeros(*lead, t, 16), torch.zeros(*lead, s, 16)
        ours = flex.block_mask(it.attend(q, k, mask=mask).problem)
        rule = flex.mask_mod(mask, Geometry(lead, t, s, CPU))
        b = math.prod(lead[:-1]) if mask.lead() else 1
        return ours, theirs.create_block_mask(rule, b, 1, t, s, device="cpu")

    @pytest.mark.parametrize(("t", "s"), [(512, 512), (300, 700), (130, 129)])
    @pytest.mark.parametrize(
        "mask",
        [
            it.causal(),
            it.window(100, 0),
            it.prefix(128),
            it.causal(torch.tensor([0, 40])),
            it.padding(torch.tensor([129, 128])),
            it.causal() & it.padding(torch.tensor([9, 140])),
        ],
        ids=repr,
    )
    def test_the_lists_are_those_of_create_block_mask(self, mask: it.Mask, t: int, s: int) -> None:
        ours, own = self.both(mask, (2, 3), t, s)
        for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
            assert torch.equal(getattr(ours, name), getattr(own, name)), name
        for name in ("kv", "full_kv", "q", "full_q"):
            counts, indices = getattr(ours, f"{name}_num_blocks"), getattr(ours, f"{name}_indices")
            listed = torch.arange(indices.shape[-1]) < counts[..., None]
            assert torch.equal(indices[listed], getattr(own, f"{name}_indices")[listed])
            assert indices.dtype is counts.dtype is torch.int32
        assert ours.seq_lengths == own.seq_lengths == (t, s)
        assert ours.BLOCK_SIZE == own.BLOCK_SIZE

    def test_many_leading_axes_are_one(self) -> None:
        lengths = torch.tensor([[1, 129], [256, 0]])
        ours, own = self.both(it.padding(lengths), (2, 2, 3), 140, 256)
        assert torch.equal(ours.to_dense(), own.to_dense())
        assert ours.shape == (4, 1, 140, 256)

    def test_they_are_kept(self) -> None:
        q, lengths = torch.zeros(2, 3, 21, 16), torch.tensor([3, 4])
        mask = it.padding(lengths)

        def lists(mask: it.Mask, q: Tensor = q) -> Tensor:
            return flex.block_mask(it.attend(q, q, mask=mask).problem).kv_indices

        first = lists(mask)
        assert lists(mask) is first
        lengths[0] = 5
        changed = lists(mask)
        assert changed is not first, "a changed tensor is asked again"
        assert lists(mask, q[:, :, :20]) is not changed, "another size is asked again"
        assert lists(it.causal(3)) is lists(it.causal(3)), "without tensors, its words decide"
        assert lists(it.causal(4)) is not lists(it.causal(3))
        kept = weakref.ref(lists(mask))
        del mask, first, changed
        gc.collect()
        assert kept() is None, "lists die with their mask"
        with torch.inference_mode():
            mask = it.padding(torch.tensor([3, 4]))
        assert lists(mask) is not lists(mask), "changes of inference tensors cannot be seen"


class Even(it.Mask):
    """A rule that only knows whole tiles."""

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return cols[None] % 2 == 0


def problem(t: int = T, **options: Any) -> tuple[Problem, Tensor]:
    q, k, v = (x.float() for x in operands(t=t, d=16, e=16))
    return it.attend(q, k, **options).problem, v


def sized(**sizes: int) -> tuple[Problem, Tensor]:
    q, k, v = (x.float() for x in operands(**{"d": 16, "e": 16, **sizes}))
    return it.attend(q, k).problem, v


def in_float64() -> tuple[Problem, Tensor]:
    q, k, v = operands(d=16, e=16)
    return it.attend(q, k).problem, v


def without_lead() -> tuple[Problem, Tensor]:
    q, k, v = (x.float() for x in operands(d=16, e=16))
    return it.attend(q[0, 0], k[0, 0]).problem, v


UNSERVED: dict[str, Callable[[], tuple[Problem, Tensor]]] = {
    "dropout is set": lambda: problem(dropout=0.1),
    "scale is a tensor": lambda: problem(scale=torch.tensor(0.5)),
    "bias needs a gradient, which FlexAttention adds up in no fixed order": lambda: problem(
        bias=torch.zeros(T, S, requires_grad=True)
    ),
    "dtype is torch.float64": in_float64,
    "d=16 or e=15 is below 16": lambda: sized(e=15),
    "d=8 or e=16 is below 16": lambda: sized(d=8),
    "a dimension is empty": lambda: sized(t=0),
    "v has leading axes that the matrix does not have": without_lead,
    "h=6 is not g=2 times a power of two": lambda: sized(h=6),
    "mask has no form for single entries, the method `at`": lambda: problem(
        mask=it.causal() & Even()
    ),
    "score is Cosine, not the dot product": lambda: problem(score=Cosine()),
}


class TestKernel:
    kernel = flex.Flex()

    def test_it_is_a_kernel(self) -> None:
        assert isinstance(self.kernel, Kernel)
        assert self.kernel.name == "flex"
        assert self.kernel.yields(*problem(t=128)) is None
        assert self.kernel.yields(*problem(t=127)) == "t=127 is below 128"

    def test_the_cpu_is_refused(self) -> None:
        reason = self.kernel.refuses(*problem())
        assert reason == "FlexAttention runs on CUDA here; tiled serves the CPU"
        assert flex.unserved(*problem(mask=it.causal(), softcap=1.0)) is None

    def test_multiply(self, monkeypatch: pytest.MonkeyPatch, untraced: None) -> None:
        limits: list[int] = []

        def attend(*args: Any, **options: Any) -> Any:
            limits.append(torch._dynamo.config.recompile_limit)
            return theirs.flex_attention(*args, **options)

        monkeypatch.setattr(flex, "compiled", lambda: attend)
        before = torch._dynamo.config.recompile_limit
        p, v = problem(mask=it.causal())
        y = self.kernel.multiply(p, v)
        torch.testing.assert_close(y, it.attend(p.q, p.k, mask=it.causal()) @ v)
        assert limits == [flex.KERNELS]
        assert torch._dynamo.config.recompile_limit == before

    def test_memory(self) -> None:
        p, v = problem()
        rows = B * H * T
        assert self.kernel.memory(p, v) == rows * (16 * 4 + 4)
        p, v = problem(mask=it.causal(1))
        assert self.kernel.memory(p, v) == rows * (16 * 4 + 4) + 16
        p, v = problem(mask=it.padding(torch.tensor([1, 2])))
        assert self.kernel.memory(p, v) == rows * (16 * 4 + 4) + 16 * B

    @pytest.mark.parametrize("reason", UNSERVED)
    def test_what_it_cannot_serve(self, reason: str) -> None:
        assert flex.unserved(*UNSERVED[reason]()) == reason

    def test_a_graph_around_the_call_is_not_served(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert flex.unserved(*problem()) == "a graph is being compiled around the call"
