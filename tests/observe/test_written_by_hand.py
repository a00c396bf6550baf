"""Attention that is written by hand, followed from product to product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from intently.errors import StaleError
from intently.observe import watch
from intently.observe.trace import follow
from intently.observe.watching import unseen
from intently.observe.watching.unseen import LAST_BITS

from ..combinations import each
from .attending import close, watched

B, H, N, S, D = 2, 3, 5, 6, 4
Written = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]
"""The weights, or the weights and the output."""


def operands() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v with their heads, and a boolean mask in which no row is empty."""
    torch.manual_seed(0)
    mask = torch.rand(B, 1, N, S) > 0.3
    mask[..., 0] = True
    return torch.randn(B, H, N, D), torch.randn(B, H, S, D), torch.randn(B, H, S, D), mask


def in_place(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    z = q @ k.mT
    z /= 3
    z += torch.linspace(-1, 1, S)
    z.masked_fill_(~mask, -1e9)
    return torch.nan_to_num(z.softmax(-1))


def steps_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))
    w = torch.einsum("ibnd,jbnd->bnij", q, k).softmax(3)
    return w, torch.einsum("bnij,jbnd->ibnd", w, v)


def heads_in_the_batch(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).view(B, H, N, S) / math.sqrt(D)
    z = torch.where(mask, z, torch.tensor(-1e9)).view(B * H, N, S)
    w = F.dropout(F.softmax(z, -1, dtype=torch.float32).type_as(q), 0.1, training=False)
    return w.view(B, H, N, S), torch.bmm(w, v.flatten(0, 1))


