"""Matrices to draw, and what a figure shows of them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.patches import FancyBboxPatch

from intently.core.matrix import Dense

SOURCE = tuple(["I", "drink", "milk", "."])


TARGET = tuple(["Je", "bois", "du", "lait", "."])


GOLD = SimpleNamespace(
    sure={(0, 0), (1, 1), (2, 3), (3, 4)}, possible={(0, 0), (1, 1), (2, 3), (3, 4), (2, 2)}
)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Any warning is an error, any line in a log too, and no global setting may change."""
    before = dict(matplotlib.rcParams)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert dict(matplotlib.rcParams) == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def weights(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def milk() -> Dense:
    return Dense(weights(5, 4), labels=(TARGET, SOURCE))


def ticks(axes, side: str) -> list[str]:
    labels = axes.get_xticklabels() if side == "x" else axes.get_yticklabels()
    return [label.get_text() for label in labels]


def shaded(axes) -> np.ndarray:
    return np.ma.filled(axes.images[0].get_array(), np.nan)


def panels(figure) -> list:
    return [axes for axes in figure.axes if axes.images]


def boxes(figure) -> list[FancyBboxPatch]:
    """Return the boxes of words, in reading order."""
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]


def written(figure) -> list[str]:
    """Return the texts of a figure, or of one of its axes."""
    return [text.get_text() for text in figure.texts]


def extents(figure) -> list:
    """Return the boxes in dots of all texts that are drawn: in the figure, and beside panels."""
    figure.draw_without_rendering()
    texts = [*figure.texts]
    for axes in figure.axes:
        texts += [*axes.texts, axes.title]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            places = zip(axis.get_ticklocs(), axis.get_ticklabels())
            texts += [axis.label, *(label for at, label in places if low <= at <= high)]
    return [text.get_window_extent() for text in dict.fromkeys(texts) if text.get_text()]


def model(layers: int = 2, h: int = 3) -> dict[str, Dense]:
    matrices = {}
    for name, (t, s) in {
        "encoder.{}.self_attention": (4, 4),
        "decoder.{}.cross_attention": (5, 4),
    }.items():
        labels = (TARGET if t == 5 else SOURCE, SOURCE)
        for layer in range(layers):
            matrices[name.format(layer)] = Dense(weights(h, t, s, seed=layer), labels=labels)
    return matrices
