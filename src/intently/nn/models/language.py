"""The language model: a decoder-only model that predicts the next token.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2); Touvron
et al. 2023, "LLaMA: Open and Efficient Foundation Language Models", section 2.2, with rotary
positions, RMS norms and gated feed-forwards passed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import as_mask, causal
from intently.core.positions import Learned, Rotary
from intently.errors import ArgumentError, KindError, build
from intently.foundation.checks import divisor, whole_number
from intently.foundation.field_names import answered
from intently.nn.blocks import EncoderLayer
from intently.nn.caches.key_value import KeyValueCache
from intently.nn.caches.window import WindowCache
from intently.nn.linear import Linear, linear
from intently.nn.models.shared import (
    FOURFOLD,
    Factory,
    States,
    caches_of,
    check_ids,
    check_options,
    kept,
    run_layers,
)
from intently.nn.multi_head import MultiHeadAttention
from intently.nn.options import AttentionOptions
from intently.nn.projected_attention import Projections
from intently.nn.replay import attended, attention_blocks
from intently.nn.weights.copying import AllOrNothing


@answered
@dataclass(frozen=True)
class LanguageOptions:
    """The shape of a `LanguageModel`; the vocabulary counts the special tokens too.

    ``positions`` is `Rotary` (or another function that makes one from the head width d), a number n
    for a learned table of n positions, or None (for example with
    ``AttentionOptions(bias=it.alibi(heads))``). ``norm`` and ``feed_forward`` make these parts from
    the width c. ``attention`` holds the options of every layer's attention, besides the causal
    mask: ``AttentionOptions(mask=it.window(127, 0))`` sees the last 128 tokens. ``tied`` uses the
    embedding as output projection. Raises `ArgumentError` for impossible sizes and positions given
    twice, `KindError` for other types.

    >>> from functools import partial
    >>> import intently as it
    >>> llama = LanguageOptions(
    ...     100, kv_heads=2, positions=partial(it.Rotary, base=500_000.0), norm=nn.RMSNorm,
    ...     projections=Projections(bias=False, out_bias=False), tied=False,
    ... )
    """

    vocabulary: int
    width: int = 128
    heads: int = 4
    layers: int = 2
    kv_heads: int | None = None
    head_width: int | None = None
    positions: Callable[[int], Rotary] | int | None = Rotary
    norm: Factory = nn.LayerNorm
    feed_forward: Factory = FOURFOLD
    projections: Projections = Projections()
    attention: AttentionOptions = AttentionOptions()
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        whole_number(self.vocabulary, "vocabulary", 1)
        check_options(self)
        if self.head_width is None:
            divisor(self.heads, "heads", "width", self.width)
        else:
            whole_number(self.head_width, "head_width", 1)
        if self.kv_heads is not None:
            divisor(self.kv_heads, "kv_heads", "heads", self.heads)
        _check_positions(self.positions)
        if callable(self.positions) and self.attention.positions is not None:
            raise build(
                ArgumentError,
                "positions",
                "None beside attention=AttentionOptions(positions=…)",
                self.positions,
                "queries and keys would be rotated twice",
            )


def _check_positions(positions: object) -> None:
    """Raise unless positions are None, a function that makes them, or the size of a table."""
    if positions is None or (callable(positions) and not isinstance(positions, Rotary)):
        return
    if isinstance(positions, bool) or not isinstance(positions, int):
        raise build(
            KindError,
            "positions",
            "it.Rotary, a number of learned positions, or None",
            repr(positions),
            fix="a function makes them from the head width: partial(it.Rotary, base=500_000.0)",
        )
    whole_number(positions, "positions", 1)


class LanguageCache:
    """The key/value caches of every layer of a `LanguageModel`, each made by ``make``.

    Raises `KindError` if ``make`` returns something else, `ArgumentError` if it returns the same
    cache twice.
    """

    def __init__(
        self, layers: int, make: Callable[[], KeyValueCache | WindowCache] = KeyValueCache
    ) -> None:
        if not callable(make):
            raise build(KindError, "make", "a function that makes a cache", type(make).__name__)
        self.layers = tuple(make() for _ in range(whole_number(layers, "layers", 0)))
        for layer in self.layers:
            if not isinstance(layer, KeyValueCache | WindowCache):
                expected = "a function that makes a KeyValueCache or WindowCache"
                raise build(KindError, "make", expected, f"one that makes {type(layer).__name__}")
        if len({id(layer) for layer in self.layers}) < layers:
            raise build(ArgumentError, "make", "a new cache for every layer", "the same one twice")

    @property
    def offset(self) -> int | Tensor:
        """Position of the next token: a number, or (b,) where rows differ."""
        return self.layers[0].offset if self.layers else 0

    def crop(self, length: int | Tensor) -> None:
        """Forget the tokens after the first ``length``, a number or one for each row (b,)."""
        for layer in self.layers:
            layer.crop(length)

    def reorder(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` (n,) of the batch, in that order."""
        for layer in self.layers:
            layer.reorder(index)