def keys_first(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    z = k @ q.mT + torch.linspace(-1, 1, S).view(S, 1)
    w = z.masked_fill(~mask.mT, -1e9).softmax(-2)
    return w.mT, v.mT @ w


def temperatures(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return ((q @ k.mT) * torch.linspace(0.2, 1, H).view(H, 1, 1)).softmax(-1)


def heads_outside(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    w = (q @ k.mT).transpose(0, 1).softmax(-1)
    return w, w @ v.transpose(0, 1)


def one_sentence(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    w = (q[0, 0] @ k[0, 0].T / 2).softmax(-1)
    return w, w @ v[0, 0]


def one_of_each(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    w = (q[:1, :1, :1] @ k[:1, :1].mT).softmax(-1)
    return w, w @ v[:1, :1]


FOLLOWED: dict[str, Written] = {
    "plain": lambda q, k, v, m: (q @ k.mT / D**0.5).masked_fill(~m, -torch.inf).softmax(-1),
    "in place": in_place,
    "steps first": steps_first,
    "heads in the batch": heads_in_the_batch,
    "keys first": keys_first,
    "heads outside": heads_outside,
    "temperatures": temperatures,
    "one sentence": one_sentence,
    "one of each": one_of_each,
    "one query": lambda q, k, v, m: (q[:, :, :1] @ k.mT).softmax(-1),
    "logarithms": lambda q, k, v, m: ((z := 1e6 * (q @ k.mT)) - z.logsumexp(-1, True)).exp(),
}


def run(name: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The weights and the output of one way to write attention."""
    made = FOLLOWED[name](q, k, v, mask)
    return made if isinstance(made, tuple) else (made, made @ v)


@each({"mode": [torch.enable_grad, torch.no_grad, torch.inference_mode], "name": FOLLOWED}, times=2)
def test_written_by_hand(name: str, mode: Any) -> None:
    given = operands()
    with mode():
        _, y = run(name, *given)
        with watch(deep=True) as seen:
            weights, found = run(name, *given)
    assert torch.equal(found, y)
    (entry,) = seen.calls
    assert entry.source == "by hand" and entry.verified, seen.coverage()
    close(entry, weights)


def test_masks_biases_and_scale_are_told_apart() -> None:
    with watch(deep=True) as seen:
        run("in place", *operands())
        run("plain", *operands())
    first, second = (entry.attention().problem for entry in seen.calls)
    assert first.scale == pytest.approx(1 / 3) and first.bias is not None
    assert second.scale == 0.5 and second.bias is None and second.mask is not None


def test_a_function_that_is_seen_itself_is_recorded_once() -> None:
    q, k, v, mask = operands()
    with watch(deep=True) as seen:
        F.scaled_dot_product_attention(q, k, v, mask)
        nn.MultiheadAttention(D, 2)(q[0, 0], k[0, 0], v[0, 0])
    assert [entry.source for entry in seen.calls] == ["functional", "native"]


class ByHand(nn.Module):
    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return (q @ k.mT).softmax(-1) @ k


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("which", [0, 1])
def test_references_that_changed_are_refused(which: int, mode: Any) -> None:
    operands = torch.randn(B, H, N, D), torch.randn(B, H, S, D)
    with mode(), watch(model := ByHand(), store="reference") as seen:
        model(*operands)
    (entry,) = seen.calls
    assert entry.matrix().shape == (B, H, N, S)
    operands[which][0] = 1.0
    with pytest.raises(StaleError, match="changed in place since"):
        entry.matrix()


def test_dropout_is_no_change_of_weights() -> None:
    q, k, v, _ = operands()
    with watch(deep=True) as seen:
        _ = F.dropout((q @ k.mT).softmax(-1), 0.25) @ v
    (entry,) = seen.calls
    assert entry.verified and "changed" not in str(seen.coverage())
    close(entry, (q @ k.mT).softmax(-1))


def changed_in_part(z: Tensor) -> Tensor:
    z[..., 0] = -1e9
    return z


CHANGED = "aten.{} changed its weights before they met the values"
PRODUCT = "the scores of its softmax are no product of queries and keys"

HIDES = torch.ones(N, S).triu(1).bool()
KEPT: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "gated": (
        lambda q, k, v: (q @ k.mT).softmax(-1) * torch.linspace(0, 1, S),
        CHANGED.format("mul"),
    ),
    "squared": (lambda q, k, v: (q @ k.mT).softmax(-1) ** 2, CHANGED.format("pow")),
    "mixed over heads": (
        lambda q, k, v: torch.einsum(
            "bhts,hn->bnts", (q @ k.mT).softmax(-1), torch.eye(H).roll(1, 0) / 2
        ),
        CHANGED.format("bmm"),
    ),
    "turned": (lambda q, k, v: (q @ k.mT).softmax(-1).flip(-1), CHANGED.format("flip")),
    "twice": (lambda q, k, v: (q @ k.mT).softmax(-1).softmax(-1), PRODUCT),
    "squashed": (lambda q, k, v: torch.sigmoid(q @ k.mT).softmax(-1), PRODUCT),
    "additive": (
        lambda q, k, v: (
            (torch.tanh(q[:, :, :, None] + k[:, :, None]) @ torch.ones(D, 1))
            .squeeze(-1)
            .softmax(-1)
        ),
        PRODUCT,
    ),
    "replaced": (lambda q, k, v: (q @ k.mT).masked_fill(HIDES, 1.0).softmax(-1), PRODUCT),
    "capped late": (lambda q, k, v: torch.tanh(q @ k.mT + 1).softmax(-1), PRODUCT),
    "weighted keys": (lambda q, k, v: ((q @ k.mT) * torch.linspace(0, 1, S)).softmax(-1), PRODUCT),
    "changed in part": (lambda q, k, v: changed_in_part(q @ k.mT).softmax(-1), PRODUCT),
    "one of each, its maximum taken off": (
        lambda q, k, v: shares((q @ k.mT - (q @ k.mT).amax(-1, True)).exp2()),
        "aten.div made them a whole",
    ),
    "ReLU": (lambda q, k, v: shares((q @ k.mT).relu() + 1e-3), "aten.div made them a whole"),
    "sigmoid": (lambda q, k, v: shares((q @ k.mT).sigmoid()), "aten.div made them a whole"),
    "squares": (lambda q, k, v: shares((q @ k.mT).square()), "aten.div made them a whole"),
    "sparsemax": (lambda q, k, v: sparsemax(q @ k.mT), "aten.sub and aten.clamp made them a whole"),
}
MIXED: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], str]] = {
    "given weights": (lambda q, k, v: torch.ones(N, S).softmax(-1) @ v, "mixing"),
    "over queries": (lambda q, k, v: (q @ k.mT).softmax(-1).mT @ q, "another axis"),
    "over heads": (lambda q, k, v: (q @ k.mT).softmax(1) @ v, "another axis"),
}


class Calls(nn.Module):
    def __init__(self, written: Callable[..., Tensor]) -> None:
        super().__init__()
        self.written = written

    def forward(self, *given: Tensor) -> Tensor:
        return self.written(*given)


def shares(x: Tensor) -> Tensor:
    return x / x.sum(-1, keepdim=True)


def sparsemax(z: Tensor) -> Tensor:
    """Martins and Astudillo 2016, algorithm 1."""
    ordered = z.sort(-1, descending=True).values
    most = torch.arange(1, S + 1)
    total = ordered.cumsum(-1) - 1
    k = (most * ordered > total).sum(-1, keepdim=True)
    return (z - total.gather(-1, k - 1) / k).clamp(min=0)


@pytest.mark.parametrize("name", KEPT)
def test_weights_that_met_the_values_are_kept(name: str) -> None:
    (q, k, v, _), (written, why) = operands(), KEPT[name]
    with watch(deep=True) as seen:
        found = written(q, k, v) @ v
    assert torch.equal(found, written(q, k, v) @ v)
    (entry,) = seen.calls
    assert entry.verified, seen.coverage()
    close(entry, written(q, k, v))
    if name in ("gated", "squared", "mixed over heads", "turned"):
        close(entry.matrix().softmax, (q @ k.mT).softmax(-1))  # type: ignore[attr-defined]
    assert f"the weights themselves are kept, because {why}" in str(seen.coverage())


@pytest.mark.parametrize("name", MIXED)
def test_what_is_no_attention_is_said(name: str) -> None:
    (q, k, v, _), (written, why) = operands(), MIXED[name]
    with watch(model := Calls(written)) as seen:
        found = model(q, k, v)
    assert torch.equal(found, written(q, k, v))
    assert not seen.calls and why in str(seen.coverage()), seen.coverage()


class Streams(nn.Module):
    """Hyper-connections (Zhu et al. 2025): three residual streams, mixed for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(2))
        self.mix = nn.ModuleList(nn.Linear(3 * D, 9) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        streams = torch.stack([x, x, x], 2)
        for layer, mix in zip(self.layers, self.mix):
            weights = mix(streams.flatten(2)).unflatten(-1, (3, 3)).softmax(-1)
            streams = weights @ streams + layer(streams.mean(2)).unsqueeze(2)
        return streams.sum(2)


class Scales(nn.Module):
    """One tensor smoothed in three ways, weighed for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide = [F.avg_pool1d(x.mT, n, 1, n // 2).mT for n in (1, 3, 5)]
        weights = self.gate(x).softmax(-1).unsqueeze(-2)
        return (weights @ torch.stack(wide, -2)).squeeze(-2)


@pytest.mark.parametrize("kind", [Streams, Scales])
def test_what_one_tensor_became_is_mixed(kind: type[nn.Module]) -> None:
    x = torch.randn(B, S, D)
    with watch(model := kind()) as seen:
        model(x)
    assert not seen.calls and f"{kind.__name__}: mixing" in str(seen.coverage())


def test_values_that_are_the_positions() -> None:
    """Expected positions count alone; beside values, as in Shaw et al. 2018, they do not."""
    q, k, v, _ = operands()
    places = torch.arange(float(S))[:, None].expand(B, H, S, 1).contiguous()
    learned = nn.Parameter(torch.randn(S + 2, D))
    with watch(deep=True) as seen:
        (q @ k.mT).softmax(-1) @ places
        (w := (q @ k.mT).softmax(-1)) @ v + F.pad(w, (1, 1)) @ learned
    assert len(seen.calls) == 2
    for entry in seen.calls:
        close(entry, w)


def test_a_step_that_fails_is_missed_and_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no such view")

    monkeypatch.setattr(follow, "found", broken)
    given = operands()
    with watch(deep=True) as seen:
        _, y = run("plain", *given)
    assert torch.equal(y, run("plain", *given)[1])
    assert "RuntimeError in aten.bmm: no such view" in str(seen.coverage())


def test_gradients_are_as_without() -> None:
    q, k, v, mask = operands()
    q.requires_grad_()
    (plain_grad,) = torch.autograd.grad(run("plain", q, k, v, mask)[1].sum(), q)
    with watch(deep=True) as seen:
        (grad,) = torch.autograd.grad(run("plain", q, k, v, mask)[1].sum(), q)
    assert torch.equal(grad, plain_grad) and len(seen.calls) == 1


@pytest.mark.parametrize("act", [F.silu, F.mish])
def test_operators_with_a_kernel_run_it(act: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(64, 64, requires_grad=True)
    (plain_grad,) = torch.autograd.grad(act(x).pow(2).sum(), x)
    with watch(deep=True):
        (grad,) = torch.autograd.grad(act(x).pow(2).sum(), x)
    assert torch.equal(grad, plain_grad)


@torch.inference_mode()
def test_composites_run_as_they_do_and_not_as_they_are_written_in_python() -> None:
    watched(nn.Upsample(scale_factor=2, mode="bilinear"), torch.randn(1, 3, 9, 9), deep=True)


def test_deep_says_that_last_bits_may_differ() -> None:
    """Any dispatch mode may make PyTorch take other kernels; nothing tells which ones it took."""
    for deep in (False, True):
        with watch(deep=deep) as seen:
            run("plain", *operands())
        assert (LAST_BITS in seen.coverage().notes) is deep


class Inner(nn.Module):
    """Attends by hand, as its code tells, or by a name that hides it."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.linear, self.hidden = nn.Linear(8, 8), hidden

    def forward(self, x: Tensor) -> Tensor:
        z = self.linear(x) @ x.mT
        w = (
            getattr(torch, "soft" + "max")(z, -1)
            if self.hidden
            else z.exp() / z.exp().sum(-1, keepdim=True)
        )
        return w @ x


class Around(nn.Module):
    """Attends by hand around a plain layer that holds another that does."""

    def __init__(self, hidden: bool, direct: bool) -> None:
        super().__init__()
        inner = Inner(hidden)
        self.inside = inner if direct else nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.inside(x).mT).softmax(-1) @ x


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_modules_within_modules_leave_no_mode_behind(
    hidden: bool, direct: bool, fails: bool
) -> None:
    model, x = nn.Sequential(Around(hidden, direct), nn.Linear(8, 8)), torch.randn(2, 5, 8)
    for _ in range(2):
        with watch(model) as seen:
            y = model(x)
            if fails:
                with pytest.raises(RuntimeError):
                    model(torch.randn(2, 5, 9))
            assert not _get_current_dispatch_mode_stack()
        assert torch.equal(y, model(x))
        assert set(seen) == {"0", "0.inside" if direct else "0.inside.1"}, str(seen.coverage())


def test_the_frames_of_modules_are_found_on_the_stack() -> None:
    with watch(nn.Linear(2, 2)):
        replacement = nn.Module._call_impl
    assert replacement.__code__.co_name == "call"
    assert replacement.__globals__["__name__"] == unseen.DOORS


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_of_weights_that_meet_their_values_alone_are_calls(axis: int) -> None:
    """Texts, heads or queries one by one."""
    q, k, v, _ = operands()
    with torch.no_grad(), watch(deep=True) as seen:
        w = (q @ k.mT).softmax(-1)
        for i, part in enumerate(w.split(1, axis)):
            _ = part @ (v if axis == 2 else v.narrow(axis, i, 1))
    assert [entry.verified for entry in seen.calls] == [True] * w.shape[axis]
    found = [entry.matrix().dense().flatten() for entry in seen.calls]
    assert torch.equal(torch.cat(found), w.movedim(axis, 0).flatten())


@pytest.mark.parametrize("way", ["_foreach_mul_", "_foreach_copy_", "topk(out=)"])
def test_changes_that_return_nothing_or_several_are_seen(way: str) -> None:
    q, k, v, _ = operands()
    with torch.no_grad(), watch(deep=True) as seen:
        w = (q @ k.mT).softmax(-1)
        row = w[0, 0, -1]
        if way == "topk(out=)":
            torch.topk(row.clone(), len(row), out=(row, torch.empty(len(row), dtype=torch.long)))
        else:
            getattr(torch, way)([row], [torch.linspace(0, 1, len(row))])
        _ = w @ v
    (entry,) = seen.calls
    assert entry.verified is not False and torch.equal(entry.matrix().dense(), w)
