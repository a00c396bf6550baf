"""However attention is written by hand: it is right, or coverage names the module and says why.

The truth is the softmax that really ran, as a dispatch mode of this test's own sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import intently as it
from intently.observe import Recording

from ..combinations import each
from .attending import Softmaxes, Unnormalised, seen_by

B, H, T, S, D = 2, 2, 5, 7, 8
Made = Callable[[Tensor], Tensor]


def divided(z: Tensor) -> Tensor:
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def in_place(z: Tensor) -> Tensor:
    e = z.exp()
    return e.div_(e.sum(-1, keepdim=True) + 1e-9)


def padded(w: Tensor) -> Tensor:
    return F.pad(w, (0, 1))[..., :-1]


def copied(w: Tensor) -> Tensor:
    held = torch.zeros_like(w)
    held[..., :3] = w[..., :3]
    held[..., 3:] = w[..., 3:]
    return held


MASKS: dict[str, float] = {"none": 0, "−∞": -torch.inf, "−1e9": -1e9, "lowest": 1}
WEIGHTS: dict[str, Made] = {
    "method": lambda z: z.softmax(-1),
    "function": lambda z: torch.softmax(z, -1),
    "float32": lambda z: F.softmax(z, -1, dtype=torch.float32).type_as(z),
    "logarithm": lambda z: z.log_softmax(-1).exp(),
    "divided": divided,
    "in place": in_place,
    "special": lambda z: torch.special.softmax(z, -1),
}
BEFORE: dict[str, Made] = {
    "nothing": lambda z: z,
    "concatenated": lambda z: torch.cat([z[..., :2], z[..., 2:]], -1),
    "rolled": lambda z: z.roll(1, -1),
    "clamped": lambda z: z.clamp(-1e4, 3),
}
AFTER: dict[str, Made] = {
    "nothing": lambda w: w,
    "dropout": lambda w: F.dropout(w, 0.5, training=False),
    "padded": padded,
    "copied": copied,
    "rolled": lambda w: w.roll(1, -1),
    "squared": lambda w: w * w,
}
MIXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda w, v: w @ v,
    "einsum": lambda w, v: torch.einsum("bhts,bhsd->bthd", w, v),
    "parts": lambda w, v: w[..., :2] @ v[..., :2, :] + w[..., 2:] @ v[..., 2:, :],
    "split": lambda w, v: sum(a @ b for a, b in zip(w.split(3, -1), v.split(3, -2))),  # type: ignore[misc]
    "selected": lambda w, v: w[..., 0, :].unsqueeze(-2) @ v,
    "gathered": lambda w, v: w.index_select(-1, torch.arange(S - 1)) @ v[..., :-1, :],
    "entry by entry": lambda w, v: (w[..., None] * v.unsqueeze(-3)).sum(-2),
}


MET: dict[str, Made] = {"selected": lambda w: w[..., :1, :], "gathered": lambda w: w[..., :-1]}
"""The weights that met values, where some do not."""


class Written(NamedTuple):
    """One way to write attention."""

    mask: str
    late: bool
    before: str
    weights: str
    after: str
    mixed: str
    dtype: torch.dtype

    @property
    def plain(self) -> bool:
        """Whether its weights have to be seen: nothing unusual happens to them."""
        usual = self.before == "nothing" and self.after in ("nothing", "dropout")
        return usual and self.mixed in ("product", "einsum")


WAYS = st.builds(
    Written,
    st.sampled_from([*MASKS]),
    st.booleans(),
    st.sampled_from([*BEFORE]),
    st.sampled_from([*WEIGHTS]),
    st.sampled_from([*AFTER]),
    st.sampled_from([*MIXED]),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)


class Block(nn.Module):
    """Attends in one of the ways; ``truth`` are its weights, ``used`` those that meet values."""

    def __init__(self, how: Written) -> None:
        super().__init__()
        self.how, self.truth, self.used = how, torch.empty(0), torch.empty(0)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        how, z = self.how, q @ k.mT
        low = MASKS[how.mask]
        if low:  # the last keys of a static cache are not written yet
            low = torch.finfo(z.dtype).min if low > 0 else low
            hidden = torch.zeros(T, S, dtype=z.dtype)
            hidden[:, -2:] = max(low, torch.finfo(z.dtype).min) if low != -torch.inf else low
            z = (z + hidden) * D**-0.5 if how.late else z * D**-0.5 + hidden
        else:
            z = z * D**-0.5
        w = WEIGHTS[how.weights](BEFORE[how.before](z))
        self.truth = w.detach().clone()
        w = AFTER[how.after](w)
        self.used = MET.get(how.mixed, torch.clone)(w.detach())
        return MIXED[how.mixed](w, v)


def run(how: Written, deep: bool, seed: int) -> tuple[Recording, Block, Softmaxes]:
    """Watch one way, whose output stays what it is without."""
    torch.manual_seed(seed)
    q, v = (torch.randn(B, H, n, D).to(how.dtype) for n in (T, S))
    k = torch.randn(B, H, S, D).to(how.dtype)
    block = Block(how)
    model = nn.Sequential(block)
    with Softmaxes() as real:
        y = block(q, k, v)
    with it.watch(model, deep=deep) as seen:
        assert torch.equal(block(q, k, v), y)
    return seen, block, real


def said(seen: Recording) -> bool:
    """Whether coverage says that something of the module was not kept, and why."""
    covered = seen.coverage()
    return "0" in covered.unseen or any(
        note.startswith(("0: ", "Not every call of 0 ")) for note in covered.notes
    )


@settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(WAYS, st.integers(0, 9))
def test_attention_by_hand_is_right_or_said(how: Written, seed: int) -> None:
    seen, block, real = run(how, True, seed)
    half = how.dtype is not torch.float32
    right = False
    for entry in seen.calls:
        assert entry.verified is not False, (how, entry.why)
        if entry.shape == tuple(block.used.shape):
            gap = float((entry.matrix().dense() - block.used.float()).abs().max())
            assert gap <= (0.05 if half else 1e-5), (how, gap)
            right = True
    assert right or said(seen), (how, str(seen.coverage()))
    assert right or not how.plain, (how, str(seen.coverage()))
    if real.found:
        assert torch.equal(real.found[0].type_as(block.truth), block.truth)


@each({"mixed": MIXED, "weights": WEIGHTS}, times=2)
def test_deep_says_no_less_than_the_default(weights: str, mixed: str) -> None:
    for before in BEFORE:
        how = Written("none", False, before, weights, "nothing", mixed, torch.float32)
        shallow, deep = (run(how, follows, 0)[0] for follows in (False, True))
        if said(shallow):
            assert said(deep) or deep.layers == ("0",), how


class ByLogarithm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(x @ x.mT, -1).exp() @ x


class Divided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x @ x.mT / 16)
        return torch.matmul(e / e.sum(-1, keepdim=True), x)


@pytest.mark.parametrize(("kind", "why"), [(Unnormalised, "the values met scores at")])
def test_deep_names_the_operation_that_stood_in_the_way(kind: type[nn.Module], why: str) -> None:
    seen = seen_by(nn.Sequential(kind()), torch.randn(3, 6, 32), deep=True)
    assert why in seen.coverage().unseen["0"]


def test_gradients_say_nothing_of_weights() -> None:
    """A backward pass multiplies the same weights with gradients."""
    model, x = Divided(), torch.randn(3, 6, 16, requires_grad=True)
    with it.watch(model, deep=True) as seen:
        (model(x) + ByLogarithm()(x)).sum().backward()
    assert len(seen.calls) == 1 and not seen.coverage().unseen
    assert not any("Not every" in note for note in seen.coverage().notes)


class Router(nn.Module):
    """Sends every token to two of its experts."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(16, experts, bias=False)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, -2)
        weights, chosen = F.softmax(self.gate(flat), -1).topk(2, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(flat)
        for n, expert in enumerate(self.experts):
            row, place = (chosen == n).nonzero(as_tuple=True)
            y.index_add_(0, row, expert(flat[row]) * weights[row, place, None])
        return y.view_as(x)


class Plain(nn.Module):
    """What stands behind attention in many models, and attends nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout, self.norm = nn.Linear(16, 16), nn.Dropout(), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.dropout(self.dense(x)))


class PlainAttentionOutput(Plain):
    """Named after what it follows."""


class AttentionStructure(nn.Module):
    """Named after what it prepares: it holds no forward."""

    def prepared(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("deep", [False, True])
def test_what_attends_nothing_is_not_named(deep: bool) -> None:
    """Routers with as many experts as tokens, and modules that are called after attention."""
    model = nn.ModuleList(
        [Router(6), Router(12), PlainAttentionOutput(), AttentionStructure(), Plain()]
    )
    x = torch.randn(2, 6, 16)
    with it.watch(model.eval(), deep=deep) as seen:
        for module in (*model[:3], model[4]):
            module(x)
            module(x[0])
        model[3].prepared(x)  # type: ignore[operator]
    assert not seen.coverage().unseen, str(seen.coverage())


class SoftmaxOfItsOwn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(x, -1)


class HoldsASoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = SoftmaxOfItsOwn()

    def forward(self, x: Tensor) -> Tensor:
        return self.softmax(x @ x.mT) @ x


def test_a_softmax_in_a_part_of_a_module_is_seen() -> None:
    model, x = nn.Sequential(HoldsASoftmax()), torch.randn(2, 6, 16)
    for deep in (False, True):
        seen = seen_by(model, x, deep=deep)
        assert seen.layers == ("0",) and not seen.coverage().unseen


class KernelAttention(nn.Module):
    """Calls what nobody knows."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(unknown(x))


def unknown(x: Tensor) -> Tensor:
    return x.cumsum(-2)


def test_what_is_called_attention_and_calls_more_than_its_parts_is_named() -> None:
    seen = seen_by(nn.Sequential(KernelAttention()), torch.randn(2, 6, 16))
    assert list(seen.coverage().unseen) == ["0"]
