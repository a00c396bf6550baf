"""What notebooks show is quick, safe and never an error."""

from __future__ import annotations

import base64
import io
import re
import time

import numpy as np
import pytest
import torch
from PIL import Image

import intently as it
from intently.core.matrix import Dense
from intently.show.style import WEIGHTS


def pictures(html: str) -> list[np.ndarray]:
    found = re.findall(r"base64,([^\"]+)", html)
    return [np.array(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[n : n + 2], 16) for n in (1, 3, 5))


def test_a_matrix_shows_each_head_on_one_scale():
    W = torch.zeros(1, 2, 3, 4)
    W[0, 0, 1, 2], W[0, 1, 2, 0] = 1.0, 0.5
    html = Dense(W)._repr_html_()
    first, second = pictures(html)
    assert first.shape == second.shape == (3, 4, 3)
    assert tuple(first[1, 2]) == rgb(WEIGHTS[-1])
    assert tuple(first[0, 0]) == (255, 255, 255)
    assert rgb(WEIGHTS[-1]) != tuple(second[2, 0]) != (255, 255, 255)
    assert "3 queries (down) × 4 keys (across)" in html
    assert "darkest 1" in html
    assert "head 1" in html


def test_large_matrices_are_pooled_and_the_largest_only_said():
    html = it.attend(torch.randn(1000, 8), torch.randn(500, 8))._repr_html_()
    assert [picture.shape for picture in pictures(html)] == [(96, 96, 3)]
    huge = it.attend(torch.randn(100_000, 8), torch.randn(100_000, 8))
    start = time.perf_counter()
    html = huge._repr_html_()
    assert time.perf_counter() - start < 0.5
    assert not pictures(html)
    assert "too large to draw unasked" in html
    many = it.attend(torch.randn(20, 4, 8), torch.randn(20, 4, 8))._repr_html_()
    assert len(pictures(many)) == 12
    assert "the first 12 of 20 heads" in many


def test_a_display_never_fails():
    q = torch.randn(4, 8)
    A = it.attend(q, q)
    q.add_(1)
    assert A._repr_html_() == "<code>" + repr(A) + "</code>"
    for empty in (Dense(torch.zeros(0, 3)), Dense(torch.zeros(0, 2, 3))):
        assert "Dense" in empty._repr_html_()
    assert pictures(Dense(torch.full((2, 2), float("nan")))._repr_html_())[0].tolist() == (
        [[[200] * 3] * 2] * 2
    )
    assert pictures(Dense(torch.zeros(2, 2))._repr_html_())[0].min() == 255


def test_biases_show_their_heads():
    html = it.alibi(4)._repr_html_()
    shown = pictures(html)
    assert len(shown) == 4
    assert tuple(shown[0][5, 5]) == (255, 255, 255)
    assert shown[0][0, 31].sum() < shown[3][0, 31].sum()
    assert "alibi(4)" in html
    assert "from −7.75 (sand) to 0 (blue)" in html
    assert len(pictures((it.alibi(4) + torch.zeros(32, 32))._repr_html_())) == 4


def test_recordings_show_each_layer_and_nothing_raw():
    q = torch.randn(1, 2, 5, 8)
    with it.watch() as seen:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    html = seen._repr_html_()
    assert len(pictures(html)) == 4
    assert html.count("<tr>") == 2
    assert "1 × 2 × 5 × 5" in html
    seen.calls[1].verified = False
    seen.calls[0].name = "</code><script>alert(1)</script>"
    html = seen._repr_html_()
    assert "<script>" not in html
    assert len(pictures(html)) == 2
    assert "not verified" in html


def test_a_notebook_of_a_terminal_asks_for_no_more():
    pytest.importorskip("IPython")
    from IPython.core.formatters import DisplayFormatter

    bundle, _ = DisplayFormatter().format(Dense(torch.eye(2)))
    assert set(bundle) == {"text/plain", "text/html"}
