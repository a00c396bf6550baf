"""What a hypothesis looked at: replayed from the search, lazy, and freed with it."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import intently as it
from intently.core.positions import DynamicNTK
from intently.nn import AttentionOptions, MultiHeadAttention, RelativeBias
from intently.nn.replay import attended
from intently.tasks.decoding import Hypothesis, SearchOptions, search
from intently.tasks.decoding.hypothesis import SearchTrace

from .slow_beam import EOS, SOS, SOURCES, check_forced, tiny_model


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("seed", range(3))
def test_it_equals_forced_decoding_of_the_same_output(seed: int, beam: int) -> None:
    check_forced(tiny_model(seed), SearchOptions(beam=beam, n_best=beam, max_length=8))


OWN: dict[str, Callable[[], AttentionOptions]] = {
    "mask": lambda: AttentionOptions(mask=it.window(1, 1)),
    "alibi": lambda: AttentionOptions(bias=it.alibi(2)),
    "learned": lambda: AttentionOptions(bias=RelativeBias(2, buckets=8, max_distance=5)),
    "turned": lambda: AttentionOptions(positions=it.Rotary(8)),
    "all": lambda: AttentionOptions(
        mask=it.window(2, 2),
        bias=it.alibi(2),
        softcap=2.0,
        qk_norm=torch.nn.RMSNorm,
        scale=0.7,
        sinks=torch.tensor([1.0, -1.0]),
        positions=it.Rotary(8),
    ),
}


@pytest.mark.parametrize("own", OWN)
def test_the_options_of_layers_are_replayed(own: str) -> None:
    model: Any = tiny_model(0)
    for layer in (*model.encoder, *model.decoder):
        layer.self_attention = MultiHeadAttention(16, 2, attention=OWN[own]()).eval()
    for layer in model.decoder:
        cross = AttentionOptions(softcap=1.0, sinks=torch.ones(2), scale=0.8)
        layer.cross_attention = MultiHeadAttention(16, 2, attention=cross).eval()
    check_forced(model, SearchOptions(beam=2, n_best=2, max_length=8))


@torch.no_grad()
@pytest.mark.parametrize("own", ["by length", "cross"])
def test_every_step_is_replayed_as_it_was(own: str) -> None:
    """Angles that hang on the length, and positions of queries of one step over the source."""
    model: Any = tiny_model(0)
    turned = AttentionOptions(positions=it.Rotary(8, scaling=DynamicNTK(4.0, 3)))
    cross = AttentionOptions(mask=it.window(1, 0), bias=it.alibi(2))
    for layer in model.decoder:
        if own == "cross":
            layer.cross_attention = MultiHeadAttention(16, 2, attention=cross).eval()
        else:
            layer.self_attention = MultiHeadAttention(16, 2, attention=turned).eval()
    [[h]] = search(model, [[5, 6, 7]], SearchOptions(beam=1, max_length=8))
    memory, cache = model.encode(torch.tensor([[5, 6, 7, EOS]])), model.new_cache()
    name = "cross_attention" if own == "cross" else "self_attention"
    for i, token in enumerate([SOS, *h.ids][: h.attention[f"decoder.0.{name}"].shape[-2]]):
        blocks = [(str(j), getattr(x, name)) for j, x in enumerate(model.decoder)]
        ids, twin = torch.tensor([[token]]), copy.deepcopy(cache)
        found = attended(blocks, partial(model.decode, ids, memory, twin))
        model.decode(ids, memory, cache)
        # the twin is done with: asked and then run, it has taken the step twice
        row = h.attention[f"decoder.0.{name}"].dense()[:, i]
        expected = found["0"].dense()[0, :, 0]
        torch.testing.assert_close(row[:, : expected.shape[-1]], expected, atol=1e-6, rtol=0)
        assert not row[:, expected.shape[-1] :].any()


def test_it_outlives_the_search_and_the_model() -> None:
    model = tiny_model(0)
    [[h]] = search(model, [[5, 6]], SearchOptions(max_length=5))
    before = search(model, [[5, 6]], SearchOptions(max_length=5))[0][0].attention
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    search(model, SOURCES)
    for name, matrix in h.attention.items():
        assert torch.equal(matrix.dense(), before[name].dense())


def test_it_can_be_multiplied_labelled_and_differentiated_through() -> None:
    [[h]] = search(tiny_model(0), [[5, 6]], SearchOptions(max_length=5))
    cross = h.attention["decoder.1.cross_attention"].label(columns=["a", "b", "</s>"])
    v = torch.randn(2, 3, 8, requires_grad=True)
    (cross @ v).sum().backward()
    assert v.grad is not None and cross.labels[1] == ("a", "b", "</s>")


def test_the_trace_is_freed_with_its_hypotheses() -> None:
    found = search(tiny_model(0), SOURCES, SearchOptions(max_length=5))
    trace = weakref.ref(next(x for x in vars(found[0][0]).values() if isinstance(x, SearchTrace)))
    del found
    gc.collect()
    assert trace() is None


def test_a_search_that_did_not_keep_it_says_so() -> None:
    options = SearchOptions(beam=3, n_best=3, max_length=6)
    kept = search(tiny_model(0), SOURCES, options)
    found = search(tiny_model(0), SOURCES, options, keep_attention=False)
    assert found == kept
    with pytest.raises(ValueError) as caught:
        _ = found[0][0].attention
    assert str(caught.value) == (
        "attention: expected a search that kept it; got one that did not. "
        "Call search(…, keep_attention=True)."
    )


def test_a_hypothesis_shows_what_matters() -> None:
    shown = repr(Hypothesis([4, 5], -1.0, -0.5))
    assert shown == "Hypothesis(ids=[4, 5], log_probability=-1.0, score=-0.5, ended=True)"
