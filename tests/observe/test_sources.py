"""By whatever way a module attends: it is seen, or `coverage()` names it and says why not."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn, softmax

import intently as it
from intently.core.biases import as_bias

from .attending import SelfAttention, Stack, close, in_a_thread, seen_by, watched

X = torch.randn(2, 3, 5, 8)
TABLE = {"sdpa": F.scaled_dot_product_attention, "several": None}
SEVERAL = [F.scaled_dot_product_attention]
CAUSAL = partial(F.scaled_dot_product_attention, is_causal=True)
PLAIN = TABLE["sdpa"], SEVERAL[0], CAUSAL, softmax
Function = Callable[[Tensor], Tensor]


class Runs(nn.Module):
    """Runs a function; neither its name nor its code says which."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Global(nn.Module):
    """Attends by what the file holds."""

    def forward(self, x: Tensor) -> Tensor:
        return TABLE["sdpa"](x, x, x) + SEVERAL[0](x, x, x) + CAUSAL(x, x, x)  # type: ignore[misc]


class Operator(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten.scaled_dot_product_attention(x, x, x)


class Builtin(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch._C._nn.scaled_dot_product_attention(x, x, x)


def test_what_the_file_of_a_model_holds_is_seen() -> None:
    model = Stack(Global())
    with it.watch(model) as seen:
        assert softmax is not PLAIN[-1] and SEVERAL[0] is not PLAIN[1]
        inner = watched(model, X)
    assert torch.softmax is PLAIN[-1] and "softmax" not in vars(Tensor)
    assert (len(seen.calls), len(inner.calls)) == (6, 3) and not seen.coverage().unseen
    assert all(entry.verified for entry in seen.calls)
    assert seen["layers.0", 2].mask is not None
    after = TABLE["sdpa"], SEVERAL[0], CAUSAL, softmax
    assert all(x is y for x, y in zip(PLAIN, after, strict=True))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("kind", [Operator, Builtin])
def test_operators_that_are_called_directly(
    kind: type[nn.Module], inference: bool, grad: bool
) -> None:
    model, x = Stack(kind()), X.clone().requires_grad_(grad)
    with torch.inference_mode(inference):
        found = watched(model, x), watched(model, x, deep=True)
    for seen in found:
        (entry,) = seen.calls
        close(entry, (X @ X.mT / 8**0.5).softmax(-1))
        assert not seen.coverage().unseen


@pytest.mark.parametrize(
    ("causal", "mask"),
    [(True, None), (False, None), (False, torch.eye(5) < 1), (False, torch.randn(2, 1, 5, 5))],
)
def test_operators_with_masks(mask: Tensor | None, causal: bool) -> None:
    def attend(x: Tensor) -> Tensor:
        return torch.ops.aten.scaled_dot_product_attention(x, x, x, mask, 0.0, causal, scale=0.3)

    seen = watched(Runs(attend), X, deep=True)
    rule, bias = it.causal() if causal else None, None
    if mask is not None and mask.dtype is torch.bool:
        rule = it.allowed(mask)
    elif mask is not None:
        bias = as_bias(mask)
    close(seen["Runs"], it.attend(X, X, mask=rule, bias=bias, scale=0.3).dense())


BY_HAND: dict[str, Function] = {
    "function": lambda x: torch.softmax(x @ x.mT, -1) @ x,
    "functional": lambda x: F.softmax(x @ x.mT, dim=-1) @ x,
    "method": lambda x: (x @ x.mT).softmax(-1) @ x,
    "imported": lambda x: softmax(x @ x.mT, -1) @ x,
    "module": nn.Softmax(-1),
    "unbatched": lambda x: (x[0, 0] @ x[0, 0].mT).softmax(-1) @ x[0, 0],
}


@pytest.mark.parametrize("how", BY_HAND)
@pytest.mark.parametrize("grad", [True, False])
def test_attention_by_hand_is_seen_in_any_class(how: str, grad: bool) -> None:
    model, x = nn.Sequential(nn.Identity(), Runs(BY_HAND[how])), X.clone().requires_grad_(grad)
    seen = watched(model, x)
    if grad:
        with it.watch(model):
            (dx,) = torch.autograd.grad(model(x).square().sum(), x)
        assert torch.equal(torch.autograd.grad(model(x).square().sum(), x)[0], dx)
    if how == "module":  # weights that meet no values
        assert "but a softmax of (2, 3, 5, 8); its weights met no product" in str(seen.coverage())
    else:
        close(
            seen["1"],
            (X @ X.mT).softmax(-1).expand(2, 3, 5, 5)[0, 0]
            if how == "unbatched"
            else (X @ X.mT).softmax(-1),
        )


def test_a_softmax_that_is_none_of_scores_is_not_named() -> None:
    head = Runs(lambda x: x.flatten(0, 2).softmax(-1))
    model = nn.Sequential(SelfAttention(8, 2), head)
    with it.watch(model) as seen:
        model(X[0])
        torch.randn(4, 4).softmax(-1)  # outside of the model
    assert not seen.coverage().unseen and seen.layers == ("0",)
    with it.watch(model) as seen:
        nn.MultiheadAttention(8, 2)(*[X[0]] * 3)  # a softmax within a function that is seen
    assert list(seen.coverage().unseen) == ["0"]


def test_softmax_beside_a_call_that_was_seen_is_not_named() -> None:
    def both(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, x, x) + (x @ x.mT).softmax(-1) @ x

    seen = seen_by(nn.Sequential(Runs(both)), X)
    assert seen.layers == ("0",) and not seen.coverage().unseen


class HandAttention(nn.Module):
    """Computes weights in a way that nothing shows."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ x.mT) @ x


def test_deep_does_not_ask_for_deep() -> None:
    model = nn.Sequential(HandAttention())
    for deep in (False, True):
        seen = seen_by(model, X, deep=deep)
        assert ("deep=True" in str(seen.coverage())) is not deep
        assert list(seen.coverage().unseen) == ["0"]
    assert "neither a call of an attention function nor one by hand" in str(seen.coverage())


def test_what_was_not_called_is_told_from_what_ran() -> None:
    model = nn.ModuleList([SelfAttention(8, 2), HandAttention()])
    with it.watch(model) as seen:
        model[1](X)
    assert seen.coverage().unseen == {
        "0": "no call of an attention function was seen: it was not called",
        "1": "no call of an attention function was seen: it ran, and attends by hand if it does "
        "(watch with deep=True)",
    }


def test_another_thread_is_named() -> None:
    model = Stack(SelfAttention(8, 2), SelfAttention(8, 2))
    with it.watch(model) as seen:
        in_a_thread(model, X[0])
    assert not seen.calls
    assert seen.coverage().unseen == {
        f"layers.{n}": "it ran in another thread or task, which is not watched" for n in range(2)
    }
    assert "Modules of the model ran in another thread or task" in str(seen.coverage())
    with it.watch(model) as seen, it.watch(Runs(F.relu)) as other:
        model(X[0])
    assert not seen.coverage().notes and not other.coverage().notes


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("check", [True, False])
def test_tracing_is_said_once(check: bool) -> None:
    model = Stack(SelfAttention(8, 2))
    with it.watch(model) as seen:
        torch.jit.trace(model, X[0], check_trace=check)
    covered = seen.coverage()
    assert "torch.jit.trace" in str(covered)
    assert set(covered.unseen).isdisjoint(seen.layers)
    assert bool(covered.notes) is check


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripts_may_be_made_meanwhile() -> None:
    with it.watch(module := Script()):
        scripted = torch.jit.script(module)
    assert torch.equal(scripted(X), module(X))


class Script(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(x, x, x)
        return torch.softmax(y @ y.mT, -1) @ F.softmax(y, dim=-1)


class Handled(Tensor):
    """A subclass with a table of functions, as users write them."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in TABLES:
            return TABLES[func](*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})


TABLES: dict[object, Function] = {
    torch.Tensor.softmax: lambda x, *_: x.as_subclass(Tensor).sigmoid(),
    torch.softmax: lambda x, *_: x.as_subclass(Tensor).sin(),
}


def test_a_subclass_is_handed_the_functions_it_knows() -> None:
    x = torch.randn(2, 3).as_subclass(Handled)
    with it.watch():
        assert torch.equal(x.softmax(-1), x.as_subclass(Tensor).sigmoid())
        assert torch.equal(torch.softmax(x, -1), x.as_subclass(Tensor).sin())


class Counting(torch.overrides.TorchFunctionMode):
    """A user's mode, which writes down the calls it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.calls.append(func)
        return func(*args, **(kwargs or {}))


def test_a_mode_sees_the_calls_of_the_model_alone() -> None:
    def calls() -> list[object]:
        with Counting() as mode:
            F.scaled_dot_product_attention(X, X, X)
            torch.softmax(X, -1)
            F.softmax(X, -1)
            X.softmax(-1)
        return mode.calls

    expected = calls()
    with it.watch() as seen:
        assert calls() == expected
    assert len(seen.calls) == 1


class Holds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax, self.attend = torch.softmax, F.scaled_dot_product_attention


def test_a_model_that_was_built_meanwhile_can_be_pickled_and_copied() -> None:
    with it.watch():
        model = Holds()
    for again in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(again.softmax(X, -1), torch.softmax(X, -1))
