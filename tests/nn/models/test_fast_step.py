"""The steps of a search straight from the weights: the same numbers, and when they serve."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn

import intently as it
from intently.nn import AttentionOptions, MultiHeadAttention
from intently.nn.models import Transformer, fast_step
from intently.tasks.decoding import Hypothesis, SearchOptions, search

from .plain_transformer import VARIANTS, drawn

SOURCES = [[5, 6, 7], [], [4, 9, 9, 12, 3, 8, 5]]


def model_of(
    variant: str = "plain", dtype: torch.dtype = torch.float32, **options: Any
) -> Transformer:
    """One that ends early or late."""
    given = {"target_vocabulary": 11, "dropout": 0.3} | VARIANTS[variant] | options
    return drawn(dtype, **given).eval()


def found(model: Transformer, beam: int) -> list[Hypothesis]:
    options = SearchOptions(beam=beam, n_best=beam, max_length=11)
    return [h for hypotheses in search(model, SOURCES, options) for h in hypotheses]


def taken(model: Transformer) -> bool:
    with torch.no_grad():
        return fast_step.serves(model)


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_they_are_those_of_decode_bit_for_bit(
    variant: str, dtype: torch.dtype, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of(variant, dtype, width=32)  # so that 1/√d is no power of 2
    assert taken(model)
    own = found(model, beam)
    monkeypatch.setattr(fast_step, "serves", lambda model: False)
    for h, other in zip(own, found(model, beam), strict=True):
        assert h == other
        assert list(h.attention) == list(other.attention)
        for name, matrix in h.attention.items():
            assert torch.equal(matrix.dense(), other.attention[name].dense()), name


@torch.no_grad()
def test_the_cross_attention_may_have_other_heads() -> None:
    model = model_of("rotary")
    model.decoder[0].register_module("cross_attention", MultiHeadAttention(16, 2).eval())
    assert taken(model)
    memory = model.encode(torch.tensor([[5, 6, 2], [7, 2, 0]]), torch.tensor([3, 2]))
    cache, other = model.new_cache(), model.new_cache()
    step = fast_step.SearchStep(model, memory, cache)
    for tokens in torch.tensor([[1, 1], [4, 5], [6, 7]]):
        assert torch.equal(
            step(tokens, memory), model.decode(tokens[:, None], memory, other)[:, -1]
        )


def test_watching_a_search_changes_nothing() -> None:
    model = model_of()
    own = found(model, 3)
    with it.watch(model) as seen:
        assert not taken(model)
        watched = found(model, 3)
    assert watched == own
    assert len(seen)
    assert taken(model)


CAPPED = AttentionOptions(softcap=2.0)
CHANGES: dict[str, Callable[[Any], object]] = {
    "hooked": lambda m: m.decoder[0].self_norm.register_forward_hook(lambda *given: None),
    "hooked before": lambda m: m.decoder[1].feed_forward.register_forward_pre_hook(
        lambda *given: None
    ),
    "replaced": lambda m: m.decoder[0].register_module("self_norm", nn.RMSNorm(16)),
    "overridden": lambda m: setattr(
        m.decoder[0].cross_attention, "forward", lambda *given, **options: given[0]
    ),
    "parametrized": lambda m: nn.utils.parametrizations.weight_norm(m.decoder[0].feed_forward.up),
    "capped": lambda m: m.decoder[0].register_module(
        "self_attention", MultiHeadAttention(16, 4, attention=CAPPED).eval()
    ),
    "training": lambda m: m.train(),
    "bfloat16": lambda m: m.bfloat16(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_model_that_is_not_plain_is_asked_itself(change: str) -> None:
    model = model_of()
    assert taken(model)
    CHANGES[change](model)
    assert not taken(model)


@pytest.mark.parametrize(
    "within",
    [
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: it.kernels.use("eager"),
        lambda: torch.enable_grad(),
    ],
)
def test_what_acts_on_all_calls_acts_on_those_of_a_search(
    within: Callable[[], AbstractContextManager[Any]],
) -> None:
    model = model_of()
    with torch.no_grad():
        with within():
            assert not fast_step.serves(model)
        assert fast_step.serves(model)


def test_a_class_of_ones_own_is_asked_itself() -> None:
    class Other(Transformer):
        pass

    model = model_of()
    model.__class__ = Other
    assert not taken(model)
