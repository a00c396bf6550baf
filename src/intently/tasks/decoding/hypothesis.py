"""A hypothesis: the model's output, its probability, and its attention.

A search does not reorder the queries and keys it keeps: every step leaves them in the order of the
beams at that step. A hypothesis knows its row in each step, and gathers its own on demand:

    step          0    1    2
    row 0         q    q    q·        path of the hypothesis marked · = (0, 1, 0)
    row 1         q·   q·   q         (in step 0 there is one row for each sentence)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from intently.core.matrix import LazyMatrix
from intently.errors import ArgumentError, build
from intently.nn.replay import Replay


@dataclass(frozen=True)
class SearchTrace:
    """The queries and keys of one batch of sentences, as its search computed them.

    It holds 4c numbers for each decoder layer, step and row (sentence × beam), a bound set by the
    size of a batch, and lives as long as one of its hypotheses does.
    """

    lengths: tuple[int, ...]
    """Source tokens of each sentence, EOS included."""
    encoder: dict[str, tuple[Tensor, Tensor]]
    """Queries and keys (n, h, s, d)."""
    decoder: dict[str, list[tuple[Tensor, Tensor | None]]]
    """For each step, queries and new keys (rows, h, 1, d)."""
    cross_keys: dict[str, Tensor]
    """Keys (n, h, s, d) of the encoder's states."""
    replays: Mapping[str, Replay]
    """The attention options of each layer."""

    def matrices(self, sentence: int, path: Tensor) -> dict[str, LazyMatrix]:
        """Return every layer's attention (h, rows, columns) on ``path`` (t,), one row a step."""
        s = self.lengths[sentence]
        found: dict[str, LazyMatrix] = {}
        for name, (q, k) in self.encoder.items():
            own = q[sentence, :, :s], k[sentence, :, :s]
            found[name] = self.replays[name].whole(*own, q.shape[-2])
        rows = path.tolist()
        for name, steps in self.decoder.items():
            q = torch.cat([queries[row] for row, (queries, _) in zip(rows, steps)], -2)
            replay = self.replays[name]
            if name in self.cross_keys:
                k = self.cross_keys[name][sentence]
                found[name] = replay.reads(q, k[:, :s], k.shape[-2])
            else:
                k = [keys[row] for row, (_, keys) in zip(rows, steps) if keys is not None]
                found[name] = replay.steps(q, torch.cat(k, -2))
        return found


@dataclass(frozen=True)
class Hypothesis:
    """One output of a search.

    ``ids`` are the tokens without SOS and EOS, ``log_probability`` is theirs together in nats, EOS
    included, and ``score`` is that divided by `SearchOptions.penalty`. ``ended`` is False where the
    output was cut at its limit before it came to EOS.
    """

    ids: list[int]
    log_probability: float
    score: float
    ended: bool = True
    _trace: SearchTrace | None = field(default=None, repr=False, compare=False)
    _sentence: int = field(default=0, repr=False, compare=False)
    _path: Tensor | None = field(default=None, repr=False, compare=False)

    @cached_property
    def attention(self) -> dict[str, LazyMatrix]:
        """The attention of every layer and head, lazy matrices (h, rows, columns) by name.

        Names are those of `Transformer.attentions`: "encoder.0.self_attention",
        "decoder.0.self_attention", "decoder.0.cross_attention", … Row i of a decoder's matrix is
        the step that produced token i; the last one produced EOS, unless the output was cut.
        Columns are the source's tokens with its EOS, or the decoder's input: SOS and the tokens
        before. Forced decoding of the same output gives the same matrices.

        Raises `ArgumentError` if the search did not keep it.
        """
        if self._trace is None or self._path is None:
            raise build(
                ArgumentError,
                "attention",
                "a search that kept it",
                "one that did not",
                fix="call search(…, keep_attention=True)",
            )
        return self._trace.matrices(self._sentence, self._path)
