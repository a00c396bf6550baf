"""What the dev set says of a model."""

from __future__ import annotations

import pytest
import tiny_run as tiny
import torch
import torch.nn.functional as F

from intently.errors import ArgumentError
from intently.training import DevSet, Pairs, dev_loss


def test_the_dev_loss_is_that_of_one_sentence_after_another() -> None:
    net = tiny.model().eval()
    sentences = [[4, 5, 6], [7], [8, 9]]
    total = 0.0
    for ids in sentences:
        logits = net(torch.tensor([[*ids, 2]]), torch.tensor([[1, *ids]]))[0]
        total += F.cross_entropy(logits, torch.tensor([*ids, 2]), reduction="sum").item()
    assert dev_loss(net, Pairs(sentences, sentences)) == pytest.approx(total / 9, rel=1e-5)


def test_scores_and_loss() -> None:
    pairs = tiny.pairs(5)
    dev = DevSet([[4], [5]], ["a b c d", "x"], decode=lambda ids: "a b c d", pairs=pairs)
    scores = dev(tiny.model().eval())
    assert list(scores) == ["bleu", "exact", "loss"]
    assert scores["exact"] == 50.0
    assert scores["loss"] == dev_loss(tiny.model().eval(), pairs)


@pytest.mark.parametrize(("sources", "references"), [([[4]], []), ([], [])])
def test_as_many_sources_as_references(sources, references) -> None:
    with pytest.raises(ArgumentError, match="sources: expected one for each of 0 references"):
        DevSet(sources, references, decode=str)
