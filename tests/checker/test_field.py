"""Programs that strangers wrote: right ones are not accused, and nothing unseen is called right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import intently as it
from intently.checker import check

from .reports import names

FIELD = Path(__file__).resolve().parents[3] / "shared" / "field"
ARGUABLE = ("11b T5", "9 unmerged")


@pytest.mark.skipif(not FIELD.is_dir(), reason="the programs of the field are not here")
@pytest.mark.parametrize(
    ("script", "bad"),
    [("false_alarms", ("WRONG", "RAISED")), ("blind_spots", ("MISSED", "RAISED"))],
)
def test_nobody_is_accused_and_nothing_is_missed(script: str, bad: tuple[str, ...]) -> None:
    env, run = {**os.environ, "OMP_NUM_THREADS": "1"}, [sys.executable, str(FIELD / f"{script}.py")]
    lines = subprocess.check_output(run, env=env, text=True).splitlines()
    told = [x for x in lines if x.startswith(bad) or len(lines) < 9]
    assert [x for x in told if not any(y in x for y in ARGUABLE)] == []


def numpy_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float) -> np.ndarray:
    e = np.exp(q @ np.swapaxes(k, -1, -2) * scale)
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize(("scale", "expected"), [(8**-0.5, []), (1.0, ["no-scale"])])
def test_numpy_goes_in_and_out(scale: float, expected: list[str]) -> None:
    draw = np.random.default_rng(0)
    given = {n: draw.normal(size=(2, 4, 6, 8)) for n in "qkv"}
    found = [f.name for f in check(numpy_attention, inputs={**given, "scale": scale}).mistakes]
    assert found == expected


def test_a_layout_is_stated() -> None:
    def mine(x: Tensor) -> Tensor:  # (t, b, c)
        y = x.transpose(0, 1)
        w = (y @ y.mT * x.shape[-1] ** -0.5).masked_fill(
            ~torch.ones(7, 7).tril().bool(), -torch.inf
        )
        return (w.softmax(-1) @ y).transpose(0, 1)

    report = check(mine, inputs={"x": torch.randn(7, 2, 8)}, layout="tbc", mask=it.causal())
    assert report.ok and names(report) == [], str(report)


@pytest.mark.parametrize(("factor", "expected"), [(8**-0.5, []), (1 / 8, ["scale-one-over-d"])])
def test_scores_may_come_out(factor: float, expected: list[str]) -> None:
    report = check(lambda q, k: q @ k.mT * factor, returns="scores", inputs={
        "q": torch.randn(2, 4, 6, 8), "k": torch.randn(2, 4, 7, 8)
    })  # fmt: skip
    assert names(report) == expected, str(report)
