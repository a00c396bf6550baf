"""Figures that explain √d, temperature and layers: their numbers are those of attend."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import intently as it
from intently import show
from intently.errors import ArgumentError, KindError
from intently.reference import weights as plain_weights

from .drawing import quiet as quiet
from .drawing import shaded


def heads(widths=(4, 64, 1024), t=16, s=64) -> list:
    return [it.attend(torch.randn(t, d), torch.randn(s, d)) for d in widths]


# --- scaling --------------------------------------------------------------------------------------
def test_entropy_with_and_without_the_factor_is_that_of_the_formula():
    matrices = heads()
    entropy, slope = show.scaling(matrices[::-1]).axes
    scaled, plain = (line.get_ydata() for line in entropy.lines[:2])
    for n, A in enumerate(matrices):
        logits = (A.q @ A.k.mT).double()
        for drawn, z in ((scaled, logits / A.q.shape[-1] ** 0.5), (plain, logits)):
            w = z.softmax(-1)
            expected = -(w * w.clamp(min=1e-300).log()).sum(-1).mean()
            assert drawn[n] == pytest.approx(float(expected), abs=1e-4)
    w = (matrices[-1].q @ matrices[-1].k.mT).double().softmax(-1)
    jacobian = torch.diag_embed(w) - w[:, :, None] * w[:, None]
    trace = jacobian.diagonal(dim1=1, dim2=2).sum(-1).mean()
    assert slope.lines[1].get_ydata()[-1] == pytest.approx(float(trace), abs=1e-4)
    assert plain[-1] < 0.5 < scaled[-1]
    assert entropy.lines[2].get_ydata()[0] == pytest.approx(math.log(64))


def test_a_scale_of_its_own_does_not_change_the_comparison():
    q, k = torch.randn(8, 16), torch.randn(8, 16)
    other = it.attend(torch.randn(8, 4), torch.randn(8, 4))
    lines = [
        show.scaling([other, it.attend(q, k, scale=scale)]).axes[0].lines[0].get_ydata()
        for scale in (None, 3.0)
    ]
    np.testing.assert_array_equal(*lines)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (lambda: heads((4,)), ArgumentError, "at least two widths d"),
        (lambda: [*heads((4,)), *heads((8,), s=65)], ArgumentError, r"matrices\[1\].*s=64 keys"),
        (lambda: [torch.eye(2)], KindError, r"matrices\[0\].*an attention of queries and keys"),
        (lambda: 3, KindError, "matrices: expected a list of attentions"),
    ],
)
def test_what_cannot_be_compared_is_refused(wrong, kind, message):
    with pytest.raises(kind, match=message):
        show.scaling(wrong())


# --- temperature ----------------------------------------------------------------------------------
def test_bars_are_the_weights_at_their_temperature():
    q, k = torch.randn(3, 8), torch.randn(5, 8)
    A = it.attend(q, k, mask=it.causal(offset=1))
    taus = (2.0, 1.0, 0.5)
    figure = show.temperature(A, 1, temperatures=taus)
    for axes, tau in zip(figure.axes, taus, strict=True):
        bars = [bar.get_height() for bar in axes.patches]
        expected = it.attend(q, k, mask=it.causal(offset=1), scale=1 / (tau * 8**0.5))
        np.testing.assert_allclose(bars, expected.dense()[1], atol=1e-6)
        entropy = f"{float(expected.entropy()[1]):.2f} nats"
        assert entropy in [text.get_text() for text in figure.texts]


def test_the_limits_are_equal_shares_and_the_largest_alone():
    figure = show.temperature(it.attend(torch.eye(4), torch.eye(4)), 2)
    first, last = ([bar.get_height() for bar in figure.axes[n].patches] for n in (0, -1))
    assert first == [0.25] * 4 and last == [0, 0, 1, 0]
    said = [text.get_text() for text in figure.texts]
    assert {"τ → ∞", "τ → 0", "1.39 nats", "0.00 nats"} <= set(said)


def test_a_temperature_below_zero_is_refused():
    A = it.attend(torch.eye(2), torch.eye(2))
    for wrong in ((), (1, -1)):
        with pytest.raises(ArgumentError, match="temperatures: expected numbers from 0"):
            show.temperature(A, temperatures=wrong)
    with pytest.raises(KindError, match="matrix"):
        show.temperature(torch.eye(2))


# --- mixing ---------------------------------------------------------------------------------------
def test_layers_are_drawn_by_the_matrices_they_multiply_by():
    t = 12
    x, y = torch.randn(t, 8), torch.randn(t, 8)
    dense, conv = nn.Linear(t, t, bias=False), nn.Conv1d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        band = conv(torch.eye(t)[:, None])[:, 0].T
        full = dense.weight.clone()
    looks = [it.attend(x, x), it.attend(y, y)]
    figure = show.mixing({"dense": [full, full], "conv": [band, band], "attention": looks})
    rows = np.array(figure.axes).reshape(2, 3)
    for row, z in enumerate((x, y)):
        np.testing.assert_allclose(
            shaded(rows[row, 0]) @ z.numpy(), dense(z.T).T.detach(), atol=1e-5
        )
        convolved = conv(z.T[:, None])[:, 0].T.detach()
        np.testing.assert_allclose(shaded(rows[row, 1]) @ z.numpy(), convolved, atol=1e-5)
        weights = plain_weights(z.numpy(), z.numpy())
        np.testing.assert_allclose(shaded(rows[row, 2]), weights, atol=1e-6)
    assert [axes.get_xlabel() for axes in rows[1]] == [
        "the same for every input\nfull: no entry is 0",
        f"the same for every input\n{1 - (3 * t - 2) / t**2:.0%} of entries are 0",
        "another for each input\nfull: no entry is 0",
    ]
    for column in rows.T:
        assert column[0].images[0].norm.vmax == column[1].images[0].norm.vmax


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        ({}, ArgumentError, "at least one layer"),
        ({"a": [torch.eye(2)], "b": [torch.eye(2)] * 2}, ArgumentError, r"matrices\['b'\]"),
        ({"a": []}, KindError, "a list of matrices"),
        ({"a": [torch.zeros(600, 2)]}, ArgumentError, "at most 512 steps"),
        ([torch.eye(2)], KindError, "matrices by the name of their layer"),
    ],
)
def test_what_are_no_layers_is_refused(wrong, kind, message):
    with pytest.raises(kind, match=message):
        show.mixing(wrong)
