"""Odd subjects and wrong arguments: what is said is true, and nothing of the caller's changes."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import intently as it
from intently.checker import check
from intently.errors import ArgumentError, IntentlyError


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Callable:
    """No module: its weight is a field."""

    def __init__(self) -> None:
        self.weight = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))

    def __call__(self, x: Tensor) -> Tensor:
        q, k, v = (x @ self.weight).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Sixteen(Layer):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] % 16 == 0
        return super().forward(x)


class Uncopied(Layer):
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("there is one of me")


class Silent(Layer):
    def __init__(self, channels: bool) -> None:
        super().__init__()
        self.channels = channels

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)

    @torch.inference_mode()
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4).flatten(1, 2)
        q, k, v = (y.mT if self.channels else y for y in (q, k, v))
        alpha, z = q.shape[-1] ** -0.5, q[..., :1] @ k.mT[:, :1]
        w = torch.baddbmm(z, q, k.mT, beta=0.0, alpha=alpha).softmax(-1)
        y = w.masked_fill_(w.isnan(), 0.0) @ v
        y = (y.mT if self.channels else y).unflatten(0, (-1, 4))
        return self.out(y.transpose(1, 2).flatten(2))


class Chosen(Layer):
    """Chooses kernels for itself, and lets a tenth of the gradient pass."""

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            return super().forward(0.1 * x + 0.9 * x.detach())


class Null(Layer):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        first = self.out.bias.view(4, 1, 8).expand(len(x), -1, -1, -1)
        k, v, mask = (
            torch.cat([first, k], 2),
            torch.cat([first, v], 2),
            F.pad(mask, (1, 0), value=1),
        )
        return self.out(
            F.scaled_dot_product_attention(q, k, v, mask[:, None, None]).mT.flatten(1, 2).mT
        )


def remembering() -> Any:
    layer, seen = Layer(), []

    def call(x: Tensor) -> Tensor:
        seen.append(x)
        return layer(x)

    return call


def seeding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    np.random.seed(torch.manual_seed(0).initial_seed())
    return F.scaled_dot_product_attention(q, k, v)


def sunk(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
    z = torch.cat([q @ k.mT / 8**0.5, sinks[:, None, None].expand(len(q), -1, q.shape[-2], 1)], -1)
    return z.softmax(-1)[..., :-1] @ v


def rows(x: Tensor) -> Tensor:
    assert x.ndim == 2
    return (x @ x.mT * x.shape[-1] ** -0.5).softmax(-1) @ x


def test_a_stated_mask_of_other_lengths_is_refused() -> None:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    with pytest.raises(ArgumentError, match="mask: expected a mask for b=2, h=2, t=6, s=9"):
        check(layer, mask=it.segments([[0, 0, 1]]))
    x = torch.randn(1, 3, 8)
    given = {"query": x, "key": x, "value": x}
    names = [f.name for f in check(layer, inputs=given, mask=it.segments([[0, 0, 1]])).mistakes]
    assert names == ["mask-missing"]


@pytest.mark.parametrize(
    "subject",
    [
        *(Callable(), Sixteen(), Uncopied(), remembering(), seeding, rows),
        partial(nn.MultiheadAttention(32, 4, batch_first=True), need_weights=False),
        Layer().requires_grad_(False),
        Layer().bfloat16(),
        *(Silent(channels=False), Silent(channels=True), Chosen()),
    ],
)
def test_what_is_odd_and_right_passes(subject: Any) -> None:
    report = check(subject)
    assert report.ok and report.computes, str(report)
    assert not any("mask-" in x or "bias" in x for x in report.computes), report.computes


@pytest.mark.parametrize(
    "change",
    [
        *(lambda y: 0 * y, lambda y: y + 1, lambda y: y.clamp(-0.1, 0.1), lambda y: y.flip(-2)),
        *(lambda y: y.flip(-1), lambda y: y.roll(1, 1), lambda y: y.relu()),
    ],
)
def test_what_a_function_does_to_its_output_is_a_mistake(change: Any) -> None:
    report = check(lambda q, k, v: change(F.scaled_dot_product_attention(q, k, v)))
    assert report.ok is False, str(report)


def test_nothing_of_the_callers_changes() -> None:
    layer = Layer().train()
    layer.qkv.register_forward_hook(lambda *_: None)
    x = torch.randn(2, 6, 32)
    held, weights = x.clone(), [p.clone() for p in layer.parameters()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[union-attr]
    check(layer, inputs={"x": x})
    check(seeding)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # type: ignore[index]
    assert torch.equal(x, held) and layer.training and len(layer.qkv._forward_hooks) == 1
    assert all(p.equal(w) and p.grad is None for p, w in zip(layer.parameters(), weights))


def test_inputs_changed_in_place_are_one_mistake() -> None:
    def mine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q *= q.shape[-1] ** -0.5
        return (q @ k.mT).softmax(-1) @ v

    given = {n: torch.randn(2, 4, 6, 8, dtype=torch.double) for n in "qkv"}
    held = given["q"].clone()
    for report in (check(mine), check(mine, inputs=given)):
        assert [f.name for f in report.mistakes] == ["input-changed"], str(report)
    assert torch.equal(given["q"], held)


def test_outputs_that_are_all_nan() -> None:
    report = check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v) * torch.nan)
    assert [f.name for f in report.mistakes] == ["nan-with-keys"]


def test_an_example_of_zeros_tells_nothing_wrong() -> None:
    assert check(Layer(), inputs={"x": torch.zeros(2, 6, 32)}).ok


def test_a_mask_may_be_a_tensor() -> None:
    report = check(Layer(), mask=torch.ones(6, 6).tril().bool())  # type: ignore[arg-type]
    assert [f.name for f in report.mistakes] == ["mask-missing"], str(report)


@pytest.mark.parametrize(
    ("subject", "given", "said"),
    [
        (Layer, {}, "got the class Layer. Make one first: Layer(...)"),
        (3, {}, "subject: expected a function or a module; got int"),
        (Layer().to("meta"), {}, "meta device"),
        (lambda q, k, v: None, {}, "got a call that returns NoneType"),
        (lambda q, k, v: (q + k + v).sum(), {}, "got a call that returns shape ()"),
        (lambda q, k, v: sys.exit(3), {}, "the code ends the process: exit(3)"),
        (Layer(), {"inputs": torch.zeros(2, 6, 32)}, "inputs: expected a mapping"),
        (Layer(), {"inputs": {"x": torch.zeros(2, 0, 32)}}, "inputs['x']: expected at least one"),
        (Layer(), {"mask": "causal"}, "mask: expected a mask such as it.causal()"),
        (Layer(), {"like": 3}, "like: expected a function or a module; got int"),
        (Layer(), {"scale": "x"}, "scale: expected a number"),
        (Layer(), {"layers": 3}, "layers: expected patterns of names"),
        (Layer(), {"same": {"fast": True}}, "same: expected a list of settings"),
        (Layer(), {"arguments": {"nope": "attend"}}, "expected names among x; got nope"),
    ],
)
def test_what_cannot_be_examined_is_told(subject: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(IntentlyError) as caught:
        check(subject, **given)
    assert said in str(caught.value)


def test_a_causal_example_of_one_position() -> None:
    mine = partial(F.scaled_dot_product_attention, is_causal=True)
    one = {n: torch.randn(2, 4, 1, 8) for n in ("query", "key", "value")}
    assert not check(mine, inputs=one, mask=it.causal()).findings


def test_a_window_that_short_examples_do_not_reach() -> None:
    assert not check(partial(it.attention, mask=it.causal() & it.window(20, 0))).findings


def test_each_mask_is_for_the_attention_that_it_enters() -> None:
    encoder, layer = (nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))

    def translate(src: Tensor, trg: Tensor, e_mask: Tensor, d_mask: Tensor) -> Tensor:
        memory = encoder(src, src, src, key_padding_mask=~e_mask)[0]
        y = layer(trg, trg, trg, attn_mask=~d_mask.repeat_interleave(4, 0))[0]
        return layer(y, memory, memory, key_padding_mask=~e_mask)[0]

    real = torch.arange(6) < torch.tensor([[6], [4]])
    given = {n: torch.randn(2, 6, 32) for n in ("src", "trg")}
    given |= {"e_mask": real, "d_mask": real.flip(0)[:, None] & torch.ones(6, 6).tril().bool()}
    assert check(translate, inputs=given).ok, str(check(translate, inputs=given))


def test_sinks_of_as_many_heads_as_rows() -> None:
    given = {"q": (2, 2, 9, 8), "k": (2, 2, 9, 8), "v": (2, 2, 9, 8), "sinks": (2,)}
    report = check(sunk, inputs={n: torch.randn(x) for n, x in given.items()})
    assert [f.name for f in report.findings] == ["sink"], str(report)


def test_padding_is_counted_from_the_first_key_of_the_text() -> None:
    given = {"x": torch.randn(2, 6, 32), "mask": torch.arange(6) < torch.tensor([[6], [4]])}
    assert check(Null(), inputs=given, mask=it.padding([6, 4])).ok
