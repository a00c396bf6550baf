"""Searches of recurrent models: against the slow search, and what they looked at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from intently.nn.models import RecurrentOptions, RecurrentSeq2Seq
from intently.tasks.decoding import SearchOptions, search

from ...combinations import pairs
from .slow_beam import SOURCES, check_forced, check_found

KINDS = [
    ("gru", "additive"),
    ("lstm", "dot"),
    ("rnn", "general"),
    ("gru", "concat"),
    ("lstm", "none"),
]
CASES = [
    SearchOptions(beam=1, max_length=6),
    SearchOptions(beam=3, n_best=3, max_length=5, min_length=1, forbid=(3,)),
]


def sharp_model(cell: Any, attention: Any, feeding: bool) -> RecurrentSeq2Seq:
    """A random model whose next-token distributions are far from even."""
    torch.manual_seed(3)
    options = RecurrentOptions(
        13, 11, width=16, cell=cell, attention=attention, input_feeding=feeding, decoder_layers=2
    )
    model = RecurrentSeq2Seq(options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.5)
    return model


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize(("cell", "attention"), KINDS)
def test_it_finds_what_the_slow_search_finds(
    cell: str, attention: str, options: SearchOptions
) -> None:
    check_found(sharp_model(cell, attention, feeding=True), options, sources=SOURCES[:3])


@pairs({"beam": [1, 3], "feeding": [True, False], "cell, attention": KINDS})
def test_its_attention_is_that_of_forced_decoding(
    cell: str, attention: str, feeding: bool, beam: int
) -> None:
    options = SearchOptions(beam=beam, n_best=beam, max_length=6)
    check_forced(sharp_model(cell, attention, feeding), options, sources=SOURCES[:3])


def test_later_training_does_not_change_what_was_looked_at() -> None:
    model = sharp_model("gru", "additive", True)
    [[h]] = search(model, [[5, 6, 7]], SearchOptions(beam=2, max_length=5))
    before = h.attention["attention"].dense()
    [[other]] = search(model, [[5, 6, 7]], SearchOptions(beam=2, max_length=5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(other.attention["attention"].dense(), before)
