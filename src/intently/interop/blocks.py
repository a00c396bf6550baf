"""Modules that only other libraries have: stacks, attention with a residual, models of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import Mask
from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.nn import DecoderLayer, EncoderLayer, MultiHeadAttention
from intently.nn.models.transformer import DecoderCache
from intently.nn.replay import attended, attention_blocks
from intently.nn.weights.copying import AllOrNothing


class _Stack(AllOrNothing):
    """Layers, then an optional norm."""

    def __init__(
        self, layers: Sequence[EncoderLayer | DecoderLayer], norm: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(layers), norm or nn.Identity()

    def new_cache(self) -> DecoderCache:
        """Return an empty cache."""
        return DecoderCache(len(self.layers))


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
        return self.norm(x)


class Decoder(_Stack):
    """Layers that attend to their own steps, then to an encoder's: `nn.TransformerDecoder`."""

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
            caches = (None, None) if cache is None else cache.layers[i]
            x = layer(x, states, mask=mask, states_mask=states_mask, cache=caches)
        return self.norm(x)


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


class ResidualAttention(AllOrNothing):
    """Attention with the norms and the residual of diffusers, for steps (b, t, c) or an image.

    y = (x + dropout(attention(norm(x), context_norm(context)))) / divisor, without x where
    ``residual`` is False. Group norms see (b, c, t), layer norms (b, t, c).

    >>> import torch
    >>> block = ResidualAttention(MultiHeadAttention(8, 2), norm=nn.GroupNorm(4, 8), residual=True)
    >>> block(torch.zeros(1, 8, 3, 3)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        *,
        norm: nn.Module | None = None,
        context_norm: nn.Module | None = None,
        dropout: float = 0.0,
        residual: bool = False,
        divisor: float = 1.0,
    ) -> None:
        super().__init__()
        self.norm, self.context_norm, self.attention = norm, context_norm, attention
        self.dropout, self.residual, self.divisor = dropout, residual, divisor

    def forward(
        self,
        x: Float[Tensor, "b t c"] | Float[Tensor, "b c height width"],
        context: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: Any = None,
    ) -> Float[Tensor, "b t c"] | Float[Tensor, "b c height width"]:
        """Return y in the shape of x; the pixels of an image are read row by row.

        ``mask`` and ``cache`` are those of the attention.
        """
        normed, context = self._operands(x, context)
        y = self.attention(normed, context, mask=mask, cache=cache)
        y = F.dropout(y, self.dropout, self.training)
        y = y.transpose(-2, -1).unflatten(-1, x.shape[2:]) if x.ndim == 4 else y
        y = y + x if self.residual else y
        return y if self.divisor == 1 else y / self.divisor

    def attend(
        self,
        x: Float[Tensor, "b t c"] | Float[Tensor, "b c height width"],
        context: Float[Tensor, "b s k"] | None = None,
        *,
        mask: Mask | Tensor | None = None,
        cache: Any = None,
    ) -> LazyMatrix:
        """Return the lazy matrix (b, h, t, s) of `forward` of the same arguments."""
        return self.attention.attend(*self._operands(x, context), mask=mask, cache=cache)

    def _operands(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if x.ndim not in (3, 4):
            raise build(ArgumentError, "x", "shape (b, t, c) or (b, c, height, width)", shape_of(x))
        steps = x.flatten(2).transpose(-2, -1) if x.ndim == 4 else x
        context = None if context is None else _normed(self.context_norm, context)
        return _normed(self.norm, steps), context


def _normed(norm: nn.Module | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    return (
        norm(x.transpose(-2, -1)).transpose(-2, -1) if isinstance(norm, nn.GroupNorm) else norm(x)
    )


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
        return self.head(self.states(ids, mask=mask, positions=positions, types=types, cache=cache))

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
        return self.decode(target, self.encode(ids, mask=mask), mask=target_mask, states_mask=mask)

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
