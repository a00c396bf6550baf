"""Figures and stories take plain numbers as they take a lazy matrix, and say what they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import intently as it
from intently import show
from intently.core.matrix import Dense
from intently.errors import ArgumentError, KindError
from intently.nn import AttentionHead, MultiHeadAttention, convolution_as_attention
from intently.show import (
    animate,
    bias,
    blocks,
    embeddings,
    heatmap,
    lines,
    mask,
    overlay,
    positions,
)

from .drawing import panels, shaded, weights
from .refusals import refusals

W = weights(5, 5, seed=3)
WORDS = list("abcde")
PICTURE = np.linspace(0, 1, 48).reshape(4, 4, 3)
PLAIN = {
    "tensor": lambda x: x,
    "array": lambda x: x.numpy(),
    "lists": lambda x: x.tolist(),
    "tuples": lambda x: tuple(map(tuple, x.tolist())),
}

WEIGHTS = {
    "heatmap": lambda A, save: heatmap(A, save=save),
    "lines": lambda A, save: lines(A, save=save),
    "heads": lambda A, save: show.heads({"encoder.0": A}, save=save),
    "text": lambda A, save: show.text(A, 2, save=save),
    "overlay": lambda A, save: overlay(A, PICTURE, 0, grid=(2, 2), save=save),
}
TOLD = {
    "writing": lambda A: animate.writing(A).scenes,
    "blocks": lambda A: blocks(A, width=80, colour=False),
}


@pytest.mark.parametrize("kind", ["array", "lists"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_figure_of_plain_weights_is_that_of_a_matrix(tmp_path, name, kind):
    WEIGHTS[name](Dense(W), tmp_path / "lazy.png")
    WEIGHTS[name](PLAIN[kind](W.clone()), tmp_path / "plain.png")
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "lazy.png").read_bytes()


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("name", TOLD)
def test_a_story_of_plain_weights_is_that_of_a_matrix(name, kind):
    assert TOLD[name](PLAIN[kind](W.clone())) == TOLD[name](Dense(W))


def test_heads_of_plain_weights_are_chosen_and_averaged():
    many = torch.randn(3, 4, 4).softmax(-1)
    for given in (many, many.numpy(), many[None]):
        np.testing.assert_array_equal(shaded(heatmap(given, head=1).axes[0]), many[1])
        mean = shaded(heatmap(given).axes[0])
        np.testing.assert_allclose(mean, many.mean(0), rtol=1e-6)
    assert len(panels(show.heads(many))) == 3


@pytest.mark.parametrize("name", [name for name in [*WEIGHTS, *TOLD] if name != "heatmap"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (torch.tensor([[0.5, -0.5], [0.5, 0.5]]), "the lowest number is −0.5"),
        ([[3, 1], [0, 1]], "a row sums to 4"),
        ([[float("inf"), 0], [0, 1]], "one of them is infinite"),
    ],
)
def test_what_needs_weights_refuses_other_numbers(name, wrong, why):
    with pytest.raises(ArgumentError, match=rf"^matri.*weights, not below 0.*; got {why}.*softmax"):
        TOLD[name](wrong) if name in TOLD else WEIGHTS[name](wrong, None)


def test_parts_of_a_matrix_and_rows_that_see_nothing_are_weights():
    lines(W[:3, :2])
    lines(np.tril(W.numpy()))
    lines([[0, 0], [0, 1]])
    half = torch.randn(3, 512).softmax(-1).bfloat16()
    heatmap(half, title="half")
    unknown = W.clone()
    unknown[1] = torch.nan
    lines(unknown)


RAGGED = [[1.0, 0.0], [1.0]]
CALLS = {
    "matrix": [
        *(lambda x, f=f: f(x, None) for f in WEIGHTS.values() if f is not WEIGHTS["heads"]),
        TOLD["writing"],
        TOLD["blocks"],
    ],
    "matrices": [WEIGHTS["heads"], show.heads],
    "encoding": [positions],
    "vectors": [lambda x: embeddings(x, ["a", "b"])],
    "after": [lambda x: embeddings(torch.eye(2), ["a", "b"], after=x)],
    "bias": [bias],
    "values": [
        lambda x: animate.product(it.attend(W, W), x),
        lambda x: animate.dictionary(it.attend(W, W), x),
    ],
    "x": [
        lambda x: animate.heads(MultiHeadAttention(4, 2), x),
        lambda x: animate.permutation(AttentionHead(4, 2), x),
    ],
    "image": [lambda x: animate.convolution(convolution_as_attention(nn.Conv2d(1, 1, 1)), x)],
}


@pytest.mark.parametrize(
    "wrong",
    [torch.eye(2).bool(), np.eye(2, dtype=bool), [[True]], 1j * np.eye(2), RAGGED, [["a"]]],
    ids=["booleans", "array of booleans", "list of booleans", "complex", "ragged", "letters"],
)
@pytest.mark.parametrize("argument", CALLS)
def test_what_holds_no_numbers_is_refused_by_its_argument(argument, wrong):
    for call in CALLS[argument]:
        with pytest.raises(KindError, match=rf"^{argument}(\[.*\])?: expected"):
            call(wrong, None) if call is WEIGHTS["heads"] else call(wrong)


@pytest.mark.parametrize("wrong", [np.eye(2), [[1, 0]], [[True], [True, False]], [["a"]]])
def test_a_mask_of_lists_holds_booleans(wrong):
    with pytest.raises(KindError, match=r"mask: expected booleans, in rows of one length; got"):
        mask(wrong)


# --- numbers that are no weights ------------------------------------------------------------------


def labels(figure) -> tuple[str, list[str]]:
    bar = figure.axes[-1].get_ylabel()
    return bar, [text.get_text().replace("\n", " ") for text in figure.texts]


@pytest.mark.parametrize(
    ("numbers", "why", "ends"),
    [
        (torch.tensor([[0.5, -2.0], [1.0, 0.0]]), "the lowest number is −2", (-2, 2)),
        (np.arange(6).reshape(2, 3), "a row sums to 3", (0, 5)),
        ([[0.1, 0.2], [0.3, 0.4]], "a row sums to 0.3", (0, 0.5)),
    ],
)
def test_a_heatmap_of_other_numbers_says_what_they_are(numbers, why, ends):
    figure = heatmap(numbers)
    image, _ = figure.axes  # no entropy and no column sums: they belong to weights
    np.testing.assert_allclose(image.images[0].get_array(), np.asarray(numbers), rtol=1e-6)
    assert image.images[0].get_clim() == ends
    assert (image.get_xlabel(), image.get_ylabel()) == ("columns", "rows")
    assert labels(figure) == ("number", [f"numbers as they are, no attention weights: {why}"])


def test_a_heatmap_of_plain_weights_has_their_statistics():
    figure = heatmap(W)
    assert len(figure.axes) == 4 and labels(figure) == ("weight", [])
    heatmap([[1, 100]], scale="log")


def test_large_numbers_are_pooled_and_say_so():
    x = torch.randn(1024, 600)
    for how, name in (("mean", "mean number"), ("max", "largest number")):
        figure = heatmap(x, reduce=how)
        pooled = Dense(x).pool(512, 512, how)
        np.testing.assert_allclose(shaded(figure.axes[0]), pooled, rtol=1e-5, atol=1e-6)
        bar, said = labels(figure)
        assert bar == name and f"each cell the {how} of about 2 × 1.17 numbers" in said[-1]


test_numbers_have_no_sink_and_below_0_no_logarithm = refusals(
    {
        ArgumentError: {
            r"sink: expected 'show' for numbers.*The lowest": lambda: heatmap(
                torch.randn(3, 3), sink="hide"
            ),
            "scale: expected 'linear' for numbers below 0": lambda: heatmap([[1, -1]], scale="log"),
        }
    }
)


def test_one_sheet_of_heads_says_that_it_pools():
    A = it.attend(torch.randn(2, 400, 4), torch.randn(2, 400, 4))
    for how, name in (("mean", "mean weight"), ("max", "largest weight")):
        figure = show.heads({"0": A}, reduce=how)
        pooled = A[0].pool(192, 192, how)
        np.testing.assert_allclose(shaded(figure.axes[0]), pooled, rtol=1e-5, atol=1e-7)
        bar, said = labels(figure)
        assert bar == name and f"each cell the {how} of about 2.08 × 2.08 weights" in said[-1]
        assert f"each block the {how} of about" in blocks(A, width=80, colour=False, reduce=how)
    assert labels(show.heads({"0": A[:, :192, :192]}))[0] == "weight"


# --- values that are no matrix of weights ---------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "tuples"])
def test_masks_biases_positions_and_vectors_are_taken_plain(tmp_path, kind):
    x = torch.randn(4, 6)
    allowed = x > 0
    calls = {
        "mask": lambda save, plain: mask(plain(allowed), title="m", save=save),
        "bias": lambda save, plain: bias(plain(x), title="b", save=save),
        "positions": lambda save, plain: positions(plain(x), save=save),
        "embeddings": lambda save, plain: embeddings(
            plain(x), WORDS[:4], after=plain(2 * x), save=save
        ),
    }
    for call in calls.values():
        call(tmp_path / "tensor.png", lambda x: x)
        call(tmp_path / "plain.png", PLAIN[kind])
        assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "tensor.png").read_bytes()


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("kind", PLAIN)
def test_stories_take_one_item_with_or_without_a_batch_axis(kind, batch):
    x, image = torch.randn(4, 8), torch.randn(1, 5, 5)
    head, heads = AttentionHead(8, 4), MultiHeadAttention(8, 2)
    layer = convolution_as_attention(nn.Conv2d(1, 1, 3, padding=1))
    A = it.attend(x, x)

    def plain(x: torch.Tensor):
        return PLAIN[kind](x[None] if batch else x)

    assert animate.permutation(head, plain(x)).scenes == animate.permutation(head, x).scenes
    assert animate.heads(heads, plain(x)).scenes == animate.heads(heads, x).scenes
    assert animate.convolution(layer, plain(image)).scenes == (
        animate.convolution(layer, image).scenes
    )
    assert animate.product(A, plain(x)).scenes == animate.product(A, x).scenes
    assert animate.dictionary(A, plain(x)).scenes == animate.dictionary(A, x).scenes


def test_numbers_of_numpy_fit_the_block_and_whole_numbers_too():
    head = AttentionHead(3, 2)
    x = np.array([[1, 2, 3], [3, 2, 1]])
    story = animate.permutation(head, x)
    assert story.scenes == animate.permutation(head, x.astype(float)).scenes
    assert story.scenes == animate.permutation(head, x.tolist()).scenes
    with pytest.raises(KindError, match=r"x: expected torch.float32.*got torch.float64"):
        animate.permutation(head, torch.tensor(x, dtype=torch.float64))
