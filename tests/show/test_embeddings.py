"""A map of words keeps what can be kept in a plane, and joins the neighbours of all dimensions."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba

from intently.errors import ArgumentError, KindError
from intently.show import embeddings
from intently.show.style import ACCENT, LINES, QUIET

from .drawing import written
from .refusals import refusals

WORDS = ["cat", "dog", "road", "street", "wide", "tired"]


def plane(n: int = 6, c: int = 10, seed: int = 0) -> torch.Tensor:
    """Return n points of a plane in c dimensions, not in its middle."""
    g = torch.Generator().manual_seed(seed)
    base = torch.linalg.qr(torch.randn(c, 2, generator=g)).Q
    return torch.randn(n, 2, generator=g) @ base.mT + 3


def dots(figure, which: int = -1) -> np.ndarray:
    return np.asarray(figure.axes[0].collections[which].get_offsets())


def distances(x) -> np.ndarray:
    x = np.asarray(x)
    return np.linalg.norm(x[:, None] - x[None], axis=-1)


def test_points_of_a_plane_keep_their_distances_and_all_variance():
    figure = embeddings(plane(), WORDS)
    np.testing.assert_allclose(distances(dots(figure)), distances(plane()), atol=1e-5)
    assert "shows 100% of the variance" in "\n".join(written(figure))
    assert sorted(written(figure.axes[0])) == sorted(WORDS)
    half = embeddings(torch.eye(6), WORDS)
    assert "shows 40% of the variance" in "\n".join(written(half))


def test_both_directions_have_one_scale():
    axes = embeddings(plane() * torch.tensor([100.0] + [1.0] * 9), WORDS).axes[0]
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    box = axes.get_position()
    wide, tall = axes.figure.get_size_inches()
    assert (right - left) / (box.width * wide) == pytest.approx((high - low) / (box.height * tall))


def test_arrows_lead_from_words_to_what_became_of_them():
    before, after = plane(), 7 * plane() + torch.randn(6, 10) * 0.01 + torch.arange(10) * 0.7
    figure = embeddings(before, WORDS, after=after)
    arrows = [text for text in figure.axes[0].texts if text.get_text() == ""]
    starts = np.array([arrow.xyann for arrow in arrows])
    ends = np.array([arrow.xy for arrow in arrows])
    np.testing.assert_allclose(starts, dots(figure, 0))
    np.testing.assert_allclose(ends, dots(figure, 1))
    every = torch.nn.functional.normalize(torch.cat([before, after]).double(), dim=1).numpy()
    values = np.linalg.svd(every - every.mean(0), compute_uv=False)
    kept = ((np.concatenate([starts, ends])) ** 2).sum()
    assert kept == pytest.approx((values[:2] ** 2).sum(), rel=1e-4)


def in_context(**options):
    """Return a map of a word in two contexts, and of another word in one."""
    before = torch.eye(8)[[0, 0, 1]]
    after = before + torch.eye(8)[[2, 3, 4]]
    contexts = ["too tired", "too wide", "the dog"]
    return embeddings(before, ["it", "it", "her"], after=after, contexts=contexts, **options)


def test_a_word_starts_at_one_place_and_ends_where_its_context_takes_it():
    figure = in_context()
    start, end = dots(figure, 0), dots(figure, 1)
    np.testing.assert_allclose(start[0], start[1], atol=1e-12)
    assert np.linalg.norm(end[0] - end[1]) > 0.3
    names = ["her", "it", "the dog", "too tired", "too wide"]
    assert sorted(filter(None, written(figure.axes[0]))) == names
    colours = [tuple(c) for c in figure.axes[0].collections[1].get_facecolors()]
    assert colours == [to_rgba(LINES[0])] * 2 + [to_rgba(QUIET)]


def test_arrows_have_the_colour_of_their_dots_on_dark_paper_too():
    with plt.style.context("dark_background"):
        axes = in_context().axes[0]
    arrows = [text.arrow_patch.get_edgecolor() for text in axes.texts if text.get_text() == ""]
    dots = [tuple(colour) for colour in axes.collections[1].get_facecolors()]
    assert arrows[:2] == dots[:2]
    assert to_rgba(LINES[0]) not in arrows


def test_vectors_before_and_after_context_have_one_scale():
    before, after = plane(), plane(seed=1)
    short, long = (embeddings(before, WORDS, after=after * n) for n in (0.01, 100.0))
    np.testing.assert_allclose(dots(short, 1), dots(long, 1), atol=1e-5)
    assert np.ptp(dots(long, 0), axis=0).max() > 0.05
    assert "each vector at length 1" in "\n".join(written(long))


def test_the_note_says_how_far_contexts_move_a_word():
    said = "\n".join(written(in_context()))
    assert "between the contexts of a word: it 0.50" in said  # (a + b)·(a + c) / 2
    assert "her" not in said.split("of a word:")[1]
    plain = embeddings(plane(), WORDS, after=plane(seed=1))
    assert "contexts of a word" not in "\n".join(written(plain))


def test_dots_of_one_name_at_one_place_are_named_once():
    x = plane()[[0, 0, 1]]
    names = written(embeddings(x, ["it", "it", "road"], after=x + 1e-4).axes[0])
    assert sorted(filter(None, names)) == ["it", "road"]


def test_neighbours_are_the_nearest_by_cosine_in_all_dimensions():
    vectors = torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    figure = embeddings(vectors, WORDS, neighbours="road")
    cosine = torch.nn.functional.normalize(vectors, dim=1)
    cosine = cosine @ cosine[2]
    cosine[2] = -2
    expected = {WORDS[n] for n in cosine.topk(3).indices.tolist()}
    places = dots(figure)
    lines = [line for line in figure.axes[0].lines if line.get_color() == ACCENT]
    ends = [np.array([line.get_xdata()[1], line.get_ydata()[1]]) for line in lines]
    found = {WORDS[int(np.linalg.norm(places - end, axis=1).argmin())] for end in ends}
    assert found == expected
    assert all(np.allclose([x.get_xdata()[0], x.get_ydata()[0]], places[2]) for x in lines)
    colours = figure.axes[0].collections[-1].get_facecolors()
    assert [tuple(c) == to_rgba(ACCENT) for c in colours] == [n == 2 for n in range(6)]


def test_names_do_not_cover_each_other_where_there_is_room():
    figure = embeddings(plane(6, seed=1), WORDS)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    for n, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[n + 1 :])


def test_large_maps_name_those_that_are_asked_for():
    words = [f"w{n}" for n in range(200)]
    figure = embeddings(torch.randn(200, 8), words, neighbours=["w5"])
    assert len(figure.axes[0].texts) == 4
    assert len(dots(figure)) == 200


test_what_does_not_fit_is_named = refusals(
    {
        ArgumentError: {
            r"vectors: expected shape \(n=6, c\).*\(5, 10\)": lambda: embeddings(plane(5), WORDS),
            r"after: expected the shape of vectors, \(6, 10\)": lambda: embeddings(
                plane(), WORDS, after=plane(c=9)
            ),
            r"vectors: expected finite numbers; got NaN": lambda: embeddings(plane() / 0, WORDS),
            r"contexts: expected n=6 names of the vectors of after; got 1 names.*missing": (
                lambda: embeddings(plane(), WORDS, contexts=["a"])
            ),
            r"neighbours: .*got 'bus'. There is none": lambda: embeddings(
                plane(), WORDS, neighbours="bus"
            ),
        },
        KindError: {
            r"neighbours: expected words or positions; got 1.5": lambda: embeddings(
                plane(), WORDS, neighbours=1.5
            ),
            r"words: expected a list of strings; got \[1, 2": lambda: embeddings(
                plane(), [1, 2, 3, 4, 5, 6]
            ),
            r"vectors: expected a tensor, an array or .*got dict": lambda: embeddings(
                {"a": [1.0]}, ["a"]
            ),
        },
    }
)


def test_large_vectors_have_a_share_too():
    said = " ".join(written(embeddings(1e200 * np.eye(4), list("abcd"))))
    assert "of the variance" in said and "nan" not in said
