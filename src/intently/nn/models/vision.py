"""The Vision Transformer: an image as a sequence of patches, read by attention.

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words: Transformers for Image Recognition
at Scale", section 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import divisor, whole_number
from intently.foundation.field_names import answered
from intently.nn.blocks import EncoderLayer
from intently.nn.checks import check_dtype
from intently.nn.models.shared import FOURFOLD, Factory, States, check_options, kept
from intently.nn.multi_head import MultiHeadAttention
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections
from intently.nn.replay import attended, attention_blocks
from intently.nn.weights.copying import AllOrNothing


@answered
@dataclass(frozen=True)
class VisionOptions:
    """The shape of a `VisionTransformer`.

    ``image`` is (height, width) in pixels and ``patch`` the side of the squares it is cut into;
    ``classes`` 0 leaves out the head. ``norm`` and ``feed_forward`` make these parts from the
    width c. Raises `ArgumentError` or `KindError` for impossible sizes, and if the patches do not
    fill the image.

    >>> VisionOptions(image=(32, 48), patch=8, classes=10).patches
    24
    """

    image: tuple[int, int]
    patch: int
    classes: int
    channels: int = 3
    width: int = 128
    heads: int = 4
    layers: int = 4
    norm: Factory = nn.LayerNorm
    feed_forward: Factory = FOURFOLD
    projections: Projections = Projections()
    attention: AttentionOptions = AttentionOptions()
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.image, tuple | list) or len(self.image) != 2:
            raise build(ArgumentError, "image", "(height, width) in pixels", repr(self.image))
        for side in self.image:
            whole_number(side, "image", 1)
        for name, least in (("patch", 1), ("classes", 0), ("channels", 1)):
            whole_number(getattr(self, name), name, least)
        check_options(self)
        divisor(self.heads, "heads", "width", self.width)
        if any(side % self.patch for side in self.image):
            raise build(
                ArgumentError,
                "patch",
                f"a divisor of the sides of the image {self.image}",
                self.patch,
                "patches fill the image",
                "resize the image, or take another patch",
            )

    @property
    def patches(self) -> int:
        """The number of patches of an image."""
        height, width = self.image
        return (height // self.patch) * (width // self.patch)


class VisionTransformer(AllOrNothing):
    """Images (b, c, height, width) in, logits (b, classes) out.

    Each patch is projected to the width c, a class token is prepended, learned positions are added,
    and after the layers the head reads only the class token.

    >>> model = VisionTransformer(VisionOptions(image=(32, 32), patch=8, classes=10))
    >>> images = torch.randn(2, 3, 32, 32)
    >>> model(images).shape, model.hidden(images).shape
    (torch.Size([2, 10]), torch.Size([2, 17, 128]))
    >>> A = model.attentions(images)["encoder.0.self_attention"]
    >>> A[0, 0, 0, 1:].shape  # class token → patches
    torch.Size([16])
    """

    def __init__(self, options: VisionOptions) -> None:
        super().__init__()
        o = self.options = options
        self.patches = nn.Conv2d(o.channels, o.width, o.patch, stride=o.patch)
        self.class_token = nn.Parameter(torch.zeros(o.width))
        self.positions = nn.Parameter(torch.zeros(o.patches + 1, o.width))
        for p in (self.class_token, self.positions):
            nn.init.trunc_normal_(p, std=0.02)
        self.encoder = nn.ModuleList(
            EncoderLayer(
                o.width,
                MultiHeadAttention(
                    o.width, o.heads, attention=o.attention, projections=o.projections
                ),
                o.feed_forward(o.width),
                norms=o.norm,
                dropout=o.dropout,
            )
            for _ in range(o.layers)
        )
        self.norm = o.norm(o.width)
        self.head = nn.Linear(o.width, o.classes) if o.classes else None

    def forward(self, images: Float[Tensor, "b c height width"]) -> Float[Tensor, "b classes"]:
        """Return the logits (b, classes); without a head the class token's states (b, c)."""
        states = self.hidden(images)[:, 0]
        return states if self.head is None else self.head(states)

    def hidden(
        self, images: Float[Tensor, "b c height width"], keep: States | None = None
    ) -> Float[Tensor, "b t k"]:
        """Return the states (b, 1 + patches, c): the class token, then patches row after row.

        ``keep``, a dict, keeps those of every layer, see `states`.
        """
        x = self._embed(images, keep)
        for i, layer in enumerate(self.encoder):
            x = kept(keep, f"encoder.{i}", layer(x))
        return kept(keep, "encoder.output", self.norm(x))

    def states(self, images: Float[Tensor, "b c height width"]) -> States:
        """Return the states (b, 1 + patches, c) of every layer by name, in order.

        "encoder.embedding" holds the class token and the projected patches, "encoder.input" adds
        their positions, "encoder.0", … are the states after each layer, and "encoder.output" is
        normed. They are the tensors of `forward`, with its gradients.

        >>> model = VisionTransformer(VisionOptions(image=(32, 32), patch=8, classes=0, layers=1))
        >>> list(model.states(torch.randn(2, 3, 32, 32)))
        ['encoder.embedding', 'encoder.input', 'encoder.0', 'encoder.output']
        """
        found: States = {}
        self.hidden(images, found)
        return found

    @torch.no_grad()
    def attentions(self, images: Float[Tensor, "b c height width"]) -> dict[str, Attention]:
        """Return every layer's lazy matrix (b, h, 1 + patches, 1 + patches).

        Names are the paths of the modules: "encoder.0.self_attention", … Row and column 0 are the
        class token; the patches follow, row after row.
        """
        return attended(attention_blocks(encoder=self.encoder), lambda: self.hidden(images))

    def _embed(self, images: Tensor, keep: States | None) -> Tensor:
        o = self.options
        expected, fix = "floating-point images (b, c, height, width)", "scale bytes first: "
        check_floats(images, "images", expected, fix=fix + "images.float() / 255")
        if images.ndim != 4 or tuple(images.shape[1:]) != (o.channels, *o.image):
            height, width = o.image
            raise build(
                ArgumentError,
                "images",
                f"shape (b, c={o.channels}, {height}, {width})",
                shape_of(images),
                "the positions are learned for one size of image",
            )
        check_dtype(images, "images", self.class_token)
        x = self.patches(images).flatten(2).transpose(-2, -1)
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], 1)
        x = kept(keep, "encoder.embedding", x) + self.positions
        return kept(keep, "encoder.input", F.dropout(x, o.dropout, self.training))
