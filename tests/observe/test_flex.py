"""FlexAttention, called by its name and by other ways, with and without `deep=True`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.cond import cond_op
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from .attending import close, watched

T, D = 16, 8
Modified = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without")


@pytest.fixture(autouse=True, scope="module")
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def past(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return j <= i


def near(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return z - 0.3 * (h + 1) * (i - j).abs()


def hiding(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.where(j <= i, z, -torch.inf)


def capped(z: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return 2 * torch.tanh(z / 2)


def mask() -> Any:
    return create_block_mask(past, None, None, T, T, device="cpu", _compile=False)


def operands(groups: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 2, T, D), torch.randn(2, groups, T, D), torch.randn(2, groups, T, D)


def weights(q: Tensor, k: Tensor, modified: Modified | None, causal: bool, scale: float) -> Tensor:
    b, h, i, j = (torch.arange(n).view(-1, *(1,) * m) for n, m in zip((2, 2, T, T), (3, 2, 1, 0)))
    z = q @ k.expand(2, 2, T, D).mT * scale
    z = z if modified is None else modified(z, b, h, i, j)
    return (z.masked_fill(j > i, -torch.inf) if causal else z).softmax(-1)


class Attends(nn.Module):
    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how = how

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, **self.how)  # type: ignore[return-value]


class Outer(nn.Sequential):
    """A model of one module, which is named 0."""

    def forward(self, *given: Tensor) -> Tensor:
        return self[0](*given)


CASES: dict[str, tuple[Modified | None, bool, int, float | None]] = {
    "plain": (None, False, 2, None),
    "mask": (None, True, 2, None),
    "bias": (near, False, 2, None),
    "bias and mask": (near, True, 2, 0.5),
    "hiding": (hiding, False, 2, None),
    "grouped": (None, True, 1, None),
}


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_function(name: str, deep: bool) -> None:
    modified, causal, groups, scale = CASES[name]
    model = Outer(
        Attends(
            score_mod=modified,
            block_mask=mask() if causal else None,
            scale=scale,
            enable_gqa=groups == 1,
        )
    )
    q, k, v = operands(groups)
    seen = watched(model, q, k, v, deep=deep)
    (entry,) = seen.calls
    assert entry.source == "flex" and entry.name == "0"
    close(entry, weights(q, k, modified, causal, scale or D**-0.5))


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_scores_that_are_changed_otherwise_are_said(deep: bool) -> None:
    seen = watched(Outer(Attends(score_mod=capped)), *operands(), deep=deep)
    assert "its score_mod does more than add" in seen.coverage().unseen["0"]


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
def test_a_call_under_a_name_that_cannot_be_found(
    deep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its operator passes `deep=True`, which must not stop it, and reads it."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)

    def closed() -> Callable[..., Any]:
        function = flex_attention
        return lambda *given: function(*given, block_mask=block)

    class Closed(nn.Module):
        def forward(self, *given: Tensor) -> Any:
            return attend(*given)

    block, (q, k, v) = mask(), operands()
    attend = closed()
    seen = watched(Outer(Closed()), q, k, v, deep=deep)
    if deep:
        assert seen.calls[0].source == "flex" and seen.calls[0].verified
        close(seen["0"], weights(q, k, None, True, D**-0.5))


compiled = torch.compile(flex_attention, backend="eager", dynamic=False)


class CallsCompiled(Attends):
    """Calls a compiled function of this file."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return compiled(q, k, v, **self.how)  # type: ignore[return-value]


class HoldsCompiled(Attends):
    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.attend = compiled

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attend(q, k, v, **self.how)  # type: ignore[return-value]


@torch.no_grad()
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("kind", [CallsCompiled, HoldsCompiled])
def test_a_function_that_is_compiled_alone(kind: type[Attends], deep: bool) -> None:
    model, (q, k, v) = Outer(kind(block_mask=mask())), operands()
    before = compiled
    seen = watched(model, q, k, v, deep=deep)
    (entry,) = seen.calls
    assert entry.source == "flex" and entry.name == "0"
    close(entry, weights(q, k, None, True, D**-0.5))
    assert compiled is before and not any("compiled" in note for note in seen.coverage().notes)


@torch.no_grad()
def test_other_operators_that_take_functions_run_and_are_said() -> None:
    class Chooses(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return cond_op(x.sum() > 0, lambda x: x.softmax(-1) @ x.mT, torch.sin, (x,))

    seen = watched(Outer(Chooses()), torch.ones(2, 4, 4), deep=True)
    assert "the operator cond ran, in which nothing is seen" in seen.coverage().unseen["0"]
