"""The Transformer that translates: an encoder reads the source, a decoder writes the target.

Source: Vaswani et al. 2017, "Attention Is All You Need". In cross-attention the queries come from
the decoder, keys and values from the encoder; positions are added to scaled embeddings.
`TransformerOptions` selects the changes of later models.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.core.attention import Attention
from intently.core.masks import causal, padding
from intently.core.positions import Rotary, sinusoidal
from intently.errors import ArgumentError, build
from intently.foundation.checks import check_word, divisor, probability, whole_number
from intently.foundation.field_names import answered
from intently.nn.blocks import DecoderLayer, EncoderLayer
from intently.nn.caches.key_value import FixedCache, KeyValueCache
from intently.nn.caches.rows import Padded
from intently.nn.feed_forward import FeedForward, GatedFeedForward
from intently.nn.models.shared import (
    EncoderCache,
    Seq2Seq,
    Side,
    States,
    TargetCache,
    caches_of,
    check_ids,
    check_joint,
    check_memory,
    check_rows,
    rows_read,
    run_layers,
)
from intently.nn.multi_head import MultiHeadAttention
from intently.nn.options import AttentionOptions
from intently.nn.replay import Replay, attended, attention_blocks

SHARES = ("output", "all")
POSITIONS = ("sinusoidal", "learned", "rotary")
CAUSAL = causal()
FEED_FORWARDS = {"relu": FeedForward, "gated": partial(GatedFeedForward, bias=False)}


@answered
@dataclass(frozen=True)
class TransformerOptions:
    """The shape of a `Transformer`; the vocabularies count the special tokens too.

    ``share`` ties the output projection to the target's embedding ("output"), or both sides to one
    embedding of a joint vocabulary ("all").

    ``positions`` are added to the embeddings: "sinusoidal", or "learned", a table of
    ``learned_steps`` rows for each side, the longest length. Or they are "rotary": each
    self-attention rotates its queries and keys, and cross-attention has no positions. ``kv_heads``
    (a divisor of ``heads``, by default ``heads``) is the number of key/value heads of every
    attention. The "gated" feed-forward (SwiGLU, without biases) has three weight matrices of width
    × ``inner``, "relu" has two: two thirds of ``inner`` give a gated model of the same size.

    Source: learned, Gehring et al. 2017, section 3.1; rotary, Su et al. 2021, "RoFormer"; grouped
    heads, Ainslie et al. 2023, "GQA"; gated, Shazeer 2020, "GLU Variants Improve Transformer".

    >>> TransformerOptions(20, 30, heads=8, kv_heads=2, positions="rotary", feed_forward="gated")
    TransformerOptions(source_vocabulary=20, ...)
    """

    source_vocabulary: int
    target_vocabulary: int
    width: int = 128
    heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 2
    inner: int = 512
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.1
    share: Literal["output", "all"] = "output"
    kv_heads: int | None = None
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    feed_forward: Literal["relu", "gated"] = "relu"
    learned_steps: int = 512

    def __post_init__(self) -> None:
        check_word(self.share, "share", SHARES)
        check_word(self.norm, "norm", ("pre", "post"))
        check_word(self.positions, "positions", POSITIONS)
        check_word(self.feed_forward, "feed_forward", FEED_FORWARDS)
        for name in ("encoder_layers", "decoder_layers"):
            whole_number(getattr(self, name), name, 0)
        for name in ("source_vocabulary", "target_vocabulary", "width", "heads", "learned_steps"):
            whole_number(getattr(self, name), name, 1)
        probability(self.dropout, "dropout")
        if self.kv_heads is not None:
            divisor(self.kv_heads, "kv_heads", "heads", self.heads)
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise build(
                ArgumentError,
                "positions",
                '"sinusoidal" or "learned" for heads of an odd width',
                f'"rotary" where width/heads={self.width // self.heads}',
                "rotary positions rotate pairs of numbers",
                "choose other heads or another width",
            )


@dataclass(frozen=True)
class Memory(Padded):
    """The encoder's output: states (b, s, c), lengths (b,); None if all are s."""

    states: Tensor
    lengths: Tensor | None


