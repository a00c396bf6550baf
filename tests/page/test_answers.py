"""What is asked of a server in bad luck: no numbers, no room, and statistics that fail."""

from __future__ import annotations

import json
import warnings
from contextlib import closing
from typing import Any
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch

import intently as it
from intently.show.page.items import items_of
from intently.show.page.serving import answers as answering
from intently.show.page.serving.answers import Served, _Given

from .test_server import HEAD, H, T, source

NUMBERS = {
    "block": "n=0",
    "open": f"{HEAD}&done=0",
    "entropy": HEAD,
    "received": HEAD,
    "tile": f"{HEAD}&r0=0&r1=40&c0=0&c1=40",
    "statistics": "known=0",
    "pooled": f"{HEAD}&r0=0&r1=40&c0=0&c1=40&h=7&w=7&how=max",
    "masked": f"{HEAD}&r0=0&r1=40&c0=0&c1=40&h=7&w=7",
}


def test_what_is_no_number_is_served_quietly() -> None:
    q = torch.randn(1, H, T, 8)
    q[:, 1, 3] = float("nan")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with closing(Served(items_of({"a": it.attend(q, torch.randn(1, H, T, 8))}))) as served:
            answers = {
                name: served.answer(name, dict(parse_qsl(words))) for name, words in NUMBERS.items()
            }
            tile = np.frombuffer(answers["tile"].body, "<f4")
            assert np.isnan(tile.reshape(T, T)[3]).all()
            assert served.background.failures == {}


def test_heads_that_are_forgotten_are_not_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intently.show.page.serving.answers.MEMORY", 0)
    monkeypatch.setattr("intently.show.page.serving.answers.AT_ONCE", 0)
    with closing(Served(items_of(source()))) as served, served.background.answering():
        for head in "012":
            served._head(_Given({"item": "0", "entry": "0", "heads": head}))
        names = [name for name in served.background._jobs if name.startswith("head")]
        assert [name.split()[1] for name in names] == ["0.0.2"]


def test_statistics_that_fail_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    right = answering.measure

    def measure(matrix: Any, tokens: Any) -> Any:
        if matrix.matrix is first:
            raise it.errors.ArgumentError("broken")
        return right(matrix, tokens)

    monkeypatch.setattr(answering, "measure", measure)
    items = items_of(source())
    first = items[0].layers[0].matrix
    with closing(Served(items)) as served:
        for known in ("0", "1"):
            told = json.loads(served.answer("statistics", {"known": known}).body)
        assert (told["known"], told["of"]) == (2, 2)
        assert told["entries"][0] == {}
        assert len(told["entries"][1]["entropy"]) == H
