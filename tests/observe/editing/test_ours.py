"""Edits of our own modules and models equal their weights, edited and multiplied with values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently import edits, kernels
from intently.core.attention import Attention
from intently.core.kernels.problem import Problem
from intently.nn.models import (
    LanguageModel,
    LanguageOptions,
    RecurrentOptions,
    RecurrentSeq2Seq,
    Transformer,
    TransformerOptions,
)
from intently.observe.watching.scope import running
from intently.tasks.decoding import SearchOptions, search
from intently.tasks.decoding.options import EOS, SOS

from ...combinations import pairs

SOURCE = torch.randint(4, 20, (2, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(4, 20, (2, 5), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 4])
Change = Callable[[Tensor], Tensor]


@contextmanager
def by_weights(model: Any, name: str, change: Change) -> Iterator[None]:
    """Compute A @ v from dense weights (b, h, t, s), changed in one module."""
    choose, quick, inside = kernels.choose, kernels.quick, [False]
    module = model.get_submodule(name)

    def product(p: Problem, v: Tensor) -> Tensor:
        if not inside[0]:
            return choose(p, v).multiply(p, v)
        weights = Attention(p).dense()
        lead = weights.ndim
        weights = change(weights if lead > 3 else weights[:, None])
        v = v if lead > 3 else v[:, None]
        y = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], 1)
        return y if lead > 3 else y[:, 0]

    def enter(*_: Any) -> None:
        inside[0] = True

    def leave(*_: Any) -> None:
        inside[0] = False

    hooks = module.register_forward_pre_hook(enter), module.register_forward_hook(leave)
    kernels.choose, kernels.quick = lambda p, v: SimpleNamespace(multiply=product), lambda *_: None
    try:
        yield
    finally:
        kernels.choose, kernels.quick = choose, quick
        for hook in hooks:
            hook.remove()


def at(weights: Tensor, head: int, rows: slice, keys: list[int], factor: float) -> Tensor:
    """Weights of some keys times a factor, of rows that sum to 1 again."""
    weights = weights.clone()
    weights[:, head, rows, keys] *= factor
    return weights / weights.sum(-1, keepdim=True).where(weights.sum(-1, keepdim=True) > 0, 1)


def without(weights: Tensor, head: int) -> Tensor:
    weights = weights.clone()
    weights[:, head] = 0
    return weights


RULES: dict[str, tuple[Callable[[int], edits.Edit], Callable[[Tensor, int], Tensor]]] = {
    "off": (lambda h: edits.off(heads=[h]), without),
    "forbid": (
        lambda h: edits.forbid([0, 2], heads=[h], rows=slice(1, None)),
        lambda w, h: at(w, h, slice(1, None), [0, 2], 0.0),
    ),
    "favour": (
        lambda h: edits.favour([1, 2], 5.0, heads=[h], rows=slice(0, 4)),
        lambda w, h: at(w, h, slice(0, 4), [1, 2], 5.0),
    ),
}


@torch.no_grad()
def checked(model: Any, name: str, run: Callable[[], Tensor], rule: str, head: int) -> None:
    make, change = RULES[rule]
    before = run()
    with it.edit(model, {name: make(head)}):
        found = run()
    with by_weights(model, name, lambda w: change(w, head)):
        expected = run()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - before).abs().max() > 1e-4
    assert torch.equal(run(), before)


def drawn(model: torch.nn.Module) -> Any:
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return model.eval()


@pairs(
    {
        "head": range(4),
        "rule": RULES,
        "name": [
            "encoder.0.self_attention",
            "decoder.1.self_attention",
            "decoder.0.cross_attention",
        ],
    }
)
def test_transformer(name: str, rule: str, head: int) -> None:
    options = TransformerOptions(20, 20, 16, 4, inner=24, kv_heads=2, positions="rotary")
    model = drawn(Transformer(options))
    checked(model, name, lambda: model(SOURCE, TARGET, LENGTHS), rule, head)


@pytest.mark.parametrize("head", range(4))
@pytest.mark.parametrize("rule", RULES)
def test_language_model(rule: str, head: int) -> None:
    model = drawn(LanguageModel(LanguageOptions(20, 16, 4)))
    name = next(n for n, m in model.named_modules() if type(m).__name__ == "MultiHeadAttention")
    checked(model, name, lambda: model(SOURCE), rule, head)


ONE_HEAD = {
    "off": (edits.off(), lambda w, row: w * 0),
    "forbid": (
        edits.forbid([0, 2], rows=[1, 3]),
        lambda w, row: at(w, 0, slice(None), [0, 2], 0.0 if row in (1, 3) else 1.0),
    ),
    "favour": (
        edits.favour([1, 2], 5.0, rows=slice(2, None)),
        lambda w, row: at(w, 0, slice(None), [1, 2], 5.0 if row > 1 else 1.0),
    ),
}


@pytest.mark.parametrize("rule", ONE_HEAD)
@pytest.mark.parametrize("attention", ["additive", "dot", "general", "concat"])
@torch.no_grad()
def test_recurrent(attention: Any, rule: str) -> None:
    """Its decoder attends step by step, and no self-attention tells which step it is."""
    options = RecurrentOptions(20, 20, 16, attention=attention, input_feeding=True)
    model, (edit, change) = drawn(RecurrentSeq2Seq(options)), ONE_HEAD[rule]
    before, steps = model(SOURCE, TARGET, LENGTHS), iter(range(5))
    with it.edit(model, edit):
        found = model(SOURCE, TARGET, LENGTHS)
    with by_weights(model, "attention", lambda w: change(w, next(steps))):
        expected = model(SOURCE, TARGET, LENGTHS)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert (found - before).abs().max() > 1e-4
    assert torch.equal(model(SOURCE, TARGET, LENGTHS), before)


@torch.no_grad()
def test_beams_that_share_the_keys_of_an_encoder() -> None:
    """A search attends from all its beams at once: their queries stand at one position."""
    model = drawn(Transformer(TransformerOptions(20, 20, 16, 4, inner=24)))
    edit = {"decoder.*.cross_attention": edits.forbid([0, 2], rows=[1, 3]) & edits.off(rows=[2])}
    sources = [row[:n].tolist() for row, n in zip(SOURCE, (5, 3))]
    options = SearchOptions(beam=3, n_best=3, max_length=6, length_penalty=0.0)
    with it.edit(model, edit):
        found = search(model, sources, options)
    for source, outputs in zip(sources, found):
        assert len(outputs) == 3
        for output in outputs:
            ids = torch.tensor([[SOS, *output.ids, *[EOS] * output.ended]])
            with it.edit(model, edit):
                logits = model(torch.tensor([[*source, EOS]]), ids[:, :-1])
            chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])
            assert float(chosen.sum()) == pytest.approx(output.log_probability, rel=1e-4)


def test_functions_without_a_module() -> None:
    """`it.attention` within a module is its own."""

    class Own(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert running() is None or running() is self
            return it.attention(x, x, x, mask=it.causal())

    x = torch.randn(3, 4)
    model = Own()
    with it.edit(model, edits.previous()):
        y = model(x)
    torch.testing.assert_close(y, x[[0, 0, 1]])
