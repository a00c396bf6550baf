"""Attention over the pixels of an image, as diffusion models use it.

An image (b, c, height, width) is a sequence of height · width pixels, row after row, each a vector
of c channels. Every pixel is a query; every pixel (or every token of a text) is a key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import Mask
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import whole_number
from intently.foundation.field_names import answered
from intently.nn.blocks import DecoderLayer, EncoderLayer, made_norm
from intently.nn.checks import check_dtype, check_steps, forgiving
from intently.nn.feed_forward import GatedFeedForward
from intently.nn.linear import Linear
from intently.nn.multi_head import MultiHeadAttention
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections
from intently.nn.replay import attended, attention_blocks
from intently.nn.weights.copying import AllOrNothing, copied, copied_norm, filled, tensors
from intently.nn.weights.reading import StorageOptions, Weight, Weights, read_map, sizes


def as_pixels(image: Float[Tensor, "b c height width"]) -> Float[Tensor, "b t c"]:
    """Return the pixels (b, height · width, c) of an image, row after row."""
    return image.flatten(2).transpose(-2, -1)


def as_image(
    pixels: Float[Tensor, "b t k"], like: Float[Tensor, "b c height width"]
) -> Float[Tensor, "b k height width"]:
    """Return pixels as an image of the height and width of ``like``."""
    return pixels.transpose(-2, -1).unflatten(-1, like.shape[2:])


def check_image(x: Any, channels: int, weight: Tensor) -> None:
    """Raise unless x is an image (b, c=channels, height, width) of the dtype of the weights."""
    fix = "scale bytes first: x.float() / 255"
    check_floats(x, "x", "a floating-point image (b, c, height, width)", fix=fix)
    if x.ndim != 4 or x.shape[1] != channels:
        last = x.ndim == 4 and x.shape[-1] == channels
        hints = ("the channels stand last", "move them with x.movedim(-1, -3)") if last else ()
        expected = f"shape (b, c={channels}, height, width), or (c, height, width)"
        raise build(ArgumentError, "x", expected, shape_of(x), *hints)
    check_dtype(x, "x", weight)


Norm = Callable[[int], nn.Module]
"""Makes a norm for images of so many channels: `group_norm`, `nn.BatchNorm2d`, `ChannelNorm`."""


def group_norm(groups: int | None = None, eps: float = 1e-5) -> Norm:
    """Return a factory of group norms, a value for ``norm=``. Without a number, 32 groups, or as
    many up to 32 as divide the channels evenly. The factory raises `ArgumentError` where ``groups``
    does not divide the channels.

    Source: Wu & He 2018, "Group Normalization".

    >>> group_norm()(48).num_groups
    16
    """

    def make(channels: int) -> nn.GroupNorm:
        """Return a group norm for this number of channels."""
        if groups is not None and (groups < 1 or channels % groups):
            raise build(
                ArgumentError,
                "groups",
                f"a divisor of channels={channels}",
                groups,
                fix="leave it out to choose one",
            )
        return nn.GroupNorm(math.gcd(32, channels) if groups is None else groups, channels, eps)

    return make


UP_TO_32_GROUPS, LATENT_NORM = group_norm(), group_norm(eps=1e-6)
ADDED = "the output is added to the image", "write residual=False to skip that"


class ChannelNorm(nn.LayerNorm):
    """Layer norm of each pixel over its channels: (b, c, height, width) → the same.

    Source: Ba et al. 2016, "Layer Normalization".

    >>> import torch
    >>> ChannelNorm(2)(torch.tensor([3.0, 1.0]).view(1, 2, 1, 1)).flatten().tolist()[0] > 0.99
    True
    """

    def forward(
        self, input: Float[Tensor, "b c height width"]
    ) -> Float[Tensor, "b c height width"]:
        """Return each pixel with mean 0 and variance 1 over its channels, scaled and shifted."""
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


__all__ = ["ChannelNorm", "ImageAttention", "Norm", "SpatialTransformer", "group_norm"]


@answered
class ImageAttention(AllOrNothing):
    """Multi-head attention over pixels: norm, attention, residual; (b, c, height, width) → same.

    ``norm`` makes the norm before attention (by default `group_norm` with up to 32 groups;
    `nn.BatchNorm2d`, `ChannelNorm`, or None), ``residual`` adds the image to the output. Heads are
    ``head_width`` wide (c/h unless given). With ``context_width``, the pixels attend to a sequence
    (b, s, context_width) instead of to each other. ``attention`` holds the attention options; with
    the mask ``it.grid(height, width, radius)`` pixels see only their neighbours. Without the
    residual, ``projections`` may change the number of channels. Raises `KindError` and
    `ArgumentError` for parts of other types or sizes.

    Source: Wang et al. 2018, "Non-local Neural Networks", section 3.3; Ho et al. 2020, "Denoising
    Diffusion Probabilistic Models", appendix B.

    >>> import torch, intently as it
    >>> block, image = ImageAttention(32, 4), torch.randn(1, 32, 16, 16)
    >>> block(image).shape, block.attend(image).shape
    (torch.Size([1, 32, 16, 16]), (1, 4, 256, 256))
    >>> near = block.attend(image, mask=it.grid(16, 16, radius=1))
    >>> int((near[0, 0, 17] > 0).sum())
    9
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        *,
        head_width: int | None = None,
        context_width: int | None = None,
        norm: Norm | None = UP_TO_32_GROUPS,
        residual: bool = True,
        attention: AttentionOptions = AttentionOptions(),
        projections: Projections = Projections(),
    ) -> None:
        super().__init__()
        self.channels, self.residual = whole_number(channels, "channels", 1), residual
        self.norm = _norm(norm, channels)
        self.attention = MultiHeadAttention(
            channels,
            heads,
            context_width=context_width,
            attention=attention,
            head_widths=None if head_width is None else (head_width, head_width),
            projections=projections,
        )
        if residual and projections.out_width not in (None, channels):
            expected, got = f"out_width={channels}, or None", f"out_width={projections.out_width}"
            raise build(ArgumentError, "projections", expected, got, *ADDED)

    @classmethod
    def from_weights(
        cls,
        q: Weights,
        k: Weights | None,
        v: Weights | None,
        out: Weights,
        *,
        norm: nn.Module | None = None,
        residual: bool = True,
        **stored: Unpack[StorageOptions],
    ) -> ImageAttention:
        """Return a block with copies of the weights of other code.

        ``q``, ``k``, ``v``, ``out`` and the other keywords (``layout``, ``heads``, ``kv_heads``,
        ``attention``) are those of `MultiHeadAttention.from_weights`: 1 × 1 convolutions, or linear
        maps. ``norm`` is the norm before attention with its weights, such as ``nn.GroupNorm(8,
        32)``. Raises as that method does.

        >>> q, k, v, out = (nn.Conv2d(32, 32, kernel_size=1) for _ in range(4))
        >>> norm = nn.GroupNorm(8, 32)
        >>> ImageAttention.from_weights(q, k, v, out, layout="h d", heads=4, norm=norm).channels
        32
        """
        inner = MultiHeadAttention.from_weights(q, k, v, out, **stored)
        c, like = inner.width, inner.out_weight
        if residual and len(like) != c:
            raise build(ArgumentError, "out", f"shape (c={c}, h·e)", shape_of(like), *ADDED)
        block = cls(1, 1, norm=None, residual=residual)
        block.channels, block.attention = c, inner
        block.norm = nn.Identity() if norm is None else copied_norm(norm, "norm", c, like)
        return block

    @forgiving(3)
    def forward(
        self,
        x: Float[Tensor, "*b c height width"],
        context: Float[Tensor, "*b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> Float[Tensor, "*b o height width"]:
        """Return the image after its pixels attended to each other, or to ``context`` (b, s, k).

        It has o channels, c unless ``projections`` say otherwise. A single image (c, height, width)
        needs no batch axis; its context is then (s, k).
        """
        y = as_image(self.attention(self._pixels(x), context, mask=mask), x)
        return x + y if self.residual else y

    @forgiving(3)
    def attend(
        self,
        x: Float[Tensor, "*b c height width"],
        context: Float[Tensor, "*b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
    ) -> LazyMatrix:
        """Return the lazy matrix (b, h, pixels, pixels or s) of `forward` of the same arguments.

        It has no axis b if the image has none.
        """
        return self.attention.attend(self._pixels(x), context, mask=mask)

    def _pixels(self, x: Tensor) -> Tensor:
        check_image(x, self.channels, self.attention.out_weight)
        return as_pixels(self.norm(x))


@answered
class SpatialTransformer(AllOrNothing):
    """The attention block of latent-diffusion U-Nets: (b, c, height, width) → the same.

    Group norm (or another ``norm``, or None), projection in to width h·d, ``depth`` ×
    [self-attention, cross-attention to ``context_width`` wide tokens, gated feed-forward],
    projection out, residual. Without ``context_width`` there is no cross-attention. ``attention``
    holds the options of self-attention (a mask ``it.grid``, for example); ``projections`` applies
    to all attention blocks, without biases in the paper: ``Projections(bias=False)``. Raises
    `KindError` and `ArgumentError` for parts of other types or sizes.

    Source: Rombach et al. 2022, "High-Resolution Image Synthesis with Latent Diffusion Models",
    section 3.3 and appendix E.2.1; GEGLU after Shazeer 2020, "GLU Variants Improve Transformer".

    >>> import torch
    >>> block = SpatialTransformer(32, heads=2, head_width=16, context_width=8)
    >>> image, words = torch.randn(1, 32, 8, 8), torch.randn(1, 5, 8)
    >>> block(image, words).shape
    torch.Size([1, 32, 8, 8])
    >>> block.attentions(image, words)["layers.0.cross_attention"].shape
    (1, 2, 64, 5)
    """

    def __init__(
        self,
        channels: int,
        heads: int,
        head_width: int,
        *,
        depth: int = 1,
        context_width: int | None = None,
        norm: Norm | None = LATENT_NORM,
        attention: AttentionOptions = AttentionOptions(),
        projections: Projections = Projections(),
    ) -> None:
        super().__init__()
        self.channels, self.context_width = whole_number(channels, "channels", 1), context_width
        width = whole_number(heads, "heads", 1) * whole_number(head_width, "head_width", 1)
        whole_number(depth, "depth", 0)
        self.norm = _norm(norm, channels)
        self.project_in = Linear(channels, width)
        self.layers = nn.ModuleList(
            _layer(width, heads, context_width, attention, projections) for _ in range(depth)
        )
        self.project_out = Linear(width, channels)

    @classmethod
    def from_weights(
        cls,
        project_in: Weight,
        layers: Sequence[EncoderLayer | DecoderLayer],
        project_out: Weight,
        *,
        norm: nn.Module | None = None,
    ) -> SpatialTransformer:
        """Return a block with copies of the weights of other code.

        ``project_in`` is (h·d, c), ``project_out`` (c, h·d): a 1 × 1 convolution, an ``nn.Linear``,
        a weight, or a pair (weight, bias). Make ``layers`` with their own ``from_weights``, all
        with cross-attention or none; ``norm`` is the first norm with its weights.
        Raises `ArgumentError` if widths do not fit and `KindError` for other parts and mixed
        dtypes.

        >>> layer = EncoderLayer(32, 2, 64)
        >>> block = SpatialTransformer.from_weights(nn.Linear(16, 32), [layer], nn.Linear(32, 16))
        >>> block.channels
        16
        """
        given = {"project_in": project_in, "project_out": project_out}
        maps = {name: read_map(weight, name) for name, weight in given.items()}
        n = sizes(maps, project_in="w c", project_out="c w")
        like = maps["project_in"].weight
        made, context_width = _copied_layers(layers, n["w"], like)
        block = cls(n["c"], 1, n["w"], depth=0, context_width=context_width, norm=None)
        block.layers = nn.ModuleList(made)
        block.norm = nn.Identity() if norm is None else copied_norm(norm, "norm", n["c"], like)
        for name, (weight, bias) in maps.items():
            setattr(block, name, Linear(weight.shape[1], weight.shape[0], bias is not None))
        return filled(block, tensors(maps))

    @forgiving(3)
    def forward(
        self,
        x: Float[Tensor, "*b c height width"],
        context: Float[Tensor, "*b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
    ) -> Float[Tensor, "*b c height width"]:
        """Return the image after its pixels attended to each other and to ``context`` (b, s, k).

        A single image (c, height, width) needs no batch axis; its context is then (s, k).
        ``mask`` selects the pixels that may be attended to, ``context_mask`` the tokens of the
        context. Raises `ArgumentError` for images and contexts of other shapes, and `KindError` for
        other dtypes.
        """
        self._check(x, context)
        pixels = self.project_in(as_pixels(self.norm(x)))
        for layer in self.layers:
            if context is None:
                pixels = layer(pixels, mask=mask)
            else:
                pixels = layer(pixels, context, mask=mask, states_mask=context_mask)
        return x + as_image(self.project_out(pixels), x)

    @forgiving(3)
    def attentions(
        self,
        x: Float[Tensor, "*b c height width"],
        context: Float[Tensor, "*b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        context_mask: Mask | Tensor | None = None,
    ) -> dict[str, Attention]:
        """Return every layer's lazy matrices (b, h, pixels, …): "layers.0.self_attention", …

        Arguments are those of `forward`; rows are pixels, row after row of the image.
        """
        blocks = attention_blocks(layers=self.layers)
        return attended(blocks, lambda: self(x, context, mask=mask, context_mask=context_mask))

    def _check(self, x: Tensor, context: Tensor | None) -> None:
        check_image(x, self.channels, self.project_in.weight)
        width = self.context_width
        if (context is None) != (width is None):
            expected = "None" if width is None else f"shape (b, s, {width})"
            got = "None" if context is None else shape_of(context)
            cause = f"this block was made with context_width={width}"
            raise build(ArgumentError, "context", expected, got, cause)
        if context is None:
            return
        check_steps(context, "context", self.project_in.weight)
        b, one = len(x), context.ndim == 3 and len(context) == 1
        if context.ndim != 3 or (len(context), context.shape[2]) != (b, width):
            expected = f"shape (b={b}, s, {width})"
            fix = f"one for all is context.expand({b}, -1, -1)" if one else None
            cause = "each image has its own"
            raise build(ArgumentError, "context", expected, shape_of(context), cause, fix)


def _norm(make: Norm | None, channels: int) -> nn.Module:
    return nn.Identity() if make is None else made_norm(make, channels, "norm", "group_norm(8)")


def _layer(
    width: int,
    heads: int,
    context_width: int | None,
    attention: AttentionOptions,
    projections: Projections,
) -> EncoderLayer | DecoderLayer:
    own = MultiHeadAttention(width, heads, attention=attention, projections=projections)
    feed = GatedFeedForward(width, 4 * width, activation=F.gelu)
    if context_width is None:
        return EncoderLayer(width, own, feed)
    cross = MultiHeadAttention(width, heads, context_width=context_width, projections=projections)
    return DecoderLayer(width, own, feed, cross=cross)


def _copied_layers(
    layers: Sequence[EncoderLayer | DecoderLayer], width: int, like: Tensor
) -> tuple[list[EncoderLayer | DecoderLayer], int | None]:
    """The layers, and the width of the context that all of them attend to, or None."""
    made: list[EncoderLayer | DecoderLayer] = []
    for i, layer in enumerate(layers):
        kind = DecoderLayer if isinstance(layer, DecoderLayer) else EncoderLayer
        made.append(copied(layer, f"layers[{i}]", kind, like))
        found = made[-1].self_attention.width
        if found != width:
            expected = f"a layer of width {width}, as project_in makes"
            raise build(ArgumentError, f"layers[{i}]", expected, f"width {found}")
    cross = [getattr(layer, "cross_attention", None) for layer in made]
    widths = [None if x is None else x.context_width for x in cross]
    if len(set(widths)) > 1:
        raise build(ArgumentError, "layers", "layers that attend to contexts of one width", widths)
    return made, widths[0] if widths else None
