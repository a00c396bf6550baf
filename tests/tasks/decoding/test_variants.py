"""Search with every variant of the Transformer: what is found, and what it looked at."""

from __future__ import annotations

from typing import Any

import pytest

from intently.nn.models import Transformer
from intently.tasks.decoding import SearchOptions, search

from ...nn.models.plain_transformer import VARIANTS, drawn
from .slow_beam import SOURCES, check_forced, check_found

each = pytest.mark.parametrize("variant", VARIANTS)


def sharp(variant: str) -> Transformer:
    """A model whose next-token distributions are far from even, and that ends sometimes."""
    options: dict[str, Any] = {"target_vocabulary": 11, "dropout": 0.3}
    return drawn(**(options | VARIANTS[variant]))


@each
def test_it_finds_what_the_slow_search_finds(variant: str) -> None:
    options = SearchOptions(beam=3, n_best=3, max_length=4)
    check_found(sharp(variant), options, atol=1e-5, sources=SOURCES[:3])


@each
@pytest.mark.parametrize("beam", [1, 3])
def test_its_attention_is_that_of_forced_decoding(variant: str, beam: int) -> None:
    options = SearchOptions(beam=beam, n_best=beam, max_length=7)
    check_forced(sharp(variant), options, atol=1e-10, sources=SOURCES[:3])


def test_a_search_ends_before_the_table_of_positions_does() -> None:
    model = drawn(positions="learned", learned_steps=8, target_vocabulary=11)
    [[h]] = search(model, [[5, 6]], SearchOptions(max_length=8))
    assert len(h.ids) <= 8
