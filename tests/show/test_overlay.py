"""The weights that lie on a picture are those of the token, each on its own patch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from PIL import Image

import intently as it
from intently.core.matrix import Dense
from intently.errors import ArgumentError, DataError, KindError, RangeError
from intently.nn.models.vision import VisionOptions, VisionTransformer
from intently.show import overlay
from intently.show.figures.overlay import transparent_map
from intently.show.pictures import read

from .drawing import weights, written
from .refusals import refusals, refuses

PICTURE = np.linspace(0, 1, 8 * 12 * 3).reshape(8, 12, 3)


def shaded(axes) -> np.ndarray:
    return np.ma.filled(axes.images[-1].get_array(), np.nan)


def frames(axes) -> list[tuple[float, ...]]:
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return [(b.get_x(), b.get_y(), b.get_width(), b.get_height()) for b in boxes]


def test_a_patch_and_cls_show_their_rows():
    W = weights(2, 17, 17, seed=2)
    figure = overlay(Dense(W), PICTURE, [0, (1, 2)], head=1, title="ours")
    picture, cls, patch, bar = figure.axes
    np.testing.assert_allclose(shaded(cls), W[1, 0, 1:].reshape(4, 4))
    np.testing.assert_allclose(shaded(patch), W[1, 1 + 4 + 2, 1:].reshape(4, 4))
    titles = [axes.get_title("left") for axes in (picture, cls, patch)]
    assert titles == ["picture", "token 0", "patch (1, 2)"]
    assert frames(picture) == frames(patch) == [(6, 2, 3, 2)]  # 12 × 8 pixels, 4 × 4 patches
    assert frames(cls) == []
    np.testing.assert_allclose(picture.images[0].get_array(), PICTURE)
    assert bar.get_ylabel() == "share of its largest weight"
    texts = written(figure)
    assert texts[0] == "ours, head 1"
    low, high = sorted(f"{float(W[1, n, 0]):.2f}" for n in (0, 7))
    tops = [axes.get_title("right") for axes in (cls, patch)]
    assert tops == [f"≤ {float(W[1, n, 1:].max()):.2g}" for n in (0, 7)]
    assert texts[1].replace("\n", " ") == (
        f"4 × 4 patches; the 1 token before them takes {low} to {high} of the weight"
        " an even row would give each 0.059"
    )


def test_panels_may_share_one_scale_that_ends_at_the_largest_weight():
    W = weights(16, 16, seed=2)
    figure = overlay(Dense(W), PICTURE, [0, 5], scale="shared")
    assert figure.axes[-1].get_ylabel() == "weight"
    limits = {axes.images[-1].get_clim() for axes in figure.axes[1:3]}
    assert limits == {(0, float(W[[0, 5]].max()))}


def test_each_panel_has_a_scale_of_its_own():
    W = weights(16, 16, seed=2)
    W[5] = 1 / 16
    figure = overlay(Dense(W), PICTURE, [0, 5])
    limits = [axes.images[-1].get_clim() for axes in figure.axes[1:3]]
    assert limits == [(0, float(W[0].max())), (0, 1 / 16)]
    assert figure.axes[-1].get_ylabel() == "share of its largest weight"
    assert figure.axes[2].get_title("right") == "≤ 0.062"
    assert written(figure)[-1].endswith("an even row would give each 0.062")


def test_who_looks_at_a_patch_is_a_column():
    W = weights(16, 16, seed=2)
    figure = overlay(Dense(W), PICTURE, (3, 1), looks="from")
    np.testing.assert_allclose(shaded(figure.axes[1]), W[:, 13].reshape(4, 4))


def test_words_of_a_prompt_are_looked_at_by_pixels():
    words = ("a", "cat", "on", "a", "mat")
    W = weights(3, 64, 5, seed=2)
    A = Dense(W).label(None, words)
    figure = overlay(A, PICTURE, ["cat", "mat"], smooth="blocks")
    mean = W.mean(0)
    for axes, n in zip(figure.axes[1:3], (1, 4)):
        np.testing.assert_allclose(shaded(axes), mean[:, n].reshape(8, 8), rtol=1e-6)
        assert axes.get_title("left") == f"‘{words[n]}’"
        assert axes.images[-1].get_interpolation() == "nearest"
        assert frames(axes) == []
    wide = overlay(A, PICTURE, 1, grid=(4, 16))
    np.testing.assert_allclose(shaded(wide.axes[1]), mean[:, 1].reshape(4, 16), rtol=1e-6)


def test_the_side_with_enough_tokens_is_the_picture():
    W = weights(8, 5, seed=2)  # two tokens and 2 × 3 patches; five words
    figure = overlay(Dense(W), PICTURE, 1, grid=(2, 3))
    np.testing.assert_allclose(shaded(figure.axes[1]), W[2:, 1].reshape(2, 3))


def test_a_caption_looks_at_patches():
    W = weights(3, 10, seed=2)
    A = Dense(W).label(("a", "red", "car"), None)
    figure = overlay(A, PICTURE, "red")
    np.testing.assert_allclose(shaded(figure.axes[1]), W[1, 1:].reshape(3, 3))
    registers = overlay(Dense(weights(11, 11, seed=2)), PICTURE, (0, 0), grid=(2, 3))
    np.testing.assert_allclose(
        shaded(registers.axes[1]), weights(11, 11, seed=2)[5, 5:].reshape(2, 3)
    )


def test_the_picture_shows_where_the_weight_is_nothing():
    alphas = transparent_map()(np.linspace(0, 1, 50))[:, 3]
    assert alphas[0] == 0
    assert (np.diff(alphas) > 0).all()


PATCHES = Dense(weights(17, 17, seed=2))
test_what_does_not_fit_is_named = refusals(
    {
        ArgumentError: {
            r"grid: .*at most 15 patches; got None. 15 tokens": lambda: overlay(
                Dense(weights(15, 15, seed=2)), PICTURE, 0
            ),
            r"grid: .*at most 17 patches; got \(5, 5\)": lambda: overlay(
                PATCHES, PICTURE, 0, grid=(5, 5)
            ),
            r"a word or a position; got \(0, 0\). The other side": lambda: overlay(
                Dense(weights(3, 16, seed=2)), PICTURE, (0, 0)
            ),
            r"""smooth: expected "blocks" or "bilinear"; got 'x'""": lambda: overlay(
                PATCHES, PICTURE, 0, smooth="x"
            ),
            r"""scale: expected "shared" or "own"; got 'log'""": lambda: overlay(
                PATCHES, PICTURE, 0, scale="log"
            ),
            r"token: expected 1 to 11 tokens; got 12": lambda: overlay(
                PATCHES, PICTURE, list(range(12))
            ),
        },
        RangeError: {
            r"token: expected a patch of 4 × 4; got \(4, 0\)": lambda: overlay(
                PATCHES, PICTURE, (4, 0)
            )
        },
    }
)


# --- pictures -------------------------------------------------------------------------------------


def test_pictures_come_in_every_usual_form(tmp_path):
    whole = (PICTURE * 255).round().astype(np.uint8)
    Image.fromarray(whole).save(tmp_path / "a.png")
    for given in (whole, torch.tensor(whole), Image.fromarray(whole), tmp_path / "a.png"):
        np.testing.assert_allclose(read(given), whole / 255)
    np.testing.assert_allclose(read(str(tmp_path / "a.png")), whole / 255)
    np.testing.assert_allclose(read(PICTURE[..., 0])[..., 2], PICTURE[..., 0])
    np.testing.assert_allclose(read(torch.tensor(PICTURE).bfloat16()), PICTURE, atol=4e-3)
    clear = np.concatenate([PICTURE, np.zeros((8, 12, 1))], -1)
    assert (read(clear) == 1).all()
    assert read(np.zeros((4000, 100, 3), np.uint8)).shape == (1000, 25, 3)


def test_what_is_no_picture_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no picture")
    broken = "picture: expected a file that holds a picture"
    refuses(DataError, {broken: lambda: read(tmp_path / "a.png")})
    refuses(FileNotFoundError, {r"none\.png": lambda: read(tmp_path / "none.png")})
    refuses(
        ArgumentError,
        {
            r"shape \(3, 8, 8\). Colours come first.*permute": lambda: read(torch.zeros(3, 8, 8)),
            r"from 0 to 1; got numbers from -2 to 2.*normalised": lambda: read(
                np.array([[-2.0, 2.0]])
            ),
        },
    )
    refuses(
        KindError,
        {
            r"picture: expected an array.*got dict": lambda: read({}),
            r"picture: expected an array.*got a ragged list": lambda: read([[[0, 0]], [[0]]]),
        },
    )


def test_a_vision_transformer_is_overlaid(tmp_path):
    model = VisionTransformer(VisionOptions(image=(32, 48), patch=8, classes=10)).eval()
    image = torch.rand(1, 3, 32, 48)
    with torch.no_grad(), it.watch(model) as seen:
        model(image)
    name = seen.layers[-1]
    figure = overlay(
        seen, image[0].permute(1, 2, 0), 0, grid=(4, 6), head=name, save=tmp_path / "a.png"
    )
    mean = seen[name][0].mean_heads().dense()
    np.testing.assert_allclose(shaded(figure.axes[1]), mean[0, 1:].reshape(4, 6), rtol=1e-5)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("token", [(1,), (1, "2"), (True, 0), (4, 0)])
def test_patches_are_a_row_and_a_column(token):
    with pytest.raises(RangeError, match="token: expected a patch of 2 × 2; got"):
        overlay(Dense(torch.eye(4)), torch.rand(8, 8, 3), token)
