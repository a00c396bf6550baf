"""Tiny random transformers models as ours: states, logits, caches, gradients and matrices."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import intently as it
from intently.errors import ArgumentError
from intently.interop.transformers import TextModel, TextToText, load

from .tiny_models import (
    BERT,
    DECODERS,
    GPT2,
    MARIAN,
    SHARED,
    close,
    close_maps,
    first,
    foreign,
    ids,
    padded,
    places,
    text,
)

SIDES: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("MarianMTModel", MARIAN),
    "marian bare": ("MarianModel", MARIAN),
}


def ours(seen: Tensor) -> Tensor:
    return seen.bool()[:, None, None, :]


def backward(out: Any) -> None:
    """A backward pass of either model's output."""
    logits = out if isinstance(out, Tensor) else out.logits
    logits.log_softmax(-1)[..., 5].sum().backward()


def close_embeddings(ours: torch.nn.Embedding, theirs: Any) -> None:
    """The gradients of the embeddings are close."""
    close(ours.weight.grad, theirs.get_input_embeddings().weight.grad, tol=5e-5)


def pair(name: str, given: dict[str, Any]) -> tuple[Any, TextToText]:
    theirs = foreign(name, given)
    model = load(theirs)
    assert isinstance(model, TextToText)
    return theirs, model


@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family: str) -> None:
    theirs, model = text(*DECODERS[family])
    with torch.no_grad():
        want = theirs(ids(), output_attentions=True)
        close(model(ids()), first(want))
        close_maps(model.attentions(ids()), "stack.layers.{}.self_attention", want.attentions)
        for side in ("left", "right"):
            seen = padded(side)
            close(model(ids(), mask=ours(seen)), first(theirs(ids(), attention_mask=seen)), seen)
        cache = model.new_cache()
        steps = [model(ids()[:, a:b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 11))]
        close(torch.cat(steps, 1), first(want))


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2", "qwen3"])
def test_gradients(family: str) -> None:
    theirs, model = text(*DECODERS[family])
    want, found = theirs.train()(ids()), model.train()(ids())
    close(found, want.logits)
    backward(want)
    backward(found)
    close_embeddings(model.embed.tokens, theirs)
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3"])
def test_bfloat16(family: str) -> None:
    """Within 2e-2 of theirs at the scale of a fresh model; at any scale as right as theirs."""
    whole = foreign(*DECODERS[family])
    for tol in (0.1, 2e-2):
        theirs = copy.deepcopy(whole).bfloat16()
        model = load(theirs)
        assert isinstance(model, TextModel)
        with torch.no_grad():
            truth, found, want = whole(ids()).logits, model(ids()), theirs(ids()).logits.float()
        assert found.dtype is torch.bfloat16
        close(found.float(), want, tol=tol)
        assert (found - truth).abs().mean() <= 1.5 * (want - truth).abs().mean()
        whole.apply(whole._init_weights)


HIDDEN = {"hidden_dropout_prob": 0.3}


DROPPED: list[tuple[str, dict[str, Any]]] = [
    ("GPT2LMHeadModel", {**GPT2, "resid_pdrop": 0.3, "embd_pdrop": 0.2}),
    ("BertModel", {**BERT, **HIDDEN}),
    ("MarianMTModel", {**MARIAN, "dropout": 0.3, "activation_dropout": 0.2}),
]


@pytest.mark.parametrize("name, given", DROPPED)
def test_dropout_acts_where_theirs_does(name: str, given: dict[str, Any]) -> None:
    theirs = foreign(name, given).train()
    model = load(theirs)
    both = {"decoder_input_ids": ids(t=6)} if name == "MarianMTModel" else {}
    torch.manual_seed(7)
    want = first(theirs(ids(), **both))
    torch.manual_seed(7)
    close(model(ids(), *both.values()), want)


@pytest.mark.parametrize(
    ("name", "given", "place"),
    [
        ("GPT2Model", {**GPT2, "attn_pdrop": 0.4}, "stack.layers.0.self_attention"),
        ("LlamaModel", {**SHARED, "attention_dropout": 0.4}, "stack.layers.0.self_attention"),
        (
            "BertModel",
            {**BERT, "attention_probs_dropout_prob": 0.4},
            "stack.layers.0.self_attention",
        ),
        ("MarianModel", {**MARIAN, "attention_dropout": 0.4}, "decoder.layers.0.cross_attention"),
    ],
)
def test_dropout_of_the_weights_is_kept(name: str, given: dict[str, Any], place: str) -> None:
    assert load(foreign(name, given)).get_submodule(place).dropout == 0.4


