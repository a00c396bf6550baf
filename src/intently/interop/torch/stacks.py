"""Encoder and decoder layers one after another, for embedded inputs: `nn.Transformer` as ours."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from intently.masks import Mask
from intently.models.transformer import DecoderCache
from intently.modules import DecoderLayer, EncoderLayer
from intently.modules.weights.loading import AllOrNothing


class Encoder(AllOrNothing):
    """Encoder layers one after another, then a norm where there is one: `nn.TransformerEncoder`."""

    def __init__(self, layers: list[EncoderLayer], norm: nn.LayerNorm | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self, x: Float[Tensor, "b s c"], *, mask: Mask | None = None
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) of embedded steps x (b, s, c)."""
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x if self.norm is None else self.norm(x)


class Decoder(AllOrNothing):
    """Decoder layers one after another, then a norm where there is one: `nn.TransformerDecoder`."""

    def __init__(self, layers: list[DecoderLayer], norm: nn.LayerNorm | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        x: Float[Tensor, "b t c"],
        states: Float[Tensor, "n s c"],
        *,
        mask: Mask | None = None,
        states_mask: Mask | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c) of embedded steps x; with `new_cache`, x holds only the new ones."""
        for i, layer in enumerate(self.layers):
            own = (None, None) if cache is None else cache.layers[i]
            x = layer(x, states, mask=mask, states_mask=states_mask, cache=own)
        return x if self.norm is None else self.norm(x)

    def new_cache(self) -> DecoderCache:
        """Return an empty cache."""
        return DecoderCache(len(self.layers))


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
        self, source: Float[Tensor, "b s c"], *, mask: Mask | None = None
    ) -> Float[Tensor, "b s c"]:
        """Return the states (b, s, c) of the embedded source."""
        return self.encoder(source, mask=mask)

    def decode(
        self,
        target: Float[Tensor, "b t c"],
        states: Float[Tensor, "n s c"],
        *,
        mask: Mask | None = None,
        states_mask: Mask | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return y (b, t, c) of the embedded target; see `Decoder`."""
        return self.decoder(target, states, mask=mask, states_mask=states_mask, cache=cache)

    def forward(
        self,
        source: Float[Tensor, "b s c"],
        target: Float[Tensor, "b t c"],
        *,
        source_mask: Mask | None = None,
        target_mask: Mask | None = None,
        states_mask: Mask | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Encode, then decode. As in `nn.Transformer`, no mask is implied by another."""
        states = self.encode(source, mask=source_mask)
        return self.decode(target, states, mask=target_mask, states_mask=states_mask)
