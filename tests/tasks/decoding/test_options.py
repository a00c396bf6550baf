"""The options of a search: what they refuse, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from intently.errors import ArgumentError, KindError
from intently.tasks.decoding import SearchOptions

from ...messages import raises

WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("beam", 0, ArgumentError, "an int from 1 to 10,000"),
    ("beam", 2.5, KindError, "an int from 1 to 10,000"),
    ("length_penalty", "long", KindError, "a number"),
    ("length_penalty", float("nan"), ArgumentError, "a number from −6 to 6"),
    ("length_penalty", 6.1, ArgumentError, "a number from −6 to 6"),
    ("length_penalty", -1000, ArgumentError, "a number from −6 to 6"),
    ("max_length", 0, ArgumentError, "an int from 1 to 100,000"),
    ("forbid", 5, KindError, "a tuple of token ids"),
]
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    *(
        (partial(SearchOptions, **{name: value}), kind, f"{name}: expected {text}; got {value!r}.")
        for name, value, kind, text in WRONG
    ),
    (
        lambda: SearchOptions(beam=3, n_best=4),
        ArgumentError,
        "n_best: expected at most beam=3; got 4. A beam of that width ends with that many "
        "hypotheses. Widen the beam.",
    ),
    (
        lambda: SearchOptions(max_length=4, min_length=4),
        ArgumentError,
        "min_length: expected less than max_length=4; got 4. EOS needs a step of its own.",
    ),
    (lambda: SearchOptions(forbid=(-1,)), ArgumentError, "forbid: expected an int ≥ 0; got -1."),
    (
        lambda: SearchOptions(forbid=(3, 2)),
        ArgumentError,
        "forbid: expected ids other than EOS=2; got 2 among them. Without it no output ends. "
        "Set min_length.",
    ),
]


test_contradictions_are_refused = raises(REFUSED, whole=True)


@pytest.mark.parametrize("alpha", [-6, 6])
def test_the_steepest_penalties_keep_scores_apart_in_float32(alpha: float) -> None:
    penalties = torch.tensor([SearchOptions(length_penalty=alpha).penalty(n) for n in (1, 100_000)])
    unlikely, likely = (x / penalties for x in (-1e7, -1e-3))
    assert bool((unlikely.isfinite() & likely.isfinite()).all())
    assert bool(((unlikely < likely) & (likely < 0)).all())


def test_the_limit_leaves_room_for_the_least_length() -> None:
    assert SearchOptions().limit(0) == 10
    assert SearchOptions(min_length=30).limit(4) == 31
    assert SearchOptions(max_length=7).limit(100) == 7
