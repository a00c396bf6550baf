"""Stacks of layers, and whole models of them: text to states or logits, and text to text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import Mask
from intently.errors import ArgumentError, KindError, build, shape_of
from intently.interop.blocks import Decoder, Encoder
from intently.interop.foreign import refuse
from intently.nn import (
    AttentionOptions,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    GatedFeedForward,
    MultiHeadAttention,
)
from intently.nn.attended import attended
from intently.nn.models.transformer import DecoderCache
from intently.nn.weights.loading import AllOrNothing

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "swish": F.silu,
    "tanh": F.tanh,
}


def activation(name: Any) -> Callable[[Tensor], Tensor]:
    """Return the activation of a config; raise `ArgumentError` for one we do not have."""
    if name not in ACTIVATIONS:
        refuse(
            "config",
            "hidden_act",
            f"one of {', '.join(ACTIVATIONS)}",
            repr(name),
            "other activations have no counterpart",
        )
    return ACTIVATIONS[name]


def _plain(layer: int) -> AttentionOptions:
    """The default options, in every layer."""
    return AttentionOptions()


@dataclass(frozen=True)
class Layers:
    """The layers of one stack, in our terms."""

    count: int
    width: int
    heads: int
    inner: int
    activation: Any
    norms: Callable[[int], nn.Module]
    norm: Literal["pre", "post"] = "pre"
    options: Callable[[int], AttentionOptions] = _plain
    """The options of the self-attention of layer i."""
    heads_of: Mapping[str, Any] = field(default_factory=dict)
    """More keywords of `MultiHeadAttention`."""
    gated: bool = False
    bias: bool = True
    """Whether the feed-forward part has biases."""
    dropouts: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Those of the output of each part, of attention weights, and within the feed-forward part."""

    def stack(self, cross: bool = False) -> Any:
        """Return an `Encoder`, or with ``cross`` a `Decoder`; "pre" has a norm after the last."""
        c, (outer, of_weights, inner) = self.width, self.dropouts
        block = partial(MultiHeadAttention, c, self.heads, dropout=of_weights, **self.heads_of)
        kind = GatedFeedForward if self.gated else FeedForward
        function = activation(self.activation)
        layers = []
        for i in range(self.count):
            own = block(attention=self.options(i))
            feed = kind(c, self.inner, inner, activation=function, bias=self.bias)
            given: Any = {"norm": self.norm, "dropout": outer, "norms": self.norms}
            layers.append(
                DecoderLayer(c, own, feed, cross=block(), **given)
                if cross
                else EncoderLayer(c, own, feed, **given)
            )
        last = self.norms(c) if self.norm == "pre" else None
        return Decoder(layers, last) if cross else Encoder(layers, last)


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
            raise build(
                ArgumentError, "types", "None", shape_of(types), "the model has no segments"
            )
        if self.places is not None:
            end, most = start + ids.shape[1], self.places.num_embeddings
            if positions is None and end > most:
                raise build(
                    ArgumentError,
                    "ids",
                    f"at most {most} steps, cached ones included",
                    end,
                    "the model learned no later positions",
                )
            at = torch.arange(start, end, device=ids.device) if positions is None else positions
            x = x + self.places(at)
        elif positions is not None:
            raise build(
                ArgumentError,
                "positions",
                "None",
                shape_of(positions),
                "the model sees only distances",
                "a shift of all positions changes nothing",
            )
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
        given = {"mask": mask, "positions": positions, "types": types, "cache": cache}
        return self.head(self.states(ids, **given))

    def states(
        self,
        ids: Int[Tensor, "b t"],
        *,
        mask: Mask | Tensor | None = None,
        positions: Tensor | None = None,
        types: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return the states (b, t, c) after the last layer and its norm."""
        x = self.embed(ids, start=_length(cache), positions=positions, types=types)
        return self.stack(x, mask=mask, cache=cache)

    def pooled(self, states: Float[Tensor, "b t c"]) -> Float[Tensor, "b n"]:
        """Return the pooler's summary of the first state; raises if there is no pooler."""
        if self.pooler is None:
            raise build(ArgumentError, "pooled", "a model with a pooler", "one without")
        return self.pooler(states[:, 0])

    def attentions(self, ids: Tensor, **given: Any) -> dict[str, Attention]:
        """Return every layer's lazy matrix (b, h, t, t): ``stack.layers.0.self_attention`` and on.

        Takes the arguments of `states`, except a cache.
        """
        blocks = [(f"stack.{name}", block) for name, block in self.stack.attentions()]
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
        self.source, self.target = source, target
        self.encoder, self.decoder = encoder, decoder
        self.head = head

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
        x = self.target(target, start=_length(cache))
        return self.head(self.decoder(x, states, mask=mask, states_mask=states_mask, cache=cache))

    def attentions(
        self,
        ids: Int[Tensor, "b s"],
        target: Int[Tensor, "b t"],
        *,
        mask: Mask | Tensor | None = None,
        target_mask: Mask | Tensor | None = None,
    ) -> dict[str, Attention]:
        """Return every lazy matrix by path: ``decoder.layers.0.cross_attention``, …

        Those of the encoder have shape (b, h, s, s), the decoder's own (b, h, t, t), and cross
        attention (b, h, t, s).
        """
        sides = (("encoder", self.encoder), ("decoder", self.decoder))
        blocks = [(f"{side}.{name}", x) for side, stack in sides for name, x in stack.attentions()]
        return attended(blocks, lambda: self(ids, target, mask=mask, target_mask=target_mask))

    def new_cache(self) -> DecoderCache:
        """Return an empty cache of the decoder."""
        return self.decoder.new_cache()


def _length(cache: DecoderCache | None) -> int:
    return 0 if cache is None else cache.length


def _check_ids(ids: Any) -> None:
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype is torch.bool:
        got = f"dtype {ids.dtype}" if isinstance(ids, Tensor) else type(ids).__name__
        raise build(KindError, "ids", "a tensor (b, t) of whole numbers", got)
    if ids.ndim != 2:
        raise build(
            ArgumentError, "ids", "shape (b, t)", shape_of(ids), fix="one text is ids[None]"
        )
