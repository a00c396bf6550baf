"""The numbers of a story stand in their cells, whatever their magnitude, and apart from others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import intently as it
from intently.core.matrix import Dense
from intently.nn import AttentionHead, MultiHeadAttention, convolution_as_attention
from intently.show import animate
from intently.show.animate.stage import CellGrid, Numerals, Shape, Words, alone, widths


@st.composite
def tables(draw: st.DrawFn, rows: int = 3, columns: int = 4) -> np.ndarray:
    """Numbers of one magnitude or of many, whole or not, of one sign or of both."""
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    found = rng.uniform(-1, 1, (rows, columns)) * 10.0 ** draw(st.integers(-12, 12))
    if draw(st.booleans()):
        found *= 10.0 ** rng.integers(-3, 4, found.shape)
    if draw(st.booleans()):
        found = np.abs(found)
    return found.round() if draw(st.booleans()) else found


def value_of(text: str, written: Numerals) -> float:
    return float(text.replace("−", "-")) * 10.0**written.power


@given(tables())
def test_all_numbers_of_a_matrix_are_written_alike_in_few_characters(values):
    written = Numerals.of(values)
    for value in values.flat:
        assert len(written(value)) <= (5 if written.places else 7)
        assert abs(value_of(written(value), written) - value) <= (
            0.5001 * 10.0 ** (written.power - written.places)
        )
    largest = np.abs(values).max()
    if largest:
        told = abs(value_of(written(largest), written))
        assert abs(told - largest) <= 0.051 * largest


@given(tables())
def test_whole_numbers_stay_whole_where_they_fit(values):
    if (values == values.round()).all() and np.abs(values).max() <= 999_999:
        written = Numerals.of(values)
        assert [written(x) for x in values.flat] == [
            str(int(x)).replace("-", "−") for x in values.flat
        ]
        assert not written.factor


@pytest.mark.parametrize(
    ("values", "texts", "factor"),
    [
        ([70, 179, -8], ["70", "179", "−8"], ""),
        ([1023, 17], ["1023", "17"], ""),
        ([-99_999, 17], ["−99999", "17"], ""),
        ([260_100, 0], ["260100", "0"], ""),
        ([-1_023_000, 17_000], ["−1.02", "0.02"], "×10⁶"),
        ([9.999, 1], ["10.0", "1.0"], ""),
        ([999.7, 1], ["1.00", "0"], "×10³"),
        ([0.02, -0.001], ["20.0", "−1.0"], "×10⁻³"),
        ([4.9e12, 0], ["4.90", "0"], "×10¹²"),
        ([0, 0], ["0", "0"], ""),
        ([np.inf, -np.inf, 2.5], ["2.50"], ""),
    ],
)
def test_how_numbers_are_written(values, texts, factor):
    written = Numerals.of(np.array(values, dtype=float))
    assert [written(x) for x in values if np.isfinite(x)] == texts
    assert written.factor == factor


def test_a_number_by_itself_says_its_factor():
    assert [alone(x) for x in (84_987.5, 84_987.0, -0.5, 12, 2e-9)] == [
        "85.0×10³",
        "84987",
        "−0.50",
        "12",
        "2.00×10⁻⁹",
    ]


# --- frames ---------------------------------------------------------------------------------------

Box = tuple[float, float, float, float]


def boxes(shapes: tuple[Shape, ...]) -> list[tuple[str, Box]]:
    """Every text of a scene that is seen, and where it stands: left, top, right, bottom."""
    found: list[tuple[str, Box]] = []
    for shape in shapes:
        if shape.opacity <= 0:
            continue
        if isinstance(shape, Words):
            share = {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor]
            texts = [(shape.text, shape.x, share, shape.y)]
        elif isinstance(shape, CellGrid):
            across, (wide, high) = len(shape.shades[0]), shape.cell
            if shape.opacity == 1 and None not in shape.shades[0]:
                found = [one for one in found if not covered(one[1], shape)]
            texts = [
                (
                    text,
                    shape.x + (n % across + 0.5) * wide,
                    0.5,
                    shape.y + (n // across + 0.5) * high,
                )
                for n, text in enumerate(shape.texts)
            ]
        else:
            continue
        lengths = widths(tuple(text for text, *_ in texts), shape.size)
        for (text, x, share, y), length in zip(texts, lengths):
            left, high = x - share * length, 0.8 * shape.size
            if text:
                found.append((text, (left, y - high / 2, left + length, y + high / 2)))
    return found


def covered(box: Box, grid: CellGrid) -> bool:
    """Whether a grid that is drawn later hides a text."""
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return grid.x <= x <= grid.x + grid.width and grid.y <= y <= grid.y + grid.height


def overlapping(shapes: tuple[Shape, ...]) -> list[tuple[str, str]]:
    found = []
    for (one, a), (other, b) in itertools.combinations(boxes(shapes), 2):
        across = min(a[2], b[2]) - max(a[0], b[0])
        down = min(a[3], b[3]) - max(a[1], b[1])
        if across > 0.5 and down > 0.5:
            found.append((one, other))
    return found


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values)


def block(width: int) -> MultiHeadAttention:
    return MultiHeadAttention(width, 2).double()


def pieces(x: torch.Tensor) -> Dense:
    """Weights of short words, of which numbers are wider than the words."""
    words = ("▁i", ",", "l", ".", "l")[: len(x)]
    return Dense((0.1 * x[:, :3]).clamp(-3, 3).softmax(-1), labels=(words, words))


STORIES = {
    "product": lambda q, k, v: animate.product(it.attend(q, k), v, query=0),
    "product with everything": lambda q, k, v: animate.product(
        it.attend(q, k, bias=v[:, :3].mT, softcap=5.0, mask=it.causal(), scale=1), v, query=1
    ),
    "product of narrow vectors": lambda q, k, v: animate.product(
        it.attend(q[:, :1], k[:, :1]), v[:, :1], query=0
    ),
    "dictionary": lambda q, k, v: animate.dictionary(it.attend(q, k), v),
    "dictionary with features": lambda q, k, v: animate.dictionary(
        it.attend(q, k), v[:, :1], features=("a", "b", "c", "d")
    ),
    "permutation": lambda q, k, v: animate.permutation(block(4), q),
    "permutation of narrow vectors": lambda q, k, v: animate.permutation(
        AttentionHead(1, 1).double(), q[:, :1]
    ),
    "heads": lambda q, k, v: animate.heads(block(4), q),
    "writing": lambda q, k, v: animate.writing(pieces(q)),
    "convolution": lambda q, k, v: animate.convolution(
        convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1).double()), q[None]
    ),
}


LONG = (1e6 * np.sin(np.arange(12.0))).round().reshape(3, 4)


@pytest.mark.parametrize("name", STORIES)
@settings(max_examples=12, deadline=None)
@given(q=tables(), k=tables(), v=tables())
@example(LONG, LONG, LONG)
def test_no_two_texts_of_a_frame_overlap(name, q, k, v):
    story = STORIES[name](tensor(q), tensor(k), tensor(v))
    for n, scene in enumerate(story.scenes):
        assert not overlapping(scene.shapes), (n, scene.caption)


def test_long_names_of_many_keys_do_not_overlap():
    keys = tuple(f"a film called {n}" for n in range(16))
    A = it.attend(torch.eye(3, 4), torch.randn(16, 4)).label(("Ada", "Alan", "Grace"), keys)
    for scene in animate.dictionary(A, torch.randn(16, 1)).scenes:
        assert not overlapping(scene.shapes)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([255, 99_999]), st.booleans())
def test_whole_numbers_stay_whole_and_within_their_cells(seed, most, signed):
    made = torch.Generator().manual_seed(seed)
    x = torch.randint(-most if signed else 0, most, (3, 4), generator=made).double()
    pixels = x.clamp(-255, 255)
    told = [animate.product(it.attend(pixels, pixels, scale=1), x, query=n) for n in range(3)]
    told.append(animate.dictionary(it.attend(x, x), x))
    told.append(animate.heads(block(4), x))
    told.append(animate.permutation(block(4), x))
    for story in told:
        for scene in story.scenes:
            assert not overlapping(scene.shapes)
            assert not sticking_out(scene.shapes)
    texts = {text for story in told for scene in story.scenes for text, _ in boxes(scene.shapes)}
    assert {f"{int(value)}".replace("-", "−") for value in x.flatten()} <= texts


def sticking_out(shapes: tuple[Shape, ...]) -> list[str]:
    """The texts of cells that are wider than their cells."""
    return [
        text
        for shape in shapes
        if isinstance(shape, CellGrid) and len(shape.texts) > 1
        for text, wide in zip(shape.texts, widths(shape.texts, shape.size), strict=True)
        if wide > shape.cell[0]
    ]