class LanguageModel(AllOrNothing):
    """Token ids (b, t) in, logits (b, t, V) of the token after each of them out.

    >>> model = LanguageModel(LanguageOptions(vocabulary=20))
    >>> ids = torch.tensor([[5, 6, 7]])
    >>> model(ids).shape, model.attentions(ids)["decoder.1.self_attention"].shape
    (torch.Size([1, 3, 20]), (1, 4, 3, 3))
    >>> cache = model.new_cache()
    >>> first, step = model(ids[:, :2], cache=cache), model(ids[:, 2:], cache=cache)
    >>> bool(torch.allclose(step, model(ids)[:, 2:], atol=1e-5))
    True
    """

    def __init__(self, options: LanguageOptions) -> None:
        super().__init__()
        o = self.options = options
        self.embedding = nn.Embedding(o.vocabulary, o.width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.positions = None
        if isinstance(o.positions, int):
            self.positions = nn.Parameter(torch.empty(o.positions, o.width))
            nn.init.normal_(self.positions, std=0.01)
        self.decoder = nn.ModuleList(
            EncoderLayer(
                o.width,
                MultiHeadAttention(
                    o.width,
                    o.heads,
                    kv_heads=o.kv_heads,
                    head_widths=None if o.head_width is None else (o.head_width, o.head_width),
                    attention=_attends(o),
                    projections=o.projections,
                ),
                o.feed_forward(o.width),
                norms=o.norm,
                dropout=o.dropout,
            )
            for _ in range(o.layers)
        )
        self.norm = o.norm(o.width)
        self.output = None if o.tied else Linear(o.width, o.vocabulary, bias=False)

    @property
    def output_weight(self) -> Tensor:
        """The output projection (V, c); tied to the embedding unless the options say otherwise."""
        return self.embedding.weight if self.output is None else self.output.weight

    @property
    def max_length(self) -> int | None:
        """The maximum number of positions; None if there is no limit."""
        return None if self.positions is None else len(self.positions)

    def forward(
        self, ids: Int[Tensor, "b t"], cache: LanguageCache | None = None
    ) -> Float[Tensor, "b t v"]:
        """Return the logits (b, t, V) of the token after each of ``ids`` (b, t).

        With a cache, ``ids`` holds only the new tokens; a call that raises leaves the cache
        unchanged.
        """
        return linear(self.hidden(ids, cache), self.output_weight)

    def hidden(
        self,
        ids: Int[Tensor, "b t"],
        cache: LanguageCache | None = None,
        keep: States | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return the states (b, t, c) before the output projection.

        ``keep``, a dict, keeps those of every layer, see `states`.
        """
        caches = caches_of(cache, LanguageCache, len(self.decoder))
        x = self._embed(ids, 0 if cache is None else cache.offset, keep)
        return run_layers("decoder", self.decoder, self.norm, x, keep, caches)

    def new_cache(
        self, make: Callable[[], KeyValueCache | WindowCache] = KeyValueCache
    ) -> LanguageCache:
        """Return an empty cache for `forward`, one token or many at a time.

        ``make`` makes that of a layer: ``partial(WindowCache, 128, sinks=4)`` does not grow.
        """
        return LanguageCache(self.options.layers, make)

    def states(self, ids: Int[Tensor, "b t"]) -> States:
        """Return the states (b, t, c) of every layer by name, in order.

        "decoder.embedding" holds the embeddings of the tokens alone, "decoder.input" what the first
        layer reads, "decoder.0", … the states after each layer, and "decoder.output" what is
        projected to the logits. They are the tensors of `forward`, with its gradients.

        >>> model = LanguageModel(LanguageOptions(vocabulary=20, layers=1))
        >>> list(model.states(torch.tensor([[5, 6, 7]])))
        ['decoder.embedding', 'decoder.input', 'decoder.0', 'decoder.output']
        """
        found: States = {}
        self.hidden(ids, keep=found)
        return found

    @torch.no_grad()
    def attentions(self, ids: Int[Tensor, "b t"]) -> dict[str, Attention]:
        """Return every layer's attention as lazy matrices (b, h, t, t).

        Names are the paths of the modules: "decoder.0.self_attention", … Row i is the step that
        reads ``ids[:, i]`` and predicts the next token.
        """
        return attended(attention_blocks(decoder=self.decoder), lambda: self.hidden(ids))

    def _embed(self, ids: Tensor, offset: int | Tensor, keep: States | None) -> Tensor:
        check_ids(ids, "ids", self.options.vocabulary)
        x = kept(keep, "decoder.embedding", self.embedding(ids))
        if self.positions is not None:
            x = x + Learned(self.positions)(ids.shape[1], offset)
        return kept(keep, "decoder.input", F.dropout(x, self.options.dropout, self.training))


def _attends(o: LanguageOptions) -> AttentionOptions:
    """The attention options of every layer: causal, with rotary positions if there are any."""
    given = o.attention
    mask = causal() if given.mask is None else causal() & as_mask(given.mask)
    turning = given.positions
    if callable(o.positions):
        turning = o.positions(o.width // o.heads if o.head_width is None else o.head_width)
        if not isinstance(turning, Rotary):
            raise build(
                KindError,
                "positions",
                "a function that makes it.Rotary from the head width",
                f"one that makes {type(turning).__name__}",
            )
    return dataclasses.replace(given, mask=mask, positions=turning)
