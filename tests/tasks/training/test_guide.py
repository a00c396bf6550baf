"""Guided attention: its loss by hand, in every kind of model, and what it teaches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from intently.errors import ArgumentError
from intently.nn.models.kinds import EncoderDecoder, new_model
from intently.tasks.training import Pairs, TrainingOptions, train
from intently.tasks.training.batches import epoch
from intently.tasks.training.loss import batch_loss, guided_head, guided_loss

SOURCES, TARGETS = [[4, 5, 6], [7, 8]], [[5, 6], [4, 9, 8]]
GUIDES = [{(0, 2): 1.0, (1, 0): 3.0, (1, 1): 1.0}, {}]
KINDS = {
    "transformer": {},
    "rotary": {"positions": "rotary", "kv_heads": 2},
    "additive": {"model": "recurrent", "attention": "additive"},
    "general": {"model": "recurrent", "attention": "general"},
    "fed": {"model": "recurrent", "attention": "dot", "input_feeding": False},
}


def model_of(kind: str) -> tuple[EncoderDecoder, str]:
    torch.manual_seed(0)
    options = TrainingOptions().with_flags(width=16, dropout=0.0, **KINDS[kind])
    shape = options.shape(12, 12)
    return new_model(shape), guided_head(shape, None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_the_cross_entropy_of_the_weights_that_the_model_has(kind: str) -> None:
    model, head = model_of(kind)
    layer, _, number = head.rpartition(".")
    [batch] = epoch(Pairs(SOURCES, TARGETS, guides=GUIDES), 100, seed=0)
    assert batch.guide is not None and batch.source is not None
    first = int((batch.source[:, 0] == 4).nonzero())
    free, tokens = batch_loss(model, batch)
    loss, same = guided_loss(head, 0.5)(model, batch, 0.0)
    assert same == tokens
    lengths = batch.source_lengths
    weights = model.attentions(batch.source, batch.target_in, lengths)[layer].dense()
    w = weights[first, int(number)].double().log()
    by_hand = -(w[0, 2] + 0.75 * w[1, 0] + 0.25 * w[1, 1])
    assert (loss - free).item() == pytest.approx(0.5 * by_hand.item(), rel=1e-4)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", ["transformer", "additive"])
def test_a_guided_head_learns_what_it_is_taught(kind: str, tmp_path: Path) -> None:
    model, head = model_of(kind)
    layer, _, number = head.rpartition(".")
    backwards = [{(i, 2 - i): 1.0 for i in range(3)}]
    pairs = Pairs([[4, 5, 6]], [[7, 8, 9]], guides=backwards)
    options = TrainingOptions().with_flags(
        steps=60, learning_rate=0.02, warmup=5, save_every=60, device="cpu"
    )
    train(model, pairs, options, tmp_path, loss=guided_loss(head, 1.0))
    source, target = torch.tensor([[4, 5, 6, 2]]), torch.tensor([[1, 7, 8]])
    weights = model.eval().attentions(source, target)[layer].dense()[0, int(number)]
    assert weights.argmax(-1).tolist() == [2, 1, 0]


def test_guides_change_the_checksum_of_the_data_and_are_left_out_with_their_pairs() -> None:
    pairs = Pairs([*SOURCES, [4] * 9], [*TARGETS, [5]], 5, [*GUIDES, {(0, 8): 1.0}])
    assert pairs.too_long == 1 and pairs.guides is not None
    assert len(pairs.guides.places) == 3
    assert pairs.fingerprint != Pairs(SOURCES, TARGETS).fingerprint
    other = [{(0, 2): 1.0, (1, 0): 1.0, (1, 1): 1.0}, {}]
    assert pairs.fingerprint != Pairs(SOURCES, TARGETS, guides=other).fingerprint
    assert pairs.guides.weights(np.array([1]), 4, 3).eq(0).all()


def test_a_batch_without_guides_has_the_plain_loss() -> None:
    model, head = model_of("transformer")
    [batch] = epoch(Pairs(SOURCES, TARGETS), 100, seed=0)
    assert guided_loss(head, 9.0)(model, batch, 0.1)[0] == batch_loss(model, batch, 0.1)[0]


@pytest.mark.parametrize(
    ("flags", "head", "said"),
    [
        ({}, "decoder.0.self_attention.0", "expected one of encoder.0.self_attention.0, encoder"),
        ({}, "encoder.1.self_attention.4", ".* got 'encoder.1.self_attention.4'"),
        ({}, "cross", ".* got 'cross'"),
        (KINDS["additive"], "encoder.0.self_attention.0", "expected one of attention.0; got"),
        (KINDS["additive"] | {"attention": "none"}, None, "expected a model with attention; got N"),
    ],
)
def test_a_head_that_is_not_there_is_refused(flags: dict, head: str | None, said: str) -> None:
    options = TrainingOptions().with_flags(**flags).shape(9, 9)
    with pytest.raises(ArgumentError, match=f"^guided: {said}"):
        guided_head(options, head)


@pytest.mark.parametrize(
    ("guides", "said"),
    [
        ([{(0, 0): 1.0}], "guides: expected one for each of 2 pairs; got 1"),
        ([{(0, -1): 1.0}, {}], r"guides\[0\]: expected positions from 0.*got \(0, -1\): 1.0"),
        ([{}, {(0, 0): -1.0}], r"guides\[1\]: .*numbers above 0; got \(0, 0\): -1.0"),
        ([{}, {(0, 0): float("nan")}], r"guides\[1\]: .*got \(0, 0\): nan"),
    ],
)
def test_guides_that_cannot_be_are_refused(
    guides: list[dict[tuple[int, int], float]], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        Pairs(SOURCES, TARGETS, guides=guides)
