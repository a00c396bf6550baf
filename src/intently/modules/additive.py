"""Attention of recurrent decoders: one query a step, keys projected once for the sequence.

``memory = att.remember(states, lengths)`` is computed when the encoder has read its sequence;
``att(query, memory)`` is what a step of the decoder takes from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from intently.attention_matrix import Attention, attend
from intently.errors import ArgumentError, build, shape_of
from intently.foundation.arrays import check_floats
from intently.foundation.checks import check_kind, probability, whole_number
from intently.modules.caches.rows import Padded, row_lengths
from intently.modules.checks import check_dtype
from intently.modules.linear import Linear, xavier
from intently.modules.weights import reading
from intently.modules.weights.loading import AllOrNothing
from intently.modules.weights.reading import Weight
from intently.scores import Score, energies

FLOATS = "a floating-point tensor (b, {}, width)"


@dataclass(frozen=True)
class Remembered(Padded):
    """Projected keys (b, s, a) and the states (b, s, k) they came from; the padding of the rows."""

    keys: Tensor
    states: Tensor
    lengths: Tensor | None = None


class Energies(Score):
    """vᵀ tanh(q + k) of queries and keys that are projected already, both a wide; v (a,)."""

    axes = (1,)

    def __call__(self, q: Tensor, k: Tensor) -> Tensor:
        return energies(q, k, self.parts[0].to(q.dtype))


class RecurrentAttention(AllOrNothing):
    """Remembers states, and attends them; the score is a dot product without `add_layer`."""

    def __init__(self, width: int, context_width: int, dropout: float) -> None:
        super().__init__()
        self.width = whole_number(width, "width", 1)
        self.context_width = whole_number(context_width, "context_width", 1)
        self.dropout = probability(dropout, "dropout")
        self.query: Linear | None = None
        self.key: Linear | None = None
        self.energy: nn.Parameter | None = None

    def add_layer(self, units: int, bias: bool) -> None:
        """Score by vᵀ tanh(W q + U k + b), newly drawn."""
        self.query = Linear(self.width, units, bias=False)
        self.key = Linear(self.context_width, units, bias=bias)
        self.energy = nn.Parameter(torch.empty(units))
        xavier(self.query, self.key)
        nn.init.uniform_(self.energy, -(units**-0.5), units**-0.5)

    @property
    def matching(self) -> Score | None:
        """The score that matches projected queries with the keys, None for their dot product."""
        return None if self.energy is None else Energies(self.energy)

    def remember(
        self,
        states: Float[Tensor, "b s k"],
        lengths: Int[Tensor, " b"] | Sequence[int] | None = None,
    ) -> Remembered:
        """Project the encoder's states (b, s, k) once; ``lengths`` (b,) where rows are padded.

        Raises `ArgumentError` for other shapes and for lengths below 0 or above s, `KindError` for
        another dtype or device, and for lengths that are no integers.
        """
        self._check(states, "states", "s", self.context_width)
        if lengths is not None:
            lengths = row_lengths(lengths, states)
        keys = states if self.key is None else self.key(states)
        return Remembered(keys, states, lengths)

    def forward(self, query: Float[Tensor, "b t c"], memory: Remembered) -> Float[Tensor, "b t k"]:
        """Return the context (b, t, k) that the decoder's states ``query`` (b, t, c) take."""
        return self.attend(query, memory).matmul(memory.states)

    def attend(self, query: Float[Tensor, "b t c"], memory: Remembered) -> Attention:
        """Return the lazy matrix (b, t, s) that `forward` of the same arguments multiplies."""
        cause = "keys are projected once for the sequence"
        check_kind(memory, Remembered, "memory", "what remember(states) returned", cause)
        self._check(query, "query", "t", self.width)
        if len(query) != len(memory.keys):
            expected = f"shape (b={len(memory.keys)}, t, c={self.width})"
            cause, fix = (
                "the memory belongs to another batch",
                "pick its rows: memory.expand(index)",
            )
            raise build(ArgumentError, "query", expected, shape_of(query), cause, fix)
        dropout = self.dropout if self.training else 0.0
        return attend(
            query if self.query is None else self.query(query),
            memory.keys,
            score=self.matching,
            scale=1.0,
            mask=memory.mask,
            dropout=dropout,
        )

    def _check(self, x: Tensor, name: str, steps: str, width: int) -> None:
        check_floats(x, name, FLOATS.format(steps))
        for weight in islice(self.parameters(), 1):
            check_dtype(x, name, weight)
        if x.ndim != 3 or x.shape[-1] != width:
            expected = f"shape (b, {steps}, {'c' if name == 'query' else 'k'}={width})"
            single = name == "query" and x.ndim == 2
            fix = "a single step needs its axis: query[:, None]" if single else None
            raise build(ArgumentError, name, expected, shape_of(x), fix=fix)


class AdditiveAttention(RecurrentAttention):
    """vᵀ tanh(W q + U k + b) between a decoder's states (b, t, c) and an encoder's (b, s, k).

    ``hidden`` is the width a of its layer; ``bias`` (a,) is b. ``dropout`` acts on the weights
    while training. Raises `ArgumentError` for widths < 1.

    Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and
    Translate", section 3.1 and appendix A.1.2.

    >>> att = AdditiveAttention(16, 24, 32)
    >>> memory = att.remember(torch.zeros(2, 7, 24), torch.tensor([7, 4]))
    >>> att(torch.zeros(2, 1, 16), memory).shape, att.attend(torch.zeros(2, 1, 16), memory).shape
    (torch.Size([2, 1, 24]), (2, 1, 7))
    """

    def __init__(
        self,
        width: int,
        context_width: int,
        hidden: int,
        *,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(width, context_width, dropout)
        self.add_layer(whole_number(hidden, "hidden", 1), bias)

    @classmethod
    def from_weights(cls, query: Weight, key: Weight, energy: Weight) -> AdditiveAttention:
        """Return a block with the weights of anybody's own code, copied.

        ``query`` is W (a, c), ``key`` U (a, k), stored (out, in): each a tensor, a pair
        (weight, bias) or an ``nn.Linear``; ``energy`` is v, (a,) or (1, a). The biases of W and U
        are added; one of v would shift all the scores of a query alike, and is left out. One map
        of [q; k] is two: ``W[:, :c]`` and ``W[:, c:]``. Raises `ArgumentError` where shapes do not
        fit and `KindError` for other types, mixed dtypes and integers.

        >>> AdditiveAttention.from_weights(nn.Linear(16, 32), nn.Linear(24, 32), torch.ones(32))
        AdditiveAttention(
          (query): Linear(in_features=16, out_features=32, bias=False)
          (key): Linear(in_features=24, out_features=32, bias=True)
        )
        """
        n, found = read_layer(query, key, energy)
        block = cls(n["c"], n["k"], n["a"], bias=found["key.bias"] is not None)
        return reading.filled(block, found)


def read_layer(
    query: object, key: object, energy: object
) -> tuple[dict[str, int], dict[str, Tensor | None]]:
    """Read vᵀ tanh(W q + U k + b): its widths a, c and k, and its tensors."""
    maps = {"query": reading.read_map(query, "query"), "key": reading.read_map(key, "key")}
    found = maps | {"energy": reading.read_vector(energy, "energy")}
    n = reading.sizes(found, query="a c", key="a k", energy="1 a")
    biases = [each.bias_or_zeros() for each in maps.values()]
    return n, {
        "query.weight": maps["query"].weight,
        "key.weight": maps["key"].weight,
        "key.bias": biases[0] + biases[1] if reading.has_bias(maps) else None,
        "energy": found["energy"].weight[0],
    }
