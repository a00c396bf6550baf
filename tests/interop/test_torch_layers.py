"""PyTorch's layers and stacks against ours with their weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import intently as it
from intently.interop.blocks import Decoder, Encoder, EncoderDecoder
from intently.interop.torch import load
from intently.nn import DecoderLayer, EncoderLayer

from .comparing import LENGTHS, SEEN, C, H, T, close, drawn, steps

LAYERS: dict[str, dict[str, Any]] = {
    "post relu": {},
    "pre gelu": {"norm_first": True, "activation": "gelu"},
    "no bias": {"bias": False, "layer_norm_eps": 1e-3},
    "module": {"activation": nn.GELU(approximate="tanh"), "batch_first": False},
    "learned": {"activation": nn.PReLU(), "norm_first": True},
    "function": {"activation": nn.functional.silu},
}


FULL_MASK = ~torch.ones(6, 6, dtype=torch.bool).tril()

CASES = [
    *((form, form != "no bias", torch.float32) for form in LAYERS),
    *((form, False, torch.bfloat16) for form in ("post relu", "learned")),
]
"""The form, whether it is in train mode, its dtype."""


@pytest.mark.parametrize(("form", "training", "dtype"), CASES)
def test_encoder_layers(form: str, training: bool, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"dropout": 0.0, "batch_first": True} | LAYERS[form]
    theirs = drawn(nn.TransformerEncoderLayer(C, H, 24, **options), dtype).train(training)
    ours = load(theirs)
    assert type(ours) is EncoderLayer and ours.training == training
    x = steps(6, dtype=dtype)
    given = x if options["batch_first"] else x.transpose(0, 1)
    for rule, how in (
        (None, {}),
        (it.padding(LENGTHS), {"src_key_padding_mask": ~SEEN}),
        (it.causal(), {"src_mask": FULL_MASK, "is_causal": True}),
    ):
        expected = theirs(given, **how)
        close(ours(x, mask=rule), expected if options["batch_first"] else expected.transpose(0, 1))


@pytest.mark.parametrize(("form", "training", "dtype"), CASES)
def test_decoder_layers(form: str, training: bool, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"dropout": 0.0} | LAYERS[form] | {"batch_first": True}
    theirs = drawn(nn.TransformerDecoderLayer(C, H, 24, **options), dtype).train(training)
    ours = load(theirs)
    assert type(ours) is DecoderLayer and ours.training == training
    x, states = steps(T, dtype=dtype), steps(6, dtype=dtype)
    expected = theirs(x, states)
    close(ours(x, states), expected)
    expected = theirs(
        x, states, tgt_mask=FULL_MASK[:T, :T], memory_key_padding_mask=~SEEN, tgt_is_causal=True
    )
    close(ours(x, states, mask=it.causal(), states_mask=it.padding(LENGTHS)), expected)


def test_dropout_of_layers_is_kept() -> None:
    theirs = nn.TransformerDecoderLayer(C, H, 24, dropout=0.25)
    theirs.dropout.p = 0.125
    ours: Any = load(theirs)
    assert ours.dropout == ours.self_attention.dropout == ours.cross_attention.dropout == 0.25
    assert ours.feed_forward.dropout == 0.125


@pytest.mark.parametrize(("training", "norm"), [(True, True), (False, False), (False, True)])
def test_encoders(training: bool, norm: bool) -> None:
    layer = nn.TransformerEncoderLayer(C, H, 24, dropout=0.0, batch_first=True)
    last = nn.LayerNorm(C, eps=1e-3) if norm else None
    theirs = drawn(nn.TransformerEncoder(layer, 2, last)).train(training)
    ours = load(theirs)
    assert type(ours) is Encoder and ours.training == training
    x = steps(6)
    close(ours(x), theirs(x))
    found = ours(x, mask=it.padding(LENGTHS))
    with torch.no_grad():
        expected = theirs(x, src_key_padding_mask=~SEEN)
    close(found[SEEN], expected[SEEN])
    if training:
        close(found, expected)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_decoders_and_their_caches(training: bool) -> None:
    layer = nn.TransformerDecoderLayer(C, H, 24, dropout=0.0, batch_first=True)
    theirs = drawn(nn.TransformerDecoder(layer, 2, nn.LayerNorm(C))).train(training)
    ours = load(theirs)
    assert type(ours) is Decoder
    x, states = steps(T), steps(6)
    rules: dict[str, Any] = {"mask": it.causal(), "states_mask": it.padding(LENGTHS)}
    expected = theirs(x, states, tgt_mask=FULL_MASK[:T, :T], memory_key_padding_mask=~SEEN)
    close(ours(x, states, **rules), expected)
    cache = ours.new_cache()
    taken = [ours(x[:, i : i + 1], states, cache=cache, **rules) for i in range(T)]
    close(torch.cat(taken, 1), expected)


@pytest.mark.parametrize("norm_first", [True, False], ids=["pre", "post"])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_whole_transformers(training: bool, norm_first: bool) -> None:
    batch_first = training == norm_first
    theirs = nn.Transformer(
        C, H, 2, 3, 24, dropout=0.0, batch_first=batch_first, norm_first=norm_first
    )
    ours = load(drawn(theirs).train(training))
    assert type(ours) is EncoderDecoder and ours.training == training
    source, target = steps(6), steps(T)
    given = (source, target) if batch_first else (source.transpose(0, 1), target.transpose(0, 1))
    with torch.set_grad_enabled(training):
        expected = theirs(
            *given,
            tgt_mask=FULL_MASK[:T, :T],
            src_key_padding_mask=~SEEN,
            memory_key_padding_mask=~SEEN,
        )
        expected = expected if batch_first else expected.transpose(0, 1)
        padding = it.padding(LENGTHS)
        found = ours(
            source, target, source_mask=padding, target_mask=it.causal(), states_mask=padding
        )
    close(found, expected)
    states = ours.encode(source, mask=padding)
    close(ours.decode(target, states, mask=it.causal(), states_mask=padding), expected)
