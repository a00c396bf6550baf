"""Stacks of encoder and decoder layers, for inputs that are already embedded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from intently.masks import Mask
from intently.models.transformer import DecoderCache
from intently.modules import DecoderLayer, EncoderLayer
from intently.modules.weights.loading import AllOrNothing


class _Stack(AllOrNothing):
    """Layers, then an optional norm, then dropout."""

    def __init__(
        self,
        layers: Sequence[EncoderLayer | DecoderLayer],
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm, self.dropout = norm or nn.Identity(), dropout

    def _finish(self, x: Tensor) -> Tensor:
        return F.dropout(self.norm(x), self.dropout, self.training)

    def new_cache(self) -> DecoderCache:
        """Return an empty cache."""
        return DecoderCache(len(self.layers))

    def attentions(self) -> list[tuple[str, nn.Module]]:
        """Return the attention blocks by module path: ``layers.0.self_attention``, …"""
        return [
            (f"layers.{i}.{name}", block)
            for i, layer in enumerate(self.layers)
            for name, block in layer.named_children()
            if name.endswith("_attention")
        ]


class Encoder(_Stack):
    """Layers that attend to their own steps: `nn.TransformerEncoder`, BERT; GPT-2 where causal."""

    def forward(
        self,
        x: Float[Tensor, "b s c"],
        *,
        mask: Mask | Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) of embedded steps x; with `new_cache`, x holds new ones."""
        for i, layer in enumerate(self.layers):
            x = layer(x, mask=mask, cache=None if cache is None else cache.layers[i][0])
        return self._finish(x)


class Decoder(_Stack):
    """Layers that attend to their own steps, then to an encoder's, as in `nn.TransformerDecoder`."""

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        states: Float[Tensor, "n s c"],
        *,
        mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c) of embedded steps x; with `new_cache`, x holds only the new ones."""
        for i, layer in enumerate(self.layers):
            own = (None, None) if cache is None else cache.layers[i]
            x = layer(x, states, mask=mask, states_mask=states_mask, cache=own)
        return self._finish(x)


class EncoderDecoder(AllOrNothing):
    """An encoder and a decoder of embedded inputs: `nn.Transformer`.

    >>> import torch
    >>> from intently.interop.torch import load
    >>> model = load(nn.Transformer(8, 2, 1, 1, 16))
    >>> model(torch.zeros(1, 5, 8), torch.zeros(1, 3, 8)).shape
    torch.Size([1, 3, 8])
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def encode(
        self, source: Float[Tensor, "b s c"], *, mask: Mask | Tensor | None = None
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) of the embedded source."""
        return self.encoder(source, mask=mask)

    def decode(
        self, target: Float[Tensor, "b t c"], states: Float[Tensor, "n s c"], **options: Any
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c) of the embedded target; the options are those of `Decoder`."""
        return self.decoder(target, states, **options)

    def forward(
        self,
        source: Float[Tensor, "b s c"],
        target: Float[Tensor, "b t c"],
        *,
        source_mask: Mask | Tensor | None = None,
        target_mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Encode, then decode. As in `nn.Transformer`, no mask is implied by another."""
        states = self.encoder(source, mask=source_mask)
        return self.decoder(target, states, mask=target_mask, states_mask=states_mask)
