"""The search: what it finds against a slow one, when it stops, and what it refuses."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from intently.nn.models import Transformer, TransformerOptions
from intently.tasks.decoding import Hypothesis, SearchOptions, search

from ...messages import raises
from .slow_beam import EOS, PAD, SOS, SOURCES, check_found, tiny_model

CASES = [
    SearchOptions(beam=1, max_length=7),
    SearchOptions(beam=1),
    SearchOptions(beam=2, n_best=2, length_penalty=0.0, max_length=7),
    SearchOptions(beam=3, n_best=1, max_length=8),
    SearchOptions(beam=4, n_best=4, length_penalty=1.3, max_length=6),
    SearchOptions(beam=5, n_best=2, max_length=7, min_length=2),
    SearchOptions(beam=4, n_best=3, length_penalty=-0.5, max_length=6, forbid=(3, 7)),
    SearchOptions(beam=20, n_best=20, length_penalty=0.6, max_length=3),
]


def told(hypotheses: list[Hypothesis]) -> list[tuple[list[int], bool]]:
    return [(h.ids, h.ended) for h in hypotheses]


@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_it_finds_what_the_slow_search_finds(seed: int, options: SearchOptions) -> None:
    check_found(tiny_model(seed), options)


def test_the_cases_hold_both_kinds_of_output_and_both_kinds_of_stop() -> None:
    outputs = [
        h
        for seed in range(3)
        for options in CASES
        for found in search(tiny_model(seed), SOURCES, options)
        for h in found
    ]
    assert {h.ended for h in outputs} == {True, False}
    assert len({len(h.ids) for h in outputs}) > 5


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("batch_tokens", [1, 150, 10**6])
def test_batching_changes_nothing(beam: int, batch_tokens: int) -> None:
    model = tiny_model(7)
    options = SearchOptions(beam=beam, n_best=beam, max_length=9)
    draw = random.Random(0)
    sources = [[draw.randrange(3, 13) for _ in range(draw.randrange(9))] for _ in range(25)]
    together = search(model, sources, options, batch_tokens=batch_tokens)
    for source, found in zip(sources, together):
        [alone] = search(model, [source], options)
        assert told(found) == told(alone)
        for one, other in zip(found, alone):
            assert one.score == pytest.approx(other.score, abs=1e-4)


def test_the_n_best_are_in_order_and_the_first_of_a_longer_list() -> None:
    model = tiny_model(1)
    five = search(model, SOURCES, SearchOptions(beam=5, n_best=5, max_length=8))
    two = search(model, SOURCES, SearchOptions(beam=5, n_best=2, max_length=8))
    for more, less in zip(five, two):
        ranks = [(not h.ended, -h.score) for h in more]
        assert ranks == sorted(ranks) and len({tuple(h.ids) for h in more}) == 5
        assert told(more[:2]) == told(less)


class Scripted(Transformer):
    """A model whose next-token probabilities are given, whatever it reads."""

    def __init__(self, probabilities: list[float]) -> None:
        super().__init__(TransformerOptions(13, len(probabilities), width=8, heads=1, inner=8))
        self.logits = torch.tensor(probabilities).log()
        self.steps: list[tuple[int, ...]] = []

    def decode(self, target: Tensor, memory: Any, cache: Any = None) -> Tensor:
        self.steps.append(tuple(target.shape))
        return super().decode(target, memory, cache) * 0 + self.logits


def test_a_model_that_never_ends_is_cut_at_its_limit() -> None:
    model = Scripted([0.1, 0.1, 0.0, 0.2, 0.4, 0.2])
    found = search(model, [[5, 6], [], [5, EOS]], SearchOptions(beam=3, n_best=2))
    assert [len(h.ids) for [h, _] in found] == [14, 10, 12]
    assert all(not h.ended for hypotheses in found for h in hypotheses)
    assert found[0][0].ids == [4] * 14
    assert found[0][0].log_probability == pytest.approx(14 * torch.tensor(0.4).log().item(), 1e-4)


def test_an_output_that_ended_stands_before_a_likelier_one_that_was_cut() -> None:
    model = Scripted([0.0, 0.0, 0.3, 0.3, 0.4])
    [found] = search(model, [[5]], SearchOptions(beam=2, n_best=2, max_length=1))
    assert told(found) == [([], True), ([4], False)]


def test_a_step_reads_one_new_token_of_every_beam() -> None:
    model = Scripted([0.0, 0.0, 0.0, 0.5, 0.5])
    search(model, [[5, 6], [7]], SearchOptions(beam=3, max_length=4))
    assert model.steps == [(2, 1), (6, 1), (6, 1), (6, 1)]


def test_sentences_that_are_done_leave_the_batch() -> None:
    model = Scripted([0.0, 0.0, 0.0, 0.5, 0.5])
    search(model, [[], [5, 5], [6, 6, 6]], SearchOptions(beam=1))
    assert [rows for rows, _ in model.steps] == [3] * 10 + [2] * 4 + [1] * 2


def test_the_search_stops_as_soon_as_nothing_can_change() -> None:
    ends = Scripted([0.0, 0.0, 0.999, 0.0005, 0.0005])
    search(ends, [[5] * 20], SearchOptions(beam=4))
    assert len(ends.steps) == 1
    every = Scripted([0.0, 0.0, 0.999, 0.0005, 0.0005])
    search(every, [[5] * 20], SearchOptions(beam=4, n_best=4))
    assert len(every.steps) == 3


def test_a_longer_output_that_wins_by_the_length_penalty_is_waited_for() -> None:
    model = Scripted([0.0, 0.0, 0.5, 0.5])
    longest = SearchOptions(beam=6, length_penalty=6.0, max_length=6)
    [[best]] = search(model, [[5]], longest)
    assert (best.ids, best.ended) == ([3] * 5, True)
    [[best]] = search(model, [[5]], SearchOptions(beam=6, length_penalty=0.0, max_length=6))
    assert best.ids == []


def test_special_tokens_are_never_produced() -> None:
    model = Scripted([0.45, 0.45, 0.01, 0.04, 0.03, 0.02])
    options = SearchOptions(beam=4, n_best=4, max_length=5, forbid=(3,))
    produced = {
        token for [*found] in search(model, SOURCES, options) for h in found for token in h.ids
    }
    assert produced and not produced & {PAD, SOS, EOS, 3}


def test_min_length_holds_the_end_back() -> None:
    model = Scripted([0.0, 0.0, 0.9, 0.06, 0.04])
    [[best, *_]] = search(model, [[5]], SearchOptions(beam=3, n_best=3, min_length=4))
    assert (best.ids, best.ended) == ([3, 3, 3, 3], True)


def test_equal_candidates_are_taken_by_the_rank_of_their_beam_and_then_by_id() -> None:
    model = Scripted([1 / 7] * 7)
    options = SearchOptions(beam=3, n_best=3, min_length=1, max_length=2)
    [found] = search(model, [[5]], options)
    assert told(found) == [([3], True), ([3, 3], False), ([3, 4], False)]


def test_fewer_come_back_where_there_are_no_more() -> None:
    model = Scripted([0.0, 0.0, 0.5, 0.5])
    [found] = search(model, [[5]], SearchOptions(beam=9, n_best=9, max_length=2))
    assert [h.ids for h in found] == [[], [3], [3, 3]]


def test_modes_of_all_modules_are_restored() -> None:
    model = tiny_model(0).train()
    model.encoder[0].eval()
    before = [module.training for module in model.modules()]
    results = [search(model, SOURCES, SearchOptions(max_length=5)) for _ in range(2)]
    assert [module.training for module in model.modules()] == before
    assert [told(found) for found in results[0]] == [told(found) for found in results[1]]
    with pytest.raises(ValueError, match="source: expected ids"):
        search(model, [[99]])
    assert [module.training for module in model.modules()] == before


def test_nothing_to_translate() -> None:
    assert search(tiny_model(0), []) == []


def test_half_and_double_models_are_searched() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        model = tiny_model(2).to(dtype)
        found = search(model, SOURCES, SearchOptions(beam=3, n_best=2, max_length=6))
        assert all(h.score <= 0 for hypotheses in found for h in hypotheses)


def scripted(*probabilities: float, **options: Any) -> list[list[Hypothesis]]:
    return search(Scripted([*probabilities]), [[5]], SearchOptions(**options))


WRONG: Any = 3
test_errors = raises(
    [
        (
            lambda: scripted(*[float("nan")] * 5),
            ValueError,
            "model: expected finite logits; got NaN in step 1. Training diverged, or its weights "
            "are damaged. Check the training loss.",
        ),
        (
            lambda: scripted(0.0, 0.0, 0.5, 0.5, min_length=1, forbid=(3,)),
            ValueError,
            "forbid: expected a token that may be produced at every step; got 1 forbidden. All "
            "others are forbidden, or have probability 0.",
        ),
        *(
            (
                lambda sources=sources: search(tiny_model(0), sources),
                TypeError,
                f"sources[0]: expected a list of token ids; got {first}. Search takes one list of "
                "ids for each sentence. Encode text with a tokenizer.",
            )
            for sources, first in (
                (["I drink milk."], "'I drink milk.'"),
                ([5, 6], "5"),
                ([[5.0]], "[5.0]"),
            )
        ),
        (
            lambda: search(tiny_model(0), SOURCES, WRONG),
            TypeError,
            "options: expected SearchOptions or None; got 3.",
        ),
        (
            lambda: search(tiny_model(0), SOURCES, batch_tokens=0),
            ValueError,
            "batch_tokens: expected an int ≥ 1; got 0.",
        ),
        (
            lambda: search(tiny_model(0), SOURCES, SearchOptions(forbid=(11,))),
            ValueError,
            "forbid: expected ids below the vocabulary's size 11",
        ),
    ]
)
