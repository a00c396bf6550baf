"""A picture overlaid with the attention of a pixel, a patch, or a word of a prompt."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, RangeError, build
from intently.foundation.checks import check_word
from intently.show.cells import highest
from intently.show.inputs import SCALES, Choice, Scale, Source, one_of, place, whole
from intently.show.labels import titled, visible
from intently.show.layout import Layout, destination
from intently.show.pictures import read
from intently.show.reading import looked, missing, names
from intently.show.style import ACCENT, FRAME, QUIET, on_dark, style, weight_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Token = int | str | tuple[int, int]
Smoothing = Literal["blocks", "bilinear"]

SMOOTHING = ("blocks", "bilinear")
MOST = 11
ACROSS = 4
PANEL = 1.75
LARGE = 2.3
GAP = 0.14


class ImageGrid(NamedTuple):
    """Patches in rows and columns, and the number of tokens before the first patch."""

    rows: int
    columns: int
    before: int


class ImageLayer(NamedTuple):
    """The weights of one token on the patches (rows, columns), its name, and its own patch."""

    name: str
    values: np.ndarray
    patch: tuple[int, int] | None

    @property
    def top(self) -> float:
        """Its largest weight; 0 if none is finite."""
        return highest(self.values)


def overlay(
    matrix: Source,
    picture: Any,
    token: Token | list[Token],
    *,
    grid: tuple[int, int] | None = None,
    looks: Literal["at", "from"] | None = None,
    head: Choice = None,
    smooth: Smoothing = "bilinear",
    scale: Scale = "own",
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw a picture next to copies overlaid with the attention of one to eleven tokens.

    ``picture`` is an array (height, width, 3), bytes or from 0 to 1, a PIL image or a path.
    ``grid`` counts its patches, (rows, columns), read row by row; tokens before the patches, such
    as CLS, are handled separately; by default the patches form a square, with at most one token
    before. ``token`` is a patch (row, column), a position, or a word, alone or in a list.
    ``looks="at"`` draws its row, ``"from"`` its column: the queries that look at it. If only one
    side of the matrix is the picture, the direction is known: pixels look at the words of a prompt,
    the keys of a diffusion model. ``smooth="blocks"`` shows patches without smoothing. Of (h, t, s)
    ``head`` chooses one, else their mean is drawn; of a recording it is ``"name"`` or ``("name",
    head)``. Each token has its own scale, from 0 to its largest weight, which stands above its
    panel; on a common one, ``scale="shared"``, a token that looks everywhere stays pale. What every
    patch would get of an even row is written below. Returns the figure, written to ``save`` if
    given.

    Raises ArgumentError for a picture, a grid or a token that does not fit, RangeError for a patch
    outside. The picture of a token's row is that of Dosovitskiy et al. 2021, "An Image is Worth
    16x16 Words", figure 6; of a word's column that of Tang et al. 2023, "What the DAAM", section 3.

    >>> import torch, intently as it
    >>> A = it.attend(torch.randn(17, 8), torch.randn(17, 8))       # CLS and 4 × 4 patches
    >>> figure = overlay(A, torch.rand(32, 32, 3), [0, (1, 2)])
    >>> [axes.get_title("left") for axes in figure.axes[:3]]
    ['picture', 'token 0', 'patch (1, 2)']
    """
    path = destination(save)
    image = read(picture)
    if looks is not None:
        check_word(looks, "looks", ("at", "from"))
    check_word(smooth, "smooth", SMOOTHING)
    check_word(scale, "scale", SCALES)
    lazy, chosen = one_of(matrix, head)
    tokens = token if isinstance(token, list) else [token]
    if not 1 <= len(tokens) <= MOST:
        raise build(ArgumentError, "token", f"1 to {MOST} tokens", f"{len(tokens)}")
    looks = looks or _side(lazy, grid)
    places = _grid(lazy.shape[looks == "at"], grid)
    layers = [_layer(lazy, one, looks, places) for one in tokens]
    foot = [_beside(layers, places, looks)]
    if looks == "at":
        foot.append(f"an even row would give each {1 / lazy.shape[1]:.2g}")
    foot.append(missing(np.stack([one.values for one in layers])))
    texts = titled(title, chosen), "\n".join(filter(None, foot))
    with style((*(layer.name for layer in layers), texts[0])):
        own = scale == "own" and len(layers) > 1
        return _draw(image, layers, places, smooth, own).finish(*texts, path)


def _side(lazy: LazyMatrix, grid: tuple[int, int] | None) -> Literal["at", "from"]:
    """The picture's side: the one with at least as many tokens as patches; keys if both."""
    t, s = lazy.shape
    if grid is None:
        return "from" if _likely(t) > _likely(s) else "at"
    n = grid[0] * grid[1]
    if (t == n) != (s == n):
        return "from" if t == n else "at"
    return "from" if s < n <= t else "at"


def _likely(n: int) -> tuple[bool, int]:
    """A score for n tokens as a picture: a square, or one after one token; larger is likelier."""
    side = _square(n)
    return side * side == n, side


def _square(n: int) -> int:
    """Return the side of the square that n patches make, alone or after one token; else 0."""
    side = math.isqrt(n)
    return side if n - side * side <= 1 else 0