class DecoderCache(TargetCache):
    """The caches of every decoder layer: own keys and values, and those of the encoder's states.

    With ``keep_queries`` it records every step (see `history`), at no computational cost.
    """

    def __init__(self, layers: int, *, keep_queries: bool = False) -> None:
        if layers < 1:  # otherwise nothing would count the steps
            raise build(ArgumentError, "decoder_layers", "1 or more to go step by step", layers)
        self.layers = tuple(
            (KeyValueCache(keep_queries=keep_queries), FixedCache(keep_queries=keep_queries))
            for _ in range(layers)
        )

    @property
    def length(self) -> int:
        """The number of target steps so far."""
        return self.layers[0][0].length

    @property
    def history(self) -> dict[str, list[tuple[Tensor, Tensor | None]]]:
        """One (queries (b, h, t, d), new keys (b, g, t, d)) a call by name, as in `attentions`.

        The rows are in the order they had in that call. The keys of "decoder.0.cross_attention", …
        are None, because they do not grow: see `cross_keys`.
        """
        found: dict[str, list[tuple[Tensor, Tensor | None]]] = {}
        for i, (own, cross) in enumerate(self.layers):
            found[f"decoder.{i}.self_attention"] = [(q, k) for q, k in own.history]
            found[f"decoder.{i}.cross_attention"] = [
                (_unfold(q, len(k)), None) for q, (_, k) in zip(cross.history, own.history)
            ]
        return found

    @property
    def cross_keys(self) -> dict[str, Tensor]:
        """Keys (b, g, s, d) of the encoder's states by name: "decoder.0.cross_attention", …"""
        return {
            f"decoder.{i}.cross_attention": cross.kv[0]
            for i, (_, cross) in enumerate(self.layers)
            if cross.kv is not None
        }

    def reorder_targets(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the targets; the memory that beams share stays."""
        for own, _ in self.layers:
            own.reorder(index)

    def reorder_memory(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the memory, as in `Memory.expand`."""
        for _, cross in self.layers:
            cross.reorder(index)


def _unfold(q: Tensor, rows: int) -> Tensor:
    """Queries (n, h, m·t, d) of m targets to each row of the memory, as (rows=n·m, h, t, d)."""
    return q.transpose(1, 2).reshape(rows, -1, q.shape[1], q.shape[3]).transpose(1, 2)


class Transformer(Seq2Seq):
    """Encoder–decoder Transformer: token ids in, logits of the next target token out.

    >>> model = Transformer(TransformerOptions(source_vocabulary=20, target_vocabulary=30))
    >>> memory = model.encode(torch.tensor([[5, 6, 2]]))
    >>> model.decode(torch.tensor([[1, 7]]), memory).shape
    torch.Size([1, 2, 30])
    """

    positions: Tensor

    def __init__(self, options: TransformerOptions) -> None:
        check_joint(options)
        super().__init__(options)
        o = options
        turning = Rotary(o.width // o.heads) if o.positions == "rotary" else None
        own = AttentionOptions(positions=turning)
        heads = partial(MultiHeadAttention, o.width, o.heads, kv_heads=o.kv_heads)
        feed_forward = FEED_FORWARDS[o.feed_forward]
        self.encoder = nn.ModuleList(
            EncoderLayer(
                o.width,
                heads(attention=own),
                feed_forward(o.width, o.inner),
                norm=o.norm,
                dropout=o.dropout,
            )
            for _ in range(o.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(
                o.width,
                heads(attention=own),
                cross=heads(),
                inner=feed_forward(o.width, o.inner),
                norm=o.norm,
                dropout=o.dropout,
            )
            for _ in range(o.decoder_layers)
        )
        last = nn.LayerNorm if o.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = last(o.width), last(o.width)
        if o.positions == "sinusoidal":
            self.register_buffer("positions", sinusoidal(256, o.width), persistent=False)
        elif o.positions == "learned":
            self.source_positions = nn.Embedding(o.learned_steps, o.width)
            self.target_positions = nn.Embedding(o.learned_steps, o.width)
            for table in (self.source_positions, self.target_positions):
                nn.init.normal_(table.weight, std=o.width**-0.5)

    def encode(
        self,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, " b"] | None = None,
        cache: EncoderCache | None = None,
        keep: States | None = None,
    ) -> Memory:
        """Read source ids (b, s); ``lengths`` (b,) where rows are padded.

        ``cache`` keeps the queries and keys, see `new_encoder_cache`; ``keep``, a dict, the states
        of every layer, see `states`.
        """
        lengths = self._read(source, lengths)
        caches = caches_of(cache, EncoderCache, len(self.encoder))
        if cache is not None and caches and caches[0].length:
            got = f"one of {caches[0].length} steps"
            raise build(ArgumentError, "cache", "an empty one for each source", got)
        x = self._embed("source", source, 0, keep)
        mask = None if lengths is None else padding(lengths)
        x = run_layers("encoder", self.encoder, self.encoder_norm, x, keep, caches, mask=mask)
        return Memory(x, lengths)

    def hidden(
        self,
        target: Int[Tensor, "b t"],
        memory: Memory,
        cache: DecoderCache | None = None,
        keep: States | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return the decoder's states (b, t, c) before the output projection.

        ``keep``, a dict, keeps those of every layer, see `states`.
        """
        check_ids(target, "target", self.options.target_vocabulary)
        check_memory(memory, Memory)
        check_rows(target, len(memory.states))
        caches = caches_of(cache, DecoderCache, len(self.decoder), (None, None))
        x = self._embed("target", target, 0 if cache is None else cache.length, keep)
        run = partial(run_layers, "decoder", self.decoder, self.decoder_norm, x, keep, caches)
        return run(memory.states, mask=CAUSAL, states_mask=memory.mask)

    def new_cache(self, *, keep_queries: bool = False) -> DecoderCache:
        """Return an empty cache for `decode`, one token or many at a time."""
        return DecoderCache(self.options.decoder_layers, keep_queries=keep_queries)

    def new_encoder_cache(self) -> EncoderCache:
        """Return an empty cache in which `encode` keeps its queries and keys."""
        return EncoderCache(self.options.encoder_layers)

    @torch.no_grad()
    def attentions(
        self,
        source: Int[Tensor, "n s"],
        target: Int[Tensor, "b t"],
        lengths: Int[Tensor, " n"] | None = None,
    ) -> dict[str, Attention]:
        """Return the attention of every layer as lazy matrices (b, h, rows, columns).

        Names are the paths of the modules: "encoder.0.self_attention", "decoder.0.self_attention",
        "decoder.0.cross_attention", …; row i of a decoder's matrix is the step that reads
        ``target[:, i]`` and produces the token after it. They are the matrices that `forward`
        multiplies for the same arguments, whatever the options. A source may serve m consecutive
        targets, as in `decode`.
        """
        check_rows(target, len(source))

        def run() -> None:
            self.hidden(target, self.encode(source, lengths).expand(rows_read(source, target)))

        return attended(self.attention_blocks(), run)

    def replays(self) -> dict[str, Replay]:
        """Return the settings of every attention, named as in `attentions`."""
        return {name: Replay.of(block) for name, block in self.attention_blocks()}

    def attention_blocks(self) -> list[tuple[str, Any]]:
        """Return the modules that attend, named as in `attentions`."""
        return attention_blocks(encoder=self.encoder, decoder=self.decoder)

    def _embed(self, side: Side, ids: Tensor, offset: int, keep: States | None) -> Tensor:
        if self.options.positions == "rotary":
            return self._embedded(side, ids, keep)
        return self._embedded(side, ids, keep, self._added(side, offset, offset + ids.shape[1]))

    def _added(self, side: Side, first: int, last: int) -> Tensor:
        """Positions added to the embeddings of the steps ``first`` … ``last`` − 1."""
        if self.options.positions == "sinusoidal":
            if last > len(self.positions):
                self.positions = sinusoidal(2 * last, self.options.width).to(self.positions)
            return self.positions[first:last]
        table = self.source_positions if side == "source" else self.target_positions
        if last > len(table.weight):
            raise build(
                ArgumentError,
                side,
                f"at most learned_steps={len(table.weight)} tokens",
                last,
                "the table of learned positions ends there",
                'shorten it, or train with more learned_steps, or positions="rotary"',
            )
        return table.weight[first:last]
