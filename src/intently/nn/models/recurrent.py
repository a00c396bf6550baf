"""The recurrent encoder–decoder, the translator before the Transformer, with or without attention.

Without attention, the decoder sees the source only as one vector, however long the sentence; with
attention, every step looks at all states of the encoder. It has the methods of `Transformer`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from intently.core.attention import Attention, attend
from intently.errors import ArgumentError, build
from intently.foundation.checks import check_kind, check_word, probability, whole_number
from intently.foundation.field_names import answered
from intently.nn.caches.rows import CacheRows, picked
from intently.nn.linear import Linear, xavier
from intently.nn.models.recurrent_steps import (
    CELLS,
    Attentional,
    Carried,
    Fixed,
    RecurrentSteps,
    Searching,
)
from intently.nn.models.shared import (
    EncoderCache,
    Seq2Seq,
    States,
    TargetCache,
    caches_of,
    check_ids,
    check_joint,
    check_memory,
    check_rows,
    kept,
    rows_read,
)
from intently.nn.models.transformer import SHARES
from intently.nn.recurrent import AdditiveAttention, LuongAttention, Remembered
from intently.nn.replay import Replay, snapshot

ATTENTIONS = ("none", "additive", "dot", "general", "concat")


@answered
@dataclass(frozen=True)
class RecurrentOptions:
    """The shape of a `RecurrentSeq2Seq`; the vocabularies count the special tokens too.

    ``attention`` is "none" (the fixed context vector), "additive" (Bahdanau) or a score of Luong.
    A ``bidirectional`` encoder has width / 2 units in each direction. With ``input_feeding``, the
    decoder's cell reads the result of attention besides the word. ``share`` has the meaning of
    `TransformerOptions.share`.
    """

    source_vocabulary: int
    target_vocabulary: int
    width: int = 128
    cell: Literal["rnn", "lstm", "gru"] = "gru"
    attention: Literal["none", "additive", "dot", "general", "concat"] = "additive"
    bidirectional: bool = True
    input_feeding: bool = True
    encoder_layers: int = 1
    decoder_layers: int = 1
    dropout: float = 0.1
    share: Literal["output", "all"] = "output"

    def __post_init__(self) -> None:
        check_word(self.cell, "cell", CELLS)
        check_word(self.attention, "attention", ATTENTIONS)
        check_word(self.share, "share", SHARES)
        vocabularies = "source_vocabulary", "target_vocabulary"
        for name in (*vocabularies, "width", "encoder_layers", "decoder_layers"):
            whole_number(getattr(self, name), name, 1)
        probability(self.dropout, "dropout")
        if self.bidirectional and self.width % 2:
            raise build(
                ArgumentError,
                "width",
                "an even number for a bidirectional encoder",
                self.width,
                "each direction has half of it",
            )
        check_joint(self)

    @property
    def cross(self) -> str | None:
        """The path of the module that attends, or None."""
        return None if self.attention == "none" else "attention"


@dataclass(frozen=True)
class RecurrentMemory(CacheRows):
    """The encoder's output, read by the decoder.

    ``summary`` (b, c) is the encoder's last state, of both directions; ``read`` holds all its
    states, None in a model without attention.
    """

    summary: Tensor
    read: Remembered | None


class RecurrentCache(TargetCache):
    """The decoder's state after the steps so far; its size does not grow with them.

    With ``keep_queries`` it records the queries of every step (see `history`).
    """

    def __init__(self, cross: str | None, *, keep_queries: bool = False) -> None:
        self.cross = cross
        self.keeps = keep_queries and cross is not None
        self.length = 0
        """The number of target steps so far."""
        self.carried: Carried | None = None
        self._queries: list[Tensor] = []
        self._keys: Tensor | None = None

    @property
    def history(self) -> dict[str, list[tuple[Tensor, Tensor | None]]]:
        """One (queries (b, 1, t, a), None) a call by name; see `DecoderCache.history`."""
        if not self.keeps or self.cross is None:
            return {}
        return {self.cross: [(q, None) for q in self._queries]}

    @property
    def cross_keys(self) -> dict[str, Tensor]:
        """The projected keys (b, 1, s, a) of the encoder's states by name."""
        return {} if self._keys is None or self.cross is None else {self.cross: self._keys}

    def keep(self, carried: Carried, steps: int, looked: list[Attention]) -> None:
        """Continue from ``carried`` after ``steps`` steps with the matrices ``looked``."""
        self.carried, self.length = carried, self.length + steps
        if looked:
            rows = carried.state[0].shape[1]
            queries = [A.q.unflatten(1, (rows // len(A.q), -1)).flatten(0, 1) for A in looked]
            self._queries.append(torch.cat(queries, 1)[:, None])
            self._keys = looked[0].k[:, None]

    def reorder_targets(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the targets; the memory that beams share stays."""
        if self.carried is not None:
            self.carried = self.carried.rows(lambda x: picked(x, index))

    def reorder_memory(self, index: Int[Tensor, " n"]) -> None:
        """Continue with rows ``index`` of the memory, as in `RecurrentMemory.expand`."""
        if self._keys is not None:
            self._keys = picked(self._keys, index)


class RecurrentEncoder(nn.Module):
    """Reads x (b, s, c) into states (b, s, c), and the last of them (b, c); padding is not read.

    Source: Bahdanau et al. 2015, section 3.2: each state concatenates both directions.
    """

    def __init__(self, options: RecurrentOptions) -> None:
        super().__init__()
        o = options
        self.ways = 2 if o.bidirectional else 1
        self.cell = CELLS[o.cell](
            o.width,
            o.width // self.ways,
            o.encoder_layers,
            batch_first=True,
            bidirectional=o.bidirectional,
            dropout=o.dropout if o.encoder_layers > 1 else 0.0,
        )

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if not x.numel():
            return x, x.new_zeros(len(x), x.shape[2])
        if lengths is None:
            states, last = self.cell(x)
        else:
            sizes = lengths.clamp(min=1).cpu()
            packed = pack_padded_sequence(x, sizes, batch_first=True, enforce_sorted=False)
            states, last = self.cell(packed)
            states, _ = pad_packed_sequence(states, batch_first=True, total_length=x.shape[1])
        last = last[0] if isinstance(last, tuple) else last
        summary = last[-self.ways :].transpose(0, 1).flatten(1)
        if lengths is not None:  # an empty source has no summary
            summary = torch.where(lengths[:, None] > 0, summary, 0)
        return states, summary


class RecurrentSeq2Seq(Seq2Seq):
    """Recurrent encoder–decoder: token ids in, logits of the next target token out.

    The decoder starts at tanh(W summary), including the memory cell of an LSTM. Luong's scores
    attend after each step, additive attention before it; see `intently.nn.models.recurrent_steps`.

    Source: Sutskever et al. 2014; Cho et al. 2014; Bahdanau et al. 2015; Luong et al. 2015.

    >>> model = RecurrentSeq2Seq(RecurrentOptions(source_vocabulary=20, target_vocabulary=30))
    >>> memory = model.encode(torch.tensor([[5, 6, 2]]))
    >>> model.decode(torch.tensor([[1, 7]]), memory).shape
    torch.Size([1, 2, 30])
    """

    def __init__(self, options: RecurrentOptions) -> None:
        super().__init__(options)
        o, c = options, options.width
        self.encoder = RecurrentEncoder(o)
        self.bridge = Linear(c, (2 if o.cell == "lstm" else 1) * o.decoder_layers * c)
        xavier(self.bridge)
        self.attention: AdditiveAttention | LuongAttention | None = None
        rule: type[RecurrentSteps] = Fixed
        if o.attention == "additive":
            self.attention, rule = AdditiveAttention(c, c, c), Searching
        elif o.attention != "none":
            self.attention = LuongAttention(c, c, o.attention, bias=False)
            rule = Attentional
        self.decoder = rule(o.cell, c, o.decoder_layers, o.input_feeding, o.dropout)

    def encode(
        self,
        source: Int[Tensor, "b s"],
        lengths: Int[Tensor, " b"] | None = None,
        cache: EncoderCache | None = None,
        keep: States | None = None,
    ) -> RecurrentMemory:
        """Read source ids (b, s); ``lengths`` (b,) where rows are padded.

        ``cache`` is that of `new_encoder_cache`: the encoder does not attend, so the cache stays
        empty. ``keep``, a dict, keeps the states, see `states`.
        """
        lengths = self._read(source, lengths)
        caches_of(cache, EncoderCache, 0)
        states, summary = self.encoder(self._embedded("source", source, keep), lengths)
        kept(keep, "encoder.output", states)
        read = None if self.attention is None else self.attention.remember(states, lengths)
        return RecurrentMemory(summary, read)

    def hidden(
        self,
        target: Int[Tensor, "b t"],
        memory: RecurrentMemory,
        cache: RecurrentCache | None = None,
        keep: States | None = None,
    ) -> Float[Tensor, "b t c"]:
        """Return the states (b, t, c) before the output projection.

        ``keep``, a dict, keeps them and the embeddings, see `states`.
        """
        check_ids(target, "target", self.options.target_vocabulary)
        self._check_memory(memory)
        check_rows(target, len(memory.summary))
        if cache is not None:
            self._check_cache(cache, len(target))
        x = self._embedded("target", target, keep)
        if not x.numel():
            return kept(keep, "decoder.output", x)
        carried = None if cache is None else cache.carried
        beams = len(target) // len(memory.summary)
        looked: list[Attention] | None = [] if cache is not None and cache.keeps else None
        made, carried = self.decoder(
            x,
            self._start(memory, beams) if carried is None else carried,
            self._look(memory, beams, looked),
        )
        if cache is not None:
            cache.keep(carried, target.shape[1], looked or [])
        made = F.dropout(made, self.options.dropout, self.training)
        return kept(keep, "decoder.output", made)

    def new_cache(self, *, keep_queries: bool = False) -> RecurrentCache:
        """Return an empty cache for `decode`, one token or many at a time."""
        return RecurrentCache(self.options.cross, keep_queries=keep_queries)

    def new_encoder_cache(self) -> EncoderCache:
        """Return the cache that a search passes to `encode`; it stays empty."""
        return EncoderCache(0)

    @torch.no_grad()
    def attentions(
        self,
        source: Int[Tensor, "n s"],
        target: Int[Tensor, "b t"],
        lengths: Int[Tensor, " n"] | None = None,
    ) -> dict[str, Attention]:
        """Return the attention as a lazy matrix (b, 1, t, s), by its name; {} without attention.

        Row i is the step that reads ``target[:, i]`` and produces the token after it. A source may
        serve m consecutive targets, as in `decode`.
        """
        memory, cache = self.encode(source, lengths), self.new_cache(keep_queries=True)
        self.hidden(target, memory, cache)
        name = self.options.cross
        if memory.read is None or name is None:
            return {}
        read = memory.read.expand(rows_read(source, target))
        none = read.keys.new_empty(len(target), 1, target.shape[1], read.keys.shape[-1])
        [(q, _)] = cache.history[name] or [(none, None)]  # no token, no step
        return {
            name: attend(q, read.keys[:, None], mask=read.mask, **self.replays()[name].settings)
        }

    def replays(self) -> dict[str, Replay]:
        """Return the attention settings, named as in `attentions`."""
        if self.attention is None or self.options.cross is None:
            return {}
        score = snapshot(self.attention.matching)
        settings = {"score": score, "sinks": None, "scale": 1.0, "softcap": None}
        return {self.options.cross: Replay(None, None, None, settings)}

    def attention_blocks(self) -> list[tuple[str, Any]]:
        """Return the module that attends, named as in `attentions`; [] without attention."""
        return [] if self.options.cross is None else [(self.options.cross, self.attention)]

    def _start(self, memory: RecurrentMemory, beams: int) -> Carried:
        """The state before the first step, for ``beams`` targets to each row of the memory."""
        first = torch.tanh(self.bridge(memory.summary)).repeat_interleave(beams, 0)
        layers = first.unflatten(-1, (-1, self.options.width)).transpose(0, 1)
        return Carried(tuple(x.contiguous() for x in layers.split(self.options.decoder_layers)))

    def _look(
        self, memory: RecurrentMemory, beams: int, looked: list[Attention] | None
    ) -> Callable[[Tensor], Tensor]:
        """Return the function that gives steps their contexts; targets of one row look together."""
        read, attention = memory.read, self.attention
        if read is None or attention is None:
            fixed = memory.summary.repeat_interleave(beams, 0)[:, None]
            return lambda query: fixed.expand(-1, query.shape[1], -1)

        def look(query: Tensor) -> Tensor:
            folded = query.reshape(len(read.keys), -1, query.shape[-1])
            if looked is not None:
                looked.append(attention.attend(folded, read))
            return attention(folded, read).view_as(query)

        return look

    def _check_memory(self, memory: RecurrentMemory) -> None:
        check_memory(memory, RecurrentMemory)
        has, needs = memory.read is not None, self.attention is not None
        width, c = memory.summary.shape[-1], self.options.width
        reads = {True: "the states that attention reads", False: "the fixed vector alone"}
        for fits, expected, got in (
            (has == needs, reads[needs], reads[has]),
            (width == c, f"a summary (b, c={c})", f"c={width}"),
        ):
            if not fits:
                cause = "another model encoded the source"
                fix = "use the result of this model's encode"
                raise build(ArgumentError, "memory", expected, got, cause, fix)

    def _check_cache(self, cache: RecurrentCache, rows: int) -> None:
        check_kind(
            cache,
            RecurrentCache,
            "cache",
            "a RecurrentCache",
            "a model has a cache of its own kind",
            "make one: model.new_cache()",
        )
        if cache.carried is None:
            return
        o, state = self.options, cache.carried.state
        expected = (2 if o.cell == "lstm" else 1, o.decoder_layers, rows, o.width)
        found = (len(state), *state[0].shape)
        if found != expected:
            raise build(
                ArgumentError,
                "cache",
                f"states {expected}: (states of a cell, layers, b, c)",
                f"{found}",
                "it belongs to another batch or model",
            )