def _grid(n: int, grid: tuple[int, int] | None) -> ImageGrid:
    rows, columns = grid or (_square(n), _square(n))
    if not (rows >= 1 and columns >= 1 and rows * columns <= n):
        raise build(
            ArgumentError,
            "grid",
            f"(rows, columns) with at most {n} patches",
            "None" if grid is None else repr(grid),
            f"{n} tokens do not form a square of patches, with or without one before them"
            if grid is None
            else "the side of the matrix that is the picture has fewer tokens",
            "pass grid=(rows, columns), and looks= if the picture is the other side",
        )
    return ImageGrid(rows, columns, n - rows * columns)


def _layer(lazy: LazyMatrix, token: Token, looks: str, grid: ImageGrid) -> ImageLayer:
    own = lazy.shape[looks == "from"]
    labels = names(lazy)[looks == "from"]
    inside = own == grid.before + grid.rows * grid.columns
    if isinstance(token, tuple):
        if not inside:
            raise build(
                ArgumentError,
                "token",
                "a word or a position",
                repr(token),
                f"the other side of the matrix has {own} tokens, and is not the picture",
            )
        row, column = map(whole, token if len(token) == 2 else (None, None))
        if (
            row is None
            or column is None
            or not (0 <= row < grid.rows and 0 <= column < grid.columns)
        ):
            raise build(
                RangeError, "token", f"a patch of {grid.rows} × {grid.columns}", repr(token)
            )
        at = grid.before + row * grid.columns + column
    else:
        at = place(token, labels)
    patch = divmod(at - grid.before, grid.columns) if inside and at >= grid.before else None
    name = f"patch {patch}" if patch else f"token {at}"
    if lazy.labels[looks == "from"] is not None:
        name = f"‘{visible(labels[at], 16)}’"
    values = looked(lazy, at, looks)[grid.before :]
    return ImageLayer(name, values.reshape(grid.rows, grid.columns), patch)


def _beside(layers: Sequence[ImageLayer], grid: ImageGrid, looks: str) -> str:
    said = f"{grid.rows} × {grid.columns} patches"
    if grid.before and looks == "at":
        rest = [1 - float(layer.values.sum()) for layer in layers]
        low, high = f"{min(rest):.2f}", f"{max(rest):.2f}"
        share = low if low == high else f"{low} to {high}"
        before = "token before them takes" if grid.before == 1 else "tokens before them take"
        said += f"; the {grid.before} {before} {share} of the weight"
    return said


def _draw(
    image: np.ndarray, layers: Sequence[ImageLayer], grid: ImageGrid, smooth: Smoothing, own: bool
) -> Layout:
    from matplotlib.colors import Normalize

    highest = max(layer.top for layer in layers) or 1.0
    across = min(1 + len(layers), ACROSS)
    panel = LARGE if len(layers) == 1 else PANEL
    high = panel * min(max(image.shape[0] / image.shape[1], 0.4), 2.0)
    layout = Layout(GAP, GAP)
    grey = image @ np.array([0.299, 0.587, 0.114])
    pale = np.repeat((0 if on_dark() else 0.6) + 0.4 * grey[..., None], 3, -1)
    for n, layer in enumerate((None, *layers)):
        row, column = divmod(n, across)
        axes = layout.panel(row, column, panel, high, measured=row == 0 or column == 0)
        _lay(axes, pale if layer else image, image)
        if layer is None:
            axes.set_title("picture", size=8.5, pad=4, loc="left", color=QUIET)
        else:
            _lay(
                axes,
                np.ma.masked_invalid(layer.values),
                image,
                cmap=transparent_map(),
                norm=Normalize(0, layer.top or 1.0 if own else highest),
                interpolation="nearest" if smooth == "blocks" else "bilinear",
                interpolation_stage="data",
            )
            axes.set_title(layer.name, size=8.5, pad=4, loc="left", parse_math=False)
            axes.set_title(f"≤ {layer.top:.2g}", size=7.5, pad=4, loc="right", color=QUIET)
        for one in layers if layer is None else [layer]:
            if one.patch is not None:
                _frame(axes, image, one.patch, grid)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color(FRAME)
    label, top = ("share of its largest weight", 1.0) if own else ("weight", highest)
    layout.colour_bar((0, across), high, Normalize(0, top), label, transparent_map(), FRAME)
    return layout


def _lay(axes: Axes, values: np.ndarray, image: np.ndarray, **options: Any) -> None:
    """Draw numbers or colours over the whole image."""
    extent = (0, image.shape[1], image.shape[0], 0)
    axes.imshow(values, extent=extent, aspect="auto", **{"interpolation": "antialiased", **options})


def _frame(axes: Axes, image: np.ndarray, patch: tuple[int, int], grid: ImageGrid) -> None:
    from matplotlib.patches import Rectangle

    high, wide = image.shape[0] / grid.rows, image.shape[1] / grid.columns
    corner = patch[1] * wide, patch[0] * high
    axes.add_patch(Rectangle(corner, wide, high, fill=False, edgecolor=ACCENT, lw=1.6, zorder=3))


def transparent_map() -> Colormap:
    """The colour map of all figures, but transparent at weight 0, so that the picture shows."""
    from matplotlib.colors import ListedColormap

    share = np.linspace(0, 1, 256)
    colours = weight_map()(0.3 + 0.7 * share)
    colours[:, 3] = 0.95 * share**0.5
    return ListedColormap(colours).with_extremes(bad=(0, 0, 0, 0))
