"""A convolution is attention whose heads each look at one offset.

A k × k kernel has k² taps. Tap (u, v) of output pixel (i, j) reads input pixel
(i·stride − padding + u·dilation, j·stride − padding + v·dilation): as an attention head, a row of
weights with a single 1, or without a 1 if that pixel lies in the padding.

Source: Cordonnier et al. 2020, "On the Relationship between Self-Attention and Convolutional
Layers", theorem 1 and lemma 1; there, the heads come from quadratic position encodings, whose
weights are one-hot in the limit; here, they come from a mask, which is that limit.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.attention import Attention, attend
from intently.core.masks import Geometry, Mask
from intently.core.masks.block_states import Edges, edges, image_edges, states, unless_all
from intently.core.masks.geometry import pick
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import check_kind
from intently.nn.checks import check_dtype, forgiving
from intently.nn.weights.copying import AllOrNothing

Axis = tuple[int, int, int, int, int, int]
"""One axis of an image: input, output and kernel size, stride, padding before, dilation."""


class Taps(Mask):
    """Each query pixel sees only the key pixel that the tap of its head reads.

    ``taps`` (1, h) numbers the tap of each head, row after row of the kernel; ``mode`` is the
    padding mode, as in `nn.Conv2d`; ``sizes`` are the six numbers of the vertical `Axis`, then
    those of the horizontal one. The left tap of a kernel of width 3 on an image of one row:

    >>> print(Taps(torch.tensor([[0]]), "zeros", *(1, 1, 1, 1, 0, 1), *(4, 4, 3, 1, 1, 1)).draw(4))
    · · · ·
    █ · · ·
    · █ · ·
    · · █ ·
    """

    def __init__(self, taps: Tensor, mode: str, *sizes: int) -> None:
        super().__init__(taps, mode, *sizes)
        self.taps, self.mode = taps, mode
        self.axes = sizes[:6], sizes[6:]

    def allow(self, g: Geometry, rows: Tensor, cols: Tensor) -> Tensor:
        return self._read(g.align(self.taps, "taps"), rows[:, None]) == cols

    def at(self, g: Geometry, lead: tuple[Tensor, ...], i: Tensor, j: Tensor) -> Tensor:
        return self._read(pick(g, self.taps, lead[: self.taps.ndim]), i) == j

    def _read(self, taps: Tensor, queries: Tensor) -> Tensor:
        """The key pixel that each tap of each query reads, −1 in the padding."""
        width, across, kernel, *_ = self.axes[1]
        y = self._along(self.axes[0], taps // kernel, queries // across)
        x = self._along(self.axes[1], taps % kernel, queries % across)
        return torch.where((y < 0) | (x < 0), -1, y * width + x)

    def _along(self, axis: tuple[int, ...], tap: Tensor, out: Tensor) -> Tensor:
        """The position on one axis that the tap of an output pixel reads, −1 in the padding."""
        size, _, _, stride, before, dilation = axis
        at = out * stride - before + tap * dilation
        if self.mode == "circular":
            return at % size
        if self.mode == "replicate":
            return at.clamp(0, size - 1)
        if self.mode == "reflect":
            at = at.abs()
            return torch.where(at < size, at, 2 * (size - 1) - at)
        return torch.where((at >= 0) & (at < size), at, -1)

    def check(self, g: Geometry) -> None:
        g.align(self.taps, "taps")
        want = self.size()
        if (g.t, g.s) != want:
            raise build(
                ArgumentError,
                "mask",
                f"t, s = {want} pixels",
                f"t={g.t}, s={g.s}",
                "the taps were made for another image",
            )

    def blocks(self, g: Geometry, rows: int, cols: int) -> Tensor:
        width, across, *_ = self.axes[1]
        places = image_edges(edges(g, rows, cols), across, width)
        down, right = map(self._apart, self.axes, self._taps_along(), places)
        return states(g, rows, cols, down | right, torch.zeros_like(down))

    def _taps_along(self) -> tuple[Tensor, Tensor]:
        """The rows of the taps in the kernel, and their columns."""
        kernel = self.axes[1][2]
        return self.taps // kernel, self.taps % kernel

    def _apart(self, axis: tuple[int, ...], taps: Tensor, places: Edges) -> Tensor:
        """Whether no tap of output pixels first … last reads one of the pixels low … high."""
        size, _, _, stride, before, dilation = axis
        first, last, low, high = places
        start = first * stride - before + int(taps.min()) * dilation
        stop = last * stride - before + int(taps.max()) * dilation
        apart = (stop < low) | (start > high)
        return apart if self.mode == "zeros" else apart & (start >= 0) & (stop < size)

    def seen(self, g: Geometry) -> Tensor | None:
        down, right = map(self._seen_along, self.axes, self._taps_along())
        return unless_all((down[..., :, None] & right[..., None, :]).flatten(-2))

    def _seen_along(self, axis: tuple[int, ...], taps: Tensor) -> Tensor:
        """Whether each pixel of one axis is read by a tap (…, size)."""
        read = self._along(axis, taps[..., None], torch.arange(axis[1], device=taps.device))
        found = torch.zeros(*taps.shape, axis[0] + 1, dtype=torch.bool, device=taps.device)
        return found.scatter_(-1, torch.where(read < 0, axis[0], read), True)[..., :-1]

    def size(self) -> tuple[int, int]:
        (height, down, *_), (width, across, *_) = self.axes
        return down * across, height * width

    def __repr__(self) -> str:
        (height, down, *_), (width, across, *_) = self.axes
        return f"Taps({tuple(self.taps.shape)}, {height}×{width} → {down}×{across})"


class ConvolutionAsAttention(AllOrNothing):
    """A convolution as attention with one one-hot head for each tap of its kernel.

    The heads share one key/value head, the pixels themselves; ``out_weight`` (G, c_out/G, k²·c/G)
    mixes their outputs, G the groups of the convolution. Equal to the convolution up to rounding if
    all pixels are finite. Memory grows linearly with the number of pixels.
    """

    taps: Tensor

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.kernel, self.stride, self.dilation = (
            (x[0], x[1]) for x in (conv.kernel_size, conv.stride, conv.dilation)
        )
        self.mode, self.groups, self.channels = conv.padding_mode, conv.groups, conv.in_channels
        self.padding = tuple(
            _padding(conv.padding, axis, k, d)
            for axis, (k, d) in enumerate(zip(self.kernel, self.dilation))
        )
        weight = conv.weight.detach().unflatten(0, (self.groups, -1))
        learns, bias = conv.weight.requires_grad, conv.bias
        self.out_weight = nn.Parameter(weight.movedim(2, -1).flatten(2).clone(), learns)
        self.out_bias = bias
        if bias is not None:
            self.out_bias = nn.Parameter(bias.detach().clone(), bias.requires_grad)
        self.register_buffer(
            "taps", torch.arange(self.kernel[0] * self.kernel[1])[None], persistent=False
        )

    @forgiving(3)
    def forward(self, x: Float[Tensor, "*b c height width"]) -> Float[Tensor, "*b k down across"]:
        """Return the output of the convolution for images (b, c, height, width), or one image."""
        self._check(x)
        axes = self._axes(x)
        read = self._matrix(x, axes).matmul(x.flatten(2).transpose(-2, -1)[:, None])
        read = read.unflatten(-1, (self.groups, -1)).permute(0, 3, 2, 1, 4).flatten(-2)
        y = (self.out_weight @ read.transpose(-2, -1)).flatten(1, 2)
        if self.out_bias is not None:
            y = y + self.out_bias[:, None]
        return y.unflatten(-1, (axes[0][1], axes[1][1]))

    @forgiving(3)
    def attend(self, x: Float[Tensor, "*b c height width"]) -> Attention:
        """Return the lazy matrix (b, k², t, s): output pixels, input pixels, row after row.

        It has no axis b if the image has none.
        """
        self._check(x)
        return self._matrix(x, self._axes(x))

    def _matrix(self, images: Tensor, axes: tuple[Axis, Axis]) -> Attention:
        """Scores are 0 everywhere: a query gives all its weight to the only key it sees."""
        (height, down, *_), (width, across, *_) = axes
        b, zero = len(images), images.new_zeros(())
        q = zero.expand(b, self.taps.shape[1], down * across, 1)
        k = zero.expand(b, 1, height * width, 1)
        return attend(q, k, mask=Taps(self.taps, self.mode, *axes[0], *axes[1]))

    def _axes(self, images: Tensor) -> tuple[Axis, Axis]:
        found = []
        for size, k, stride, d, (before, after) in zip(
            images.shape[2:], self.kernel, self.stride, self.dilation, self.padding
        ):
            out = (size + before + after - d * (k - 1) - 1) // stride + 1
            most = {"reflect": size - 1, "circular": size}.get(self.mode, before + after)
            if out < 1 or max(before, after) > most:
                raise build(
                    ArgumentError,
                    "x",
                    f"an image that a kernel of {self._kernel()} fits into",
                    shape_of(images),
                    f"padding {before} + {after}, mode {self.mode!r}",
                )
            found.append((size, out, k, stride, before, d))
        return found[0], found[1]

    def _kernel(self) -> str:
        dilated = "" if self.dilation == (1, 1) else f" with dilation {self.dilation}"
        return f"{self.kernel[0]} × {self.kernel[1]}{dilated}"

    def _check(self, x: Any) -> None:
        check_floats(x, "x", "floating-point images (b, c, height, width)")
        if x.ndim != 4 or x.shape[-3] != self.channels:
            raise build(
                ArgumentError,
                "x",
                f"shape (b, c={self.channels}, height, width), or (c, height, width)",
                shape_of(x),
            )
        check_dtype(x, "x", self.out_weight)

    def extra_repr(self) -> str:
        return f"channels={self.channels}, kernel={self._kernel()}, groups={self.groups}"


def convolution_as_attention(conv: nn.Conv2d) -> ConvolutionAsAttention:
    """Return ``conv`` as attention over pixels: one one-hot head for each of its k² taps.

    Any kernel, stride, padding, padding mode, dilation and groups; weights are copied with their
    ``requires_grad``. ``.attend(x)`` (b, k², t, s) shows where each head looks. Raises `KindError`
    for anything but an `nn.Conv2d`, and for subclasses with their own ``forward``.

    Source: Cordonnier et al. 2020, theorem 1.

    >>> conv = nn.Conv2d(2, 4, kernel_size=3, padding=1)
    >>> layer, x = convolution_as_attention(conv), torch.randn(1, 2, 5, 5)
    >>> layer.attend(x).shape, bool(torch.allclose(layer(x), conv(x), atol=1e-5))
    ((1, 9, 25, 25), True)
    """
    check_kind(
        conv,
        nn.Conv2d,
        "conv",
        "an nn.Conv2d",
        fix="only convolutions over images have k² taps on a grid",
    )
    own = [name for name in _COMPUTES if getattr(type(conv), name) is not getattr(nn.Conv2d, name)]
    if own:
        raise build(
            KindError,
            "conv",
            "an nn.Conv2d",
            f"{type(conv).__name__}, which has a {own[0]} of its own",
            "what it computes is not known",
        )
    if nn.parameter.is_lazy(conv.weight):
        raise build(
            KindError,
            "conv",
            "an nn.Conv2d with weights",
            f"{type(conv).__name__} without",
            fix="call it once to set its channels",
        )
    return ConvolutionAsAttention(conv).train(conv.training).to(device=conv.weight.device)


_COMPUTES = ("forward", "_conv_forward")


def _padding(
    padding: str | tuple[int, ...], axis: int, kernel: int, dilation: int
) -> tuple[int, int]:
    """Pixels added before and after; "same" adds the odd pixel after, as in PyTorch."""
    if padding == "same":
        total = dilation * (kernel - 1)
        return total // 2, total - total // 2
    return (0, 0) if isinstance(padding, str) else (padding[axis], padding[axis])