def test_positions_of_the_caller() -> None:
    theirs, model = text("GPT2LMHeadModel", GPT2)
    seen = padded("left")
    at = places(seen)
    with torch.no_grad():
        want = theirs(ids(), attention_mask=seen, position_ids=at).logits
        close(model(ids(), mask=ours(seen), positions=at), want, seen)


@pytest.mark.parametrize(("name", "training"), [("BertForMaskedLM", True), ("BertModel", False)])
def test_bert(name: str, training: bool) -> None:
    theirs = foreign(name, BERT).train(training)
    model = load(theirs)
    assert isinstance(model, TextModel) and model.training == training
    types, seen = ids(seed=4) % 2, padded("right")
    given = {"attention_mask": seen, "token_type_ids": types, "output_attentions": True}
    want = theirs(ids(), **given)
    found = model(ids(), mask=it.padding(torch.tensor([11, 7])), types=types)
    close(found, first(want))
    matrices = model.attentions(ids(), mask=ours(seen), types=types)
    close_maps(matrices, "stack.layers.{}.self_attention", want.attentions)
    if name == "BertModel":
        close(model.pooled(found), want.pooler_output)
    else:
        with pytest.raises(ArgumentError, match="pooled: expected a model with a pooler"):
            model.pooled(found)
    found.square().sum().backward()
    first(want).square().sum().backward()
    close_embeddings(model.embed.tokens, theirs)


@pytest.mark.parametrize("family", SIDES)
def test_two_sides(family: str) -> None:
    theirs, model = pair(*SIDES[family])
    seen, target = padded("right"), ids(t=6, seed=5)
    with torch.no_grad():
        want = theirs(ids(), attention_mask=seen, decoder_input_ids=target, output_attentions=True)
        close(model(ids(), target, mask=ours(seen)), first(want))
        found = model.attentions(ids(), target, mask=ours(seen))
        close_maps(found, "encoder.layers.{}.self_attention", want.encoder_attentions)
        close_maps(found, "decoder.layers.{}.self_attention", want.decoder_attentions)
        close_maps(found, "decoder.layers.{}.cross_attention", want.cross_attentions)
        states, cache = model.encode(ids(), mask=ours(seen)), model.new_cache()
        close(states, want.encoder_last_hidden_state)
        steps = [
            model.decode(target[:, a:b], states, states_mask=ours(seen), cache=cache)
            for a, b in ((0, 1), (1, 4), (4, 6))
        ]
        close(torch.cat(steps, 1), first(want))


def test_gradients_of_two_sides() -> None:
    theirs, model = pair(*SIDES["marian"])
    backward(theirs.train()(ids(), None, ids(t=6)))
    backward(model.train()(ids(), ids(t=6)))
    close_embeddings(model.source.tokens, theirs)


@pytest.mark.parametrize(
    "name, given", [DECODERS["gpt2"], DECODERS["llama"], ("BertForMaskedLM", BERT), SIDES["marian"]]
)
def test_folders(name: str, given: dict[str, Any], tmp_path: Path) -> None:
    theirs = foreign(name, given)
    theirs.save_pretrained(tmp_path)
    live, read = load(theirs).state_dict(), load(tmp_path).state_dict()
    assert live.keys() == read.keys()
    assert all(torch.equal(live[key], read[key]) for key in live)


@pytest.mark.parametrize(
    ("name", "given", "tied"),
    [
        (*DECODERS["gpt2"], {"head.weight", "embed.tokens.weight"}),
        (*SIDES["marian"], {"head.weight", "source.tokens.weight", "target.tokens.weight"}),
        ("LlamaForCausalLM", SHARED, {"embed.tokens.weight"}),
        ("BertForMaskedLM", BERT, {"head.3.weight", "embed.tokens.weight"}),
    ],
)
def test_tied_weights_stay_tied(name: str, given: dict[str, Any], tied: set[str]) -> None:
    everything = dict(load(foreign(name, given)).named_parameters(remove_duplicate=False))
    [embedding] = (x for x in ("embed", "source") if f"{x}.tokens.weight" in everything)
    weight = everything[f"{embedding}.tokens.weight"]
    assert {name for name, p in everything.items() if p is weight} == tied


def test_what_is_theirs_stays_theirs() -> None:
    theirs, model = text(*DECODERS["llama"])
    before = theirs.lm_head.weight.clone()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    assert torch.equal(theirs.lm_head.weight, before)
