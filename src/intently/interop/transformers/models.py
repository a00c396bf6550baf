"""Stacks of layers, and whole models of them: text to states or logits, and text to text."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import Mask
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.interop.blocks import Decoder, Encoder
from intently.nn.attended import attended, attention_blocks
from intently.nn.models.transformer import DecoderCache
from intently.nn.weights.loading import AllOrNothing


class Embeddings(AllOrNothing):
    """Tokens (b, t) to vectors (b, t, c): token, position and segment tables, summed.

    ``places`` is the number of learned positions, ``types`` that of segments (none unless given);
    ``scale`` multiplies the token vectors.
    """

    def __init__(
        self,
        tokens: int,
        width: int,
        *,
        places: int | None = None,
        types: int | None = None,
        norm: nn.Module | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = None if places is None else nn.Embedding(places, width)
        self.types = None if types is None else nn.Embedding(types, width)
        self.norm, self.scale, self.dropout = norm or nn.Identity(), scale, dropout

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        start: int = 0,
        positions: Tensor | None = None,
        types: Tensor | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return x (b, t, c) of steps from ``start`` on, or at ``positions`` (t,) or (b, t)."""
        _check_ids(ids)
        x = self.tokens(ids) * self.scale
        if self.types is not None:
            x = x + self.types(torch.zeros_like(ids) if types is None else types)
        elif types is not None:
            raise build(ArgumentError, "types", "None", shape_of(types), "there are no segments")
        if self.places is None and positions is not None:
            got, cause = shape_of(positions), "the model sees only distances"
            fix = "a shift of all positions changes nothing"
            raise build(ArgumentError, "positions", "None", got, cause, fix)
        if self.places is not None:
            end, most = start + ids.shape[1], self.places.num_embeddings
            if positions is None and end > most:
                expected = f"at most {most} steps, cached ones included"
                cause = "the model learned no later positions"
                raise build(ArgumentError, "ids", expected, end, cause)
            at = torch.arange(start, end, device=ids.device) if positions is None else positions
            x = x + self.places(at)
        return F.dropout(self.norm(x), self.dropout, self.training)


class TextModel(AllOrNothing):
    """Tokens to states, and to logits where there is a head: GPT-2, Llama, Qwen, BERT.

    `intently.interop.transformers.load` returns it for them. In masks True means attend; padding
    is ``it.padding(lengths)`` on the right and ``seen[:, None, None, :]`` anywhere.
    """

    def __init__(
        self, embed: Embeddings, stack: Encoder, head: nn.Module, pooler: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.embed, self.stack, self.head, self.pooler = embed, stack, head, pooler

    def forward(
        self,
        ids: Int[Tensor, "b t"],
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        types: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t n"]:
        """Return logits (b, t, vocabulary), or states (b, t, c) without a head.

        With a cache of `new_cache`, ids hold only the new steps. Raises `ArgumentError` for ids of
        a different shape and for more steps than the model has positions.
        """
        x = self.states(ids, mask=mask, positions=positions, types=types, cache=cache)
        return self.head(x)

    def states(
        self, ids: Int[Tensor, "b t"], *, cache: DecoderCache | None = None, **given: Any
    ) -> Float[Tensor, "b t c"]:
        """Return the states (b, t, c) after the last layer and its norm; arguments as above."""
        mask = given.pop("mask", None)
        start = 0 if cache is None else cache.length
        return self.stack(self.embed(ids, start=start, **given), mask=mask, cache=cache)

    def pooled(self, states: Float[Tensor, "b t c"]) -> Float[Tensor, "b n"]:
        """Return the pooler's summary of the first state; raises if there is no pooler."""
        if self.pooler is None:
            raise build(ArgumentError, "pooled", "a model with a pooler", "one without")
        return self.pooler(states[:, 0])

    def attentions(self, ids: Tensor, **given: Any) -> dict[str, Attention]:
        """Return every layer's lazy matrix (b, h, t, t): ``stack.layers.0.self_attention`` and on.

        Takes the arguments of `states`, except a cache.
        """
        blocks = attention_blocks(**{"stack.layers": self.stack.layers})
        return attended(blocks, lambda: self.states(ids, **given))

    def new_cache(self) -> DecoderCache:
        """Return an empty cache."""
        return self.stack.new_cache()


class TextToText(AllOrNothing):
    """Source tokens and target tokens to states or logits: Marian."""

    def __init__(
        self,
        source: Embeddings,
        target: Embeddings,
        encoder: Encoder,
        decoder: Decoder,
        head: nn.Module,
    ) -> None:
        super().__init__()
        self.source, self.target, self.head = source, target, head
        self.encoder, self.decoder = encoder, decoder

    def forward(
        self,
        ids: Int[Tensor, "b s"],
        target: Int[Tensor, "b t"],
        *,
        mask: Mask | Tensor | None = None,
        target_mask: Mask | Tensor | None = None,
    ) -> Float[Tensor, "b t n"]:
        """Return logits (b, t, vocabulary), or states (b, t, c) without a head.

        ``target`` starts with the start token; ``mask`` is the padding of the source,
        ``target_mask`` is combined with the causal mask of the target.
        """
        states = self.encode(ids, mask=mask)
        return self.decode(target, states, mask=target_mask, states_mask=mask)

    def encode(
        self, ids: Int[Tensor, "b s"], *, mask: Mask | Tensor | None = None
    ) -> Float[Tensor, "b s c"]:
        """Return the encoder's states (b, s, c)."""
        return self.encoder(self.source(ids), mask=mask)

    def decode(
        self,
        target: Int[Tensor, "b t"],
        states: Float[Tensor, "b s c"],
        *,
        mask: Mask | Tensor | None = None,
        states_mask: Mask | Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t n"]:
        """Return logits (or states) of the target; with `new_cache`, of its new steps only."""
        x = self.target(target, start=0 if cache is None else cache.length)
        return self.head(self.decoder(x, states, mask=mask, states_mask=states_mask, cache=cache))

    def attentions(
        self, ids: Int[Tensor, "b s"], target: Int[Tensor, "b t"], **masks: Any
    ) -> dict[str, Attention]:
        """Return every lazy matrix by path: ``decoder.layers.0.cross_attention``, …

        Takes the arguments of a call. Those of the encoder have shape (b, h, s, s), the decoder's
        own (b, h, t, t), and cross attention (b, h, t, s).
        """
        sides = {"encoder.layers": self.encoder.layers, "decoder.layers": self.decoder.layers}
        return attended(attention_blocks(**sides), lambda: self(ids, target, **masks))

    def new_cache(self) -> DecoderCache:
        """Return an empty cache of the decoder."""
        return self.decoder.new_cache()


def _check_ids(ids: Any) -> None:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype is torch.bool:
        got = f"dtype {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise build(KindError, "ids", "a tensor (b, t) of whole numbers", got)
    if ids.ndim != 2:
        raise build(
            ArgumentError, "ids", "shape (b, t)", shape_of(ids), fix="one text is ids[None]"
        )
