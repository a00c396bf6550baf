"""A convolution as attention: each tap of the kernel is a head that looks at one pixel."""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, KindError, RangeError, build, shape_of
from intently.foundation.arrays import Numbers
from intently.show.animate.animation import Animation, destination, told
from intently.show.animate.operands import finite
from intently.show.animate.stage import (
    LONG,
    MARGIN,
    CellGrid,
    Numerals,
    Stage,
    Words,
    largest,
    shades,
    widest,
    within,
)
from intently.show.inputs import among, one_item
from intently.show.reading import numbers

LARGEST, TAPS = 32, 25
SIDE = 210.0
STOPS = 14
"""Output pixels that are told one by one; those between them are filled in on the way."""


class TapsLayer(Protocol):
    """What `intently.nn.convolution_as_attention` returns."""

    kernel: tuple[int, int]
    groups: int
    out_weight: Any
    out_bias: Any

    def __call__(self, x: Tensor, /) -> Tensor:
        """Return y (c, height, width) of x."""
        ...

    def attend(self, x: Tensor, /) -> LazyMatrix:
        """Return the weights (k², t, s)."""
        ...


def convolution(
    layer: TapsLayer,
    image: Numbers,
    *,
    channel: int = 0,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> Animation:
    """Explain a convolution of an image (c, height, width) as one-hot heads, pixel by pixel.

    ``layer`` is `intently.nn.convolution_as_attention` of an ``nn.Conv2d``: a 3 × 3 kernel
    makes nine heads. ``channel`` is the output channel to explain; several input channels are drawn
    as their mean, but each counts with its own weight. The image may have a batch axis of 1, and be
    an array or nested lists. Returns the story, written to ``save``
    if given.

    Raises ArgumentError for images or outputs larger than 32 × 32 pixels and for more than 25
    taps, KindError for other layers, RangeError for a missing channel.

    Source: Cordonnier et al. 2020, theorem 1.

    >>> import torch
    >>> from intently.nn import convolution_as_attention
    >>> layer = convolution_as_attention(torch.nn.Conv2d(1, 1, 3, padding=1))
    >>> convolution(layer, torch.rand(1, 4, 4)).captions[2][:42]
    'Output pixel (0, 0): 4 of the 9 heads look'
    """
    path = destination(save)
    if not all(hasattr(layer, name) for name in ("attend", "kernel", "out_weight", "groups")):
        fix = "write intently.nn.convolution_as_attention(conv)"
        expected = "a convolution as attention"
        raise build(KindError, "layer", expected, type(layer).__name__, fix=fix)
    taps = layer.kernel[0] * layer.kernel[1]
    if taps > TAPS:
        raise build(ArgumentError, "layer", f"at most {TAPS} taps", f"a kernel of {layer.kernel}")
    image = one_item(image, "image", 3, layer)
    if image.ndim != 3 or max(image.shape[-2:]) > LARGEST:
        raise build(
            ArgumentError,
            "image",
            f"shape (c, height, width), at most {LARGEST} pixels a side",
            shape_of(image),
            fix="cut a piece: image[:, :32, :32]",
        )
    with torch.no_grad():
        whole = layer(image)
        if max(whole.shape[-2:]) > LARGEST:
            wanted = f"an output of at most {LARGEST} pixels a side"
            raise build(ArgumentError, "image", wanted, shape_of(whole))
        chosen = among(channel, len(whole), "channel", "a channel", RangeError)
        output = finite(numbers(whole[chosen]), "outputs of the layer")
        facts = _ConvolutionFacts(layer, image, output, chosen)
    stage = Stage()
    sheet = _ConvolutionSheet(stage, facts)
    channels = "" if len(image) == 1 else f" (the mean of its {len(image)} channels)"
    high, wide = layer.kernel
    stage.scene(f"An image{channels}, and a {high} × {wide} kernel as {taps} heads of attention.")
    t = facts.output.size
    stops = sorted({round(n * (t - 1) / (min(STOPS, t) - 1 or 1)) for n in range(min(STOPS, t))})
    for n, pixel in enumerate(stops):
        sheet.look(pixel)
        where = divmod(pixel, facts.output.shape[1])
        looking = int((facts.at[:, pixel] >= 0).sum())
        blind = "" if looking == taps else "; the others fall into the padding"
        said = f"Output pixel {where}: {looking} of the {taps} heads look at one pixel each{blind}."
        if n < 2:
            stage.scene(said, LONG)
            said = "What they read, times the kernel, added up: the output pixel."
        sheet.add(pixel)
        stage.scene(said, LONG if n < 2 else 0.7)
    sheet.finish()
    stage.scene(f"All {t:,} pixels: what the convolution gives{within(facts.apart)}.", LONG)
    opening = f"What a {high} × {wide} convolution gives, {taps} heads of attention give too."
    title = title or f"A {high} × {wide} convolution is {taps} one-hot heads"
    return told(stage, title, path, opening)


class _ConvolutionFacts:
    """The pixel each head looks at, its value, and its contribution to one output channel."""

    def __init__(self, layer: TapsLayer, image: Tensor, output: np.ndarray, channel: int) -> None:
        self.kernel, self.output = layer.kernel, output
        self.at = numbers(layer.attend(image).argmax())  # (taps, t), −1 in the padding
        pixels = numbers(image).astype(np.float64)
        self.image = pixels.mean(0)
        weight = numbers(layer.out_weight).astype(np.float64)  # (G, c_out/G, k²·c/G)
        group, row = divmod(channel, weight.shape[1])
        width = len(pixels) // layer.groups
        mine = pixels[group * width : (group + 1) * width].reshape(width, -1)
        self.weights = weight[group, row].reshape(len(self.at), width)
        read = np.where(self.at[..., None] >= 0, mine.T[self.at], 0.0)  # (taps, t, c)
        self.read = read.mean(-1)
        self.adds = (read * self.weights[:, None]).sum(-1)
        self.bias = 0.0 if layer.out_bias is None else float(layer.out_bias[channel])
        summed = self.adds.sum(0).reshape(output.shape) + self.bias
        self.apart = float(np.abs(summed - output).max())


class _ConvolutionSheet:
    """The image, the heads as small maps, the output; below them the sum of one pixel."""

    def __init__(self, stage: Stage, facts: _ConvolutionFacts) -> None:
        self.stage, self.facts = stage, facts
        (high, wide), (down, across) = facts.image.shape, facts.output.shape
        self.cell = SIDE / max(high, wide)
        self.out = SIDE / max(down, across)
        self.top = MARGIN + 24
        rows, columns = facts.kernel
        self.map = min(64.0, (SIDE + 10) / max(rows, columns) - 8)
        self.small = self.map / max(high, wide)
        self.heads = MARGIN + wide * self.cell + 44
        self.right = self.heads + columns * (self.map + 8) - 8 + 44
        self.done = np.full(facts.output.shape, np.nan)
        cells, shaded = (self.cell, self.cell), shades(facts.image, largest(facts.image))
        size = (wide * self.small, high * self.small)
        stage.note("head.image", MARGIN, self.top - 12, "image")
        stage.put(CellGrid("image", MARGIN, self.top, cells, shaded))
        stage.note("head.heads", self.heads, self.top - 12, "where each head looks")
        for n in range(rows * columns):
            stage.put(CellGrid(f"map.{n}", *self._map(n), size, ((0.04,),)))
        self._output()

    def _map(self, n: int) -> tuple[float, float]:
        i, j = divmod(n, self.facts.kernel[1])
        return self.heads + j * (self.map + 8), self.top + i * (self.map + 8)

    def _output(self) -> None:
        most = largest(self.facts.output) or 1.0
        rows = tuple(
            tuple(None if x != x else round(float(x) / most, 3) for x in row) for row in self.done
        )
        self.stage.note("head.out", self.right, self.top - 12, "output")
        self.stage.put(CellGrid("output", self.right, self.top, (self.out, self.out), rows))

    def _frame(self, key: str, x: float, y: float, cell: float) -> None:
        self.stage.put(CellGrid(key, x, y, (cell, cell), ((None,),), edge="accent"))

    def look(self, pixel: int) -> None:
        """Mark the pixel that each head sees, in its map and in the image."""
        spot = max(self.small, 6.0)
        aside = (self.small - spot) / 2
        for n, seen in enumerate(self.facts.at[:, pixel]):
            if seen < 0:
                self.stage.drop(f"hot.{n}", f"read.{n}")
                continue
            i, j = divmod(int(seen), self.facts.image.shape[1])
            x, y = self._map(n)
            hot = x + j * self.small + aside, y + i * self.small + aside
            self.stage.put(CellGrid(f"hot.{n}", *hot, (spot, spot), ((0.9,),), edge=""))
            place = MARGIN + j * self.cell, self.top + i * self.cell
            self._frame(f"read.{n}", *place, self.cell)
        i, j = divmod(pixel, self.facts.output.shape[1])
        self._frame("here", self.right + j * self.out, self.top + i * self.out, self.out)

    def add(self, pixel: int) -> None:
        """Write the sum of one output pixel, and fill the output up to it."""
        facts = self.facts
        lines = {"heads read (mean)": facts.read}
        if facts.weights.shape[1] == 1:
            kernel = np.broadcast_to(facts.weights, facts.read.shape)
            lines = {"heads read": facts.read, "× kernel": kernel}
        formats = [Numerals.of(values) for values in lines.values()]
        lines["= adds"] = facts.adds
        summed = Numerals.of(facts.adds, facts.output, np.array([facts.bias]))
        formats.append(summed)
        ends = zip(formats, ((x.min(), x.max()) for x in lines.values()))
        room = widest([written(x) for written, pair in ends for x in pair], 10.5) + 6
        cell = min(max(46.0, room), 460 / len(facts.read))
        numbered = cell >= max(34, room)
        names = list(lines)
        if numbered:
            names = [written.heading(name) for name, written in zip(lines, formats)]
        left = MARGIN + widest(names, 12) + 14
        y = self.top + SIDE + 48
        for name, written, said in zip(lines, formats, names):
            values = lines[name]
            texts = tuple(map(written, values[:, pixel])) if numbered else ()
            key = name.strip("×= ").split()[0]
            shaded = shades(values[None, :, pixel], largest(values))
            grid = CellGrid(key, left, y, (cell, 20), shaded, texts)
            self.stage.put(Words(f"{key}.name", MARGIN, y + 10, said, 12), grid)
            y += 26
        bias = f" + bias {summed(facts.bias)}{summed.factor}" if facts.bias else ""
        said = f"sum{bias} = {summed(facts.output.flat[pixel])}{summed.factor}"
        x = left + len(facts.read) * cell + 14
        self.stage.put(Words("total", x, y - 16, said, 12, "blue"))
        self.done.flat[: pixel + 1] = facts.output.flat[: pixel + 1]
        self._output()

    def finish(self) -> None:
        """Show only the image and the whole output."""
        self.done[...] = self.facts.output
        self._output()
        self.stage.drop("hot", "read", "here", "heads", "kernel", "adds", "total")
